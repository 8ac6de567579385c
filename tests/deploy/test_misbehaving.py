"""Real processes over TLS with node authentication: sites that hang, come back stale, lie, or have no room left.

Each test takes a minute or more, so they run with FEDMM_SLOW=1 (``make test-distributed``).
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import pytest
from deploy.running import begin, long_experiment, pid_of, rounds_in, rows, server_log, text, until

from fedmm.deploy import processes
from fedmm.deploy.federation import SUPERLINK, alive, register, start_sites, up
from fedmm.deploy.layout import Federation
from fedmm.deploy.local import RUN, demo_experiment, local_sites, same_result
from fedmm.deploy.runs import follow
from fedmm.sites.credentials.certificates import make_certificates
from fedmm.sites.credentials.keys import make_node_key

pytestmark = pytest.mark.processes


def site_folder(federation: Federation, name: str) -> Path:
    """Where a site's states of the run lie."""
    return next((federation.folder / "state" / name / "runs").glob("*/*"))


def stop(federation: Federation, name: str) -> None:
    """End a site's processes, as its operator would."""
    site = next(each for each in processes.load(federation.processes) if each.name == name)
    os.kill(site.pid, signal.SIGTERM)
    until(lambda: f"site {name} has stopped" in text(federation.logs / f"{name}.log"), 60, f"{name} did not end")


# Late -----------------------------------------------------------------------------------------------------------------


def test_a_site_that_hangs_is_left_out_and_is_counted_again_when_it_is_back(federation: Federation) -> None:
    each = long_experiment(25)
    up(federation, local_sites(each), say=print)
    number = begin(federation, each, patience=30.0)
    until(lambda: rounds_in(federation) >= 1, 600, "the first round was not finished")
    site = pid_of(federation, "site", "target-1.toml")
    os.killpg(site, signal.SIGSTOP)
    reason = "target-1 was not counted: it did not answer"  # in time, or the SuperLink takes it for gone by then
    until(lambda: reason in server_log(federation), 600, "the hanging site was waited for without an end")
    os.killpg(site, signal.SIGCONT)
    assert "completed" in follow(federation, RUN, number, print)
    counted = [row["clients"] for row in rows(federation)]
    assert counted[0] == counted[-1] == 2
    refused = rows(federation, "refused.jsonl")
    assert {each["client"] for each in refused} == {"target-1"}
    assert all(each["reason"].startswith("it did not answer") for each in refused)
    assert [each["round"] for each in refused] == [place + 1 for place, each in enumerate(counted) if each == 1]
    assert alive(federation)[SUPERLINK]


def test_a_site_that_comes_back_from_an_old_backup_is_brought_in_step(federation: Federation) -> None:
    each = long_experiment(25)
    up(federation, local_sites(each), say=print)
    number = begin(federation, each)
    until(lambda: rounds_in(federation) >= 1, 600, "the first round was not finished")
    states, backup = site_folder(federation, "source-1"), federation.folder / "backup"
    shutil.copytree(states, backup, ignore=shutil.ignore_patterns("*.partial"))
    until(lambda: rounds_in(federation) >= 4, 600, "four rounds were not finished")
    stop(federation, "source-1")
    shutil.rmtree(states)
    shutil.copytree(backup, states)
    start_sites(federation, ["source-1"], print)
    assert "completed" in follow(federation, RUN, number, print)
    refused = rows(federation, "refused.jsonl")
    assert [each["client"] for each in refused] == ["source-1"]
    round_ = refused[0]["round"]
    assert refused[0]["reason"] == f"it has lost its state after round {round_ - 1}"
    assert [row["clients"] for row in rows(federation)] == [1 if t == round_ else 2 for t in range(1, 26)]


# Dishonest ------------------------------------------------------------------------------------------------------------


def test_records_that_are_too_large_or_malformed_are_refused_and_the_rounds_go_on(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = demo_experiment(7)
    each = replace(each, run=replace(each.run, on_bad_update="skip"))
    up(federation, local_sites(each), say=print)
    stop(federation, "target-1")
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent / "dishonest"))
        start_sites(federation, ["target-1"], print)
    assert "completed" in follow(federation, RUN, begin(federation, each), print)
    assert [row["clients"] for row in rows(federation)] == [1] * 7
    refused = rows(federation, "refused.jsonl")
    assert [(each["client"], each["round"]) for each in refused] == [("target-1", t) for t in range(1, 8)]
    words = [
        "bytes of arrays, but at most", "it sent 2 records of kind ConfigRecord", "fewer bytes than its arrays have",
        "of shape (3,)", "it answers in the name of 'source-1'", "its update is for round 5, and this is round 6",
        "is not finite",
    ]  # fmt: skip
    for refusal, expected in zip(refused, words, strict=True):
        assert expected in refusal["reason"]
        assert f"round {refusal['round']}: target-1 was not counted: {refusal['reason']}" in server_log(federation)


