"""Real processes over TLS with node authentication: kills in mid-run, and those who must be turned away.

Each test takes a minute or more, so they run with FEDMM_SLOW=1 (``make test-distributed``).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fedmm import FedmmError
from fedmm.deploy import processes
from fedmm.deploy.demo import RUN, demo_experiment, same_result
from fedmm.deploy.layout import Federation
from fedmm.deploy.lifecycle import SUPERLINK, alive, down, follow, resume, start_sites, start_superlink, submit, up
from fedmm.deploy.local import experiment_text, local_sites

pytestmark = pytest.mark.skipif(
    os.environ.get("FEDMM_SLOW") != "1", reason="starts real processes for minutes; FEDMM_SLOW=1 runs it"
)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    there = Federation(tmp_path / "federation")
    yield there
    if there.folder.exists():
        down(there)
        assert processes.marked(there.folder) == []


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def rounds_in(federation: Federation) -> int:
    path = federation.run(RUN) / "rounds.jsonl"
    return len(path.read_text().splitlines()) if path.exists() else 0


def text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def pid_of(federation: Federation, *words: str) -> int:
    for pid in processes.marked(federation.folder):
        command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        if all(any(word in part for part in command) for word in words):
            return pid
    raise AssertionError(f"no process with {words}")


def begin(federation: Federation, rounds: int) -> int:
    return submit(
        federation, RUN, experiment_text(demo_experiment(rounds)),
        resume=False, patience=200.0, enrol_seconds=100.0, say=print,
    )  # fmt: skip


def test_a_run_survives_the_death_of_a_site_and_of_the_superlink_to_the_bit(
    federation: Federation, tmp_path: Path
) -> None:
    each = demo_experiment(6)
    up(federation, local_sites(each), say=print)
    number = begin(federation, 6)
    until(lambda: rounds_in(federation) >= 1, 120, "the first round was not finished")

    # A SuperNode and its worker die in mid-round: the supervisor brings them back, past the SuperLink's refusals.
    os.kill(pid_of(federation, "flower-supernode", "source-1.toml"), signal.SIGKILL)
    os.kill(pid_of(federation, "fedmm.deploy.resident", "source-1.toml"), signal.SIGKILL)
    killed_at = rounds_in(federation)
    until(lambda: rounds_in(federation) >= killed_at + 2, 240, "the run did not go on after the SuperNode's death")
    assert "the SuperNode ended with -9" in text(federation.logs / "source-1.log")

    # The SuperLink dies: the run ends with it, and goes on as another run of Flower's.
    os.kill(pid_of(federation, "flower-superlink"), signal.SIGKILL)
    with pytest.raises(FedmmError, match="the SuperLink has died"):
        follow(federation, RUN, number, print)
    number = resume(federation, RUN, patience=200.0, say=print)
    done = rounds_in(federation)
    assert done < 6
    assert "completed" in follow(federation, RUN, number, print)
    log = text(federation.run(RUN) / "server.log")
    assert f"going on after round {done}" in log
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
    assert text(federation.run(RUN) / "refused.jsonl") == ""


def test_the_demo_is_bit_identical_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedmm", "deploy", "demo", "--out", str(tmp_path / "demo"), "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "federation and one process are bit-identical" in done.stdout
    ours, other = (
        json.loads((tmp_path / "demo" / folder / "rounds.jsonl").read_text().splitlines()[-1])
        for folder in (f"runs/{RUN}", "in-process")
    )
    for column in ("target_information", "target_entropy", "target_bnm", "target_snd", "domain_accuracy"):
        assert ours[column] == pytest.approx(other[column], rel=1e-9), column
    said = text(tmp_path / "demo" / "logs" / "target-1.log")
    assert "fedmm worker target-1: round 2: leaves sums for target_information (11 over " in said
    assert processes.marked(tmp_path / "demo") == []


def test_the_commands_up_run_status_and_down(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    experiment = tmp_path / "digits.toml"
    experiment.write_text(experiment_text(demo_experiment(2)))

    def fedmm(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedmm", "deploy", *words, "--federation", str(folder)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    try:
        assert "site target-1 has joined" in fedmm("up", str(experiment))
        assert "source-1: runs" in fedmm("status")
        assert "finished:completed" in fedmm("run", str(experiment), "--name", "first")
        said = fedmm("status")
        assert "run first: 2 rounds finished, Flower says finished:completed" in said
        assert "TLS and node authentication" in said
    finally:
        assert "processes ended" in fedmm("down")
    assert processes.marked(folder) == []


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_ends_everything(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedmm", "deploy", "demo", "--out", str(tmp_path / "demo"), "--rounds", "50"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "round 1:" in line:
                demo.send_signal(signal.SIGINT)
                break
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert "processes ended" in rest
    assert processes.marked(tmp_path / "demo") == []


def test_those_without_a_key_or_with_a_false_name_are_turned_away_and_the_round_goes_on(
    federation: Federation, tmp_path: Path
) -> None:
    each = demo_experiment(2)
    sites = local_sites(each)
    up(federation, sites, say=print)
    good = (federation.sites / "source-1.toml").read_text()

    # Another key than any that is registered.
    stranger = federation.sites / "stranger.toml"
    other = Federation(tmp_path / "other")
    from fedmm.deploy.keys import make_certificates, make_node_key

    make_node_key(other.keys / "stranger")
    key = str((federation.keys / "source-1").resolve())
    stranger.write_text(
        good.replace(key, str(other.keys / "stranger")).replace("state/source-1", "state/stranger")
        .replace('name = "source-1"', 'name = "source-1"')
    )  # fmt: skip
    # A registered key of its own, and another site's name.
    forger = federation.sites / "forger.toml"
    make_node_key(other.keys / "forger")
    from fedmm.deploy.lifecycle import register

    shutil.copy(other.keys / "forger.pub", federation.keys)
    register(federation, print)
    forger.write_text(good.replace(key, str(other.keys / "forger")).replace("state/source-1", "state/forger"))
    # Another authority's certificate.
    make_certificates(other.certificates, ["127.0.0.1"])
    distrustful = federation.sites / "distrustful.toml"
    authority = str((federation.certificates / "ca.crt").resolve())
    distrustful.write_text(
        good.replace(authority, str(other.certificates / "ca.crt")).replace("state/source-1", "state/distrustful")
    )
    for number, name in enumerate(("stranger", "forger", "distrustful")):
        path = federation.sites / f"{name}.toml"
        lines = path.read_text().splitlines()
        port = next(line for line in lines if line.startswith("runtime_port"))
        path.write_text(path.read_text().replace(port, f"runtime_port = {23450 + number}"))
        env = {**os.environ, processes.MARK: str(federation.folder.resolve())}
        processes.start(
            name, [sys.executable, "-m", "fedmm", "deploy", "site", str(path)], federation.logs / f"{name}.log", env
        )
    until(lambda: "SuperNode ID" in text(federation.logs / "forger.log"), 100, "the forger was not let in by its key")
    number = begin(federation, 2)
    assert "completed" in follow(federation, RUN, number, print)
    log = text(federation.run(RUN) / "server.log")
    assert "it calls itself 'source-1', but does not hold that site's key" in log
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
    for name in ("stranger", "distrustful"):
        said = text(federation.logs / f"{name}.log")
        assert "SuperNode ID" not in said
        assert "the SuperNode ended with 1" in said


def test_a_full_disk_at_a_site_is_named_and_the_run_goes_on_when_there_is_room(federation: Federation) -> None:
    each = demo_experiment(3)
    up(federation, local_sites(each), say=print)
    number = begin(federation, 3)
    until(lambda: rounds_in(federation) >= 1, 120, "the first round was not finished")
    states = next((federation.folder / "state" / "source-1" / "runs").glob("*/*"))
    blocked = states / "round-00000003.safetensors.partial"
    blocked.mkdir()  # nothing can be written under that name
    log = federation.run(RUN) / "server.log"
    until(lambda: "cannot be written to" in text(log), 120, "the site did not say that it cannot write")
    blocked.rmdir()
    assert "completed" in follow(federation, RUN, number, print)
    assert alive(federation)[SUPERLINK]


def test_a_federation_that_went_down_comes_up_with_its_states(federation: Federation, tmp_path: Path) -> None:
    each = demo_experiment(4)
    made = up(federation, local_sites(each), say=print)
    begin(federation, 4)
    until(lambda: rounds_in(federation) >= 2, 120, "two rounds were not finished")
    down(federation)
    start_superlink(federation, print)
    start_sites(federation, made.sites, print)
    assert "completed" in follow(federation, RUN, resume(federation, RUN, patience=200.0, say=print), print)
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
