"""Checkpoints and the disk: crashes while one is written, a full disk, a folder that cannot be written."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from cli.commands import Command, Ended, runner
from problems import adapt
from runs.crashing import crashes, in_this_process
from runs.saved import model_in

from fedmm.config.schema import experiment
from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError
from fedmm.runs.run import run_experiment
from fedmm.training.checkpoints import FOLDER, Checkpoints

FEDMM = Path(sys.executable).with_name("fedmm")
TABLES: dict[str, Any] = {
    "run": {"rounds": 12, "threads": 1, "checkpoint_every": 1, "checkpoint_seconds": 0.0, "batch_size": 16},
    "data": {"name": "moons", "rows": 60},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [8], "head_dropout": 0.2},
    "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
}


def newest_round(folder: Path) -> int:
    """That of the newest checkpoint, which can be read."""
    checkpoints = Checkpoints(folder, every=1, seconds=0.0, keep=2)
    newest = checkpoints.rounds()[0]
    assert checkpoints.load(newest, torch.device("cpu"))[0].round == newest
    return newest


def assert_one_sentence(ended: Ended, words: str) -> None:
    assert ended.code == 2, ended
    assert words in ended.err
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1, ended.err


@pytest.fixture
def fedmm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return runner(monkeypatch, capsys)


def command(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
    return subprocess.run(words, capture_output=True, text=True, env=environment, **options)  # noqa: PLW1510


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    (tmp_path / "plan.toml").write_text(write_toml(TABLES))
    return tmp_path / "plan.toml"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The model at the end of a run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_experiment(experiment(TABLES), folder, progress=False)
    return model_in(folder)


# A crash while one is written -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("apart", ["here", pytest.param("processes", marks=pytest.mark.processes)])
@pytest.mark.parametrize("kind", ["in_process", "batched", "adapt"])
def test_a_crash_at_any_moment_of_writing_changes_nothing(tmp_path: Path, kind: str, apart: str) -> None:
    if apart == "here":
        lines = list(crashes(tmp_path, kind, in_this_process))
    else:
        program = (sys.executable, "-m", "runs.crashing", tmp_path, kind)
        ended = command(*program, cwd=Path(__file__).parents[1], timeout=600)
        assert ended.returncode == 0, ended.stderr
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert {line["at"] for line in lines} == {
        "half of the tensors", "before fsync", "after fsync", "before replace", "after replace",
        "before unlink", "after unlink",
    }  # fmt: skip
    assert all(line["readable"] and line["same"] for line in lines), lines
    assert not any(name.endswith(".partial") for line in lines for name in line["left"])


# A full disk ----------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_file_system_that_fills_up_stops_the_run_and_it_goes_on_when_there_is_space(
    tmp_path: Path, plan: Path, whole: dict[str, Any]
) -> None:
    """A real one of a few kilobytes, in a name space of its own; what is on it is copied out before it goes."""
    (tmp_path / "small").mkdir()
    mount = f"mount -t tmpfs -o size=48k,mode=777 none {tmp_path / 'small'}"
    if command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount).returncode:
        pytest.skip("no file system can be mounted here")
    script = (
        f"{mount} && {FEDMM} run {plan} --out {tmp_path / 'small'}/run --set run.keep_checkpoints=100; "
        f"code=$?; cp -r {tmp_path / 'small'}/run {tmp_path / 'run'}; exit $code"
    )
    done = command("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script)
    assert_one_sentence(Ended(done.returncode, done.stdout, done.stderr), "No space left on device")
    assert 1 <= newest_round(tmp_path / "run") < 12
    assert command(FEDMM, "run", plan, "--out", tmp_path / "run", "--resume").returncode == 0
    assert model_in(tmp_path / "run") == whole


def test_a_file_that_may_not_grow_stops_the_run_in_one_sentence(
    tmp_path: Path, plan: Path, whole: dict[str, Any], fedmm: Command
) -> None:
    """A checkpoint holds the history, so that it grows with every round until it is too large."""
    first = tmp_path / "first"
    run_experiment(experiment({**TABLES, "run": {**TABLES["run"], "rounds": 1}}), first, progress=False)
    size = (first / FOLDER / "round-00000001.safetensors").stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 2000, before[1]))
    try:
        ended = fedmm("run", plan, "--out", tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert_one_sentence(ended, "cannot be written")
    assert 1 <= newest_round(tmp_path / "run") < 12
    assert fedmm("run", plan, "--out", tmp_path / "run", "--resume").code == 0
    assert model_in(tmp_path / "run") == whole


def test_adapt_on_a_full_disk_says_so_and_goes_on_when_there_is_space(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 6, "resume": tmp_path, "checkpoint_every": 1}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))

    try:
        with pytest.raises(FedmmError, match=r"the state cannot be written to .*File too large"):
            adapt(on_round=fill, **options)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert newest_round(tmp_path) == 2
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == [
        "best.safetensors",
        *(f"round-0000000{round_}.safetensors" for round_ in (1, 2)),
    ]  # nothing half written takes up space
    assert torch.equal(adapt(**options).state.z, adapt(rounds=6).state.z)


def test_what_a_crash_left_half_written_is_removed(tmp_path: Path) -> None:
    ended = adapt(rounds=3)
    checkpoints = Checkpoints(tmp_path / "run", every=1, seconds=0.0, keep=1)
    checkpoints.save(adapt(rounds=2).state, ended.history)
    left = [tmp_path / "run" / FOLDER / name for name in (".tmpF2DpeW", "round-00000009.safetensors.partial")]
    for path in left:
        path.write_bytes(b"half")
    checkpoints.save(ended.state, ended.history)
    assert [path.name for path in (tmp_path / "run" / FOLDER).iterdir()] == ["round-00000003.safetensors"]


# A folder that cannot be written --------------------------------------------------------------------------------------


def test_a_folder_that_became_a_file_stops_the_run(tmp_path: Path) -> None:
    """Permissions do not hold back a superuser; this does."""
    options: dict[str, Any] = {"rounds": 6, "resume": tmp_path / "kept", "checkpoint_every": 1}

    def spoil(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            shutil.move(tmp_path / "kept", tmp_path / "moved")
            (tmp_path / "kept").write_text("")

    with pytest.raises(FedmmError, match="the state cannot be written to"):
        adapt(on_round=spoil, **options)
    (tmp_path / "kept").unlink()
    shutil.move(tmp_path / "moved", tmp_path / "kept")
    assert newest_round(tmp_path / "kept") == 2
    assert torch.equal(adapt(**options).state.z, adapt(rounds=6).state.z)


@pytest.mark.parametrize("folder", ["/proc/fedmm/run", "/dev/null/run"])
def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(plan: Path, folder: str, fedmm: Command) -> None:
    assert_one_sentence(fedmm("run", plan, "--out", folder), folder)