def test_those_without_a_key_or_with_a_false_name_are_turned_away_and_the_round_goes_on(
    federation: Federation, tmp_path: Path
) -> None:
    each = demo_experiment(2)
    up(federation, local_sites(each), say=print)
    good = (federation.sites / "source-1.toml").read_text()
    key = str((federation.keys / "source-1").resolve())
    authority = str((federation.certificates / "ca.crt").resolve())
    other = Federation(tmp_path / "other")
    for name in ("stranger", "forger"):
        make_node_key(other.keys / name)
    make_certificates(other.certificates, ["127.0.0.1"])
    shutil.copy(other.keys / "forger.pub", federation.keys)
    register(federation, print)
    changed = {
        "stranger": (key, other.keys / "stranger"),  # a key that is not registered
        "forger": (key, other.keys / "forger"),  # a key of its own that is, and another site's name
        "distrustful": (authority, other.certificates / "ca.crt"),  # another authority's certificate
    }
    for name, (old, new) in changed.items():
        path = federation.sites / f"{name}.toml"
        path.write_text(good.replace(old, str(new)).replace("state/source-1", f"state/{name}"))
        env = {**os.environ, processes.MARK: str(federation.folder.resolve())}
        processes.start(
            name, [sys.executable, "-m", "fedmm", "deploy", "site", str(path)], federation.logs / f"{name}.log", env
        )
    until(lambda: "is node" in text(federation.logs / "forger.log"), 600, "the forger was not let in by its key")
    run = begin(federation, each)
    assert "completed" in follow(federation, RUN, run, print)
    assert "it calls itself 'source-1', but does not hold that site's key" in server_log(federation)
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
    for name in ("stranger", "distrustful"):
        said = text(federation.logs / f"{name}.log")
        assert "is node" not in said
    assert "No SuperNode found with the given public key" in text(federation.logs / "superlink.log")
    assert "the SuperLink turns this site away" in text(federation.logs / "stranger.log")
    assert "CERTIFICATE_VERIFY_FAILED" in text(federation.logs / "distrustful.log")


# Without room ---------------------------------------------------------------------------------------------------------

Room = Callable[[bool], None]
"""Takes away the room for a site's states, or gives it back."""


@contextmanager
def small_disk(federation: Federation) -> Iterator[Room]:
    """A file system of its own for the site's states, which can be filled to the last byte."""
    state = federation.folder / "state" / "source-1"
    state.mkdir(parents=True)
    filler = state / "filler"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(state)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a file system cannot be mounted here: {mounted.stderr.strip()}")

    def room(there: bool) -> None:
        if there:
            filler.unlink()
            return
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            list(map(file.write, repeat(bytes(4096))))

    try:
        yield room
    finally:
        subprocess.run(["umount", "--lazy", str(state)], check=True)


@contextmanager
def small_files(federation: Federation) -> Iterator[Room]:
    """The worker may write no more than a part of a state's file, as under a quota."""

    def room(there: bool) -> None:
        size = min(path.stat().st_size for path in site_folder(federation, "source-1").glob("*.safetensors"))
        most = resource.RLIM_INFINITY if there else size // 2
        hard = resource.RLIM_INFINITY
        resource.prlimit(pid_of(federation, "site", "source-1.toml"), resource.RLIMIT_FSIZE, (most, hard))

    yield room


@pytest.mark.parametrize("disk", [small_disk, small_files])
def test_a_full_disk_at_a_site_is_named_and_the_run_goes_on_when_there_is_room(
    federation: Federation, tmp_path: Path, disk: Callable[[Federation], AbstractContextManager[Room]]
) -> None:
    each = long_experiment(20)
    with disk(federation) as room:
        up(federation, local_sites(each), say=print)
        number = begin(federation, each)
        until(lambda: rounds_in(federation) >= 1, 600, "the first round was not finished")
        room(False)
        named = "source-1: the client's state after round"
        until(lambda: named in server_log(federation), 600, "the site did not say that it cannot write")
        room(True)
        assert "completed" in follow(federation, RUN, number, print)
        assert "cannot be written to" in server_log(federation)
        assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
