"""Sweeps and comparisons that are killed, and go on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runs.saved import model_in

from fedmm.cli import main
from fedmm.config.sweep_grid import grid
from fedmm.config.toml import read_toml, write_toml
from fedmm.core.errors import FedmmError
from fedmm.reporting import read_comparison
from fedmm.runs import sweep as sweeping
from fedmm.runs.comparison import compare
from fedmm.runs.sweep import run_sweep
from fedmm.training import checkpoints
from fedmm.training.batched import StackSettings
from fedmm.training.checkpoints import FOLDER
from fedmm.training.history import Row
from fedmm.training.progress import RunsProgress
from fedmm.training.stack_settings import Tuned

ROUNDS = 6


def tables(**changes: Any) -> dict[str, Any]:
    run = {"rounds": ROUNDS, "batch_size": 8, "threads": 1, "checkpoint_every": 1, "checkpoint_seconds": 0.0}
    return {
        "run": {**run, **changes.pop("run", {})},
        "data": {"name": "moons", "rows": 40, "test_rows": 20},
        "model": {"name": "mlp", "adversary_hidden": [4], "head_dropout": 0.2},
        "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
        "sweep": {"model.hidden": [[6], [5]], "run.seed": [0, 1]},
        **changes,
    }


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def results(folder: Path) -> dict[str, tuple[Any, list[dict[str, Any]]]]:
    return {run.folder.name: (model_in(run.folder), rows_of(run.folder)) for run in read_comparison(folder).runs}


def checkpoints_of(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round-")) for path in (folder / FOLDER).glob("round-*.safetensors"))


def swept(folder: Path, plan: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return run_sweep(grid(plan or tables()), folder, title="x", progress=False, **options)


class Stopped(Exception):  # noqa: N818 - what happens to the sweep
    pass


def stopped(*given: Any, **options: Any) -> None:
    raise Stopped


@pytest.fixture(autouse=True)
def _layer_by_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    """How a stack is computed is measured, and decides the last bits: here it is the same in every sweep."""
    monkeypatch.setattr(
        sweeping, "choose_settings", lambda *given: Tuned(StackSettings(), 1, 1, "as the test wants it")
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An uninterrupted sweep of four runs in two programs."""
    folder = tmp_path_factory.mktemp("whole") / "sweep"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "choose_settings", lambda *given: Tuned(StackSettings(), 1, 1, "as the test wants it"))
        swept(folder)
        yield folder


def stop_after(patch: pytest.MonkeyPatch, folder: Path, run: int, last: int, **options: Any) -> None:
    """Sweep until a round of a run is over, then end as a crash would: nothing after it is done."""

    class Ending(RunsProgress):
        def __call__(self, number: int, row: Row) -> None:
            if (number, row["round"]) == (run, last):
                raise Stopped

    with patch.context() as here:
        here.setattr(sweeping, "RunsProgress", Ending)
        with pytest.raises(Stopped):
            swept(folder, **options)


@pytest.mark.parametrize(("run", "last"), [(0, 1), (1, 4), (2, 3), (3, 6)])
def test_a_sweep_that_crashed_goes_on_to_the_same_end(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, run: int, last: int
) -> None:
    stop_after(monkeypatch, tmp_path, run, last)
    assert swept(tmp_path, resume=True)["status"] == "completed"
    assert results(tmp_path) == results(whole)


def test_completed_runs_are_left_alone_and_the_plan_is_not_made_anew(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, tmp_path, 2, 3)
    done = [tmp_path / f"fedmm-hidden=-6-seed{seed}" for seed in (0, 1)]
    before = {path: path.stat().st_mtime_ns for folder in done for path in folder.rglob("*")}
    assert before
    monkeypatch.setattr(sweeping, "choose_settings", None)
    said: list[str] = []
    swept(tmp_path, resume=True, say=said.append)
    assert {path: path.stat().st_mtime_ns for folder in done for path in folder.rglob("*")} == before
    assert "continuing after round 2" in said
    assert results(tmp_path) == results(whole)


def test_a_completed_sweep_has_nothing_left_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = swept(tmp_path)
    monkeypatch.setattr(sweeping, "run_stack", None)
    assert swept(tmp_path, resume=True) == summary


def test_a_sweep_that_was_never_begun_is_begun(tmp_path: Path, whole: Path) -> None:
    swept(tmp_path / "new", resume=True)
    assert results(tmp_path / "new") == results(whole)


def test_a_crash_before_the_plan_was_written_is_no_obstacle(tmp_path: Path, whole: Path) -> None:
    (tmp_path / "summary.json").write_bytes((whole / "summary.json").read_bytes())
    (tmp_path / "plan.json.partial").write_text("{")
    swept(tmp_path, resume=True)
    assert results(tmp_path) == results(whole)


def test_members_of_a_stack_go_on_from_the_newest_round_that_all_have(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, tmp_path, 0, 5)
    first, second = (tmp_path / f"fedmm-hidden=-6-seed{seed}" for seed in (0, 1))
    assert checkpoints_of(first) == checkpoints_of(second) == [3, 4]
    (second / FOLDER / "round-00000004.safetensors").unlink()
    (first / FOLDER / "round-00000003.safetensors").write_bytes(b"torn")
    said: list[str] = []
    swept(tmp_path, resume=True, say=said.append)
    assert any("round-00000003.safetensors" in line for line in said)
    assert any("have no readable checkpoints of the same round; they start again" in line for line in said)
    assert results(tmp_path) == results(whole)


def test_a_member_that_is_behind_takes_the_others_back(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, tmp_path, 0, 5)
    (tmp_path / "fedmm-hidden=-6-seed1" / FOLDER / "round-00000004.safetensors").write_bytes(b"torn")
    said: list[str] = []
    swept(tmp_path, resume=True, say=said.append)
    assert "continuing after round 3" in said
    assert results(tmp_path) == results(whole)


@pytest.mark.parametrize("crash", range(7))
def test_one_checkpoint_is_enough_whenever_the_crash_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    """The older ones of a stack are removed when all of the newer ones are written."""
    plan = tables(run={"keep_checkpoints": 1}, sweep={"run.seed": [0, 1, 2]}, model={"name": "mlp", "hidden": [4]})
    swept(tmp_path / "whole", plan)
    real, written = checkpoints.save_snapshot, 0

    def save(path: Path, *given: Any) -> None:
        nonlocal written
        written += path.name.startswith("round-")
        if written > crash:
            raise Stopped
        real(path, *given)

    with monkeypatch.context() as here:
        here.setattr(checkpoints, "save_snapshot", save)
        with pytest.raises(Stopped):
            swept(tmp_path / "broken", plan)
    said: list[str] = []
    swept(tmp_path / "broken", plan, resume=True, say=said.append)
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    assert crash < 3 or f"continuing after round {crash // 3}" in said


# The command line -----------------------------------------------------------------------------------------------------


def fedmm(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """The exit code of a command."""
    monkeypatch.setattr(sys, "argv", ["fedmm", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_command_goes_on_in_the_usual_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_program(tmp_path, 4)
    plan = grid(read_toml(tmp_path / "plan.toml"))
    with monkeypatch.context() as here:
        here.setattr(sweeping, "run_stack", stopped)
        with pytest.raises(Stopped):
            run_sweep(plan, tmp_path / "runs" / "plan", title="plan", progress=False)
    for command in ("sweep", "run"):
        assert fedmm(monkeypatch, command, "plan.toml", "--resume") == 0
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["plan"]
    assert len(read_comparison(tmp_path / "runs" / "plan").runs) == 3
    assert fedmm(monkeypatch, "sweep", "plan.toml", "--resume", "--set", "run.rounds=9") == 2
    assert "fedmm-hidden=-5-seed0: run.rounds was 4, now 9" in capsys.readouterr().err
    assert fedmm(monkeypatch, "sweep", "plan.toml", "--resume", "--overwrite") == 2
    assert "--resume and --overwrite exclude each other" in capsys.readouterr().err


# What is another sweep ------------------------------------------------------------------------------------------------


def test_another_grid_is_refused_with_the_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(monkeypatch, tmp_path, 0, 3)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    other = tables(sweep={"model.hidden": [[6]], "run.seed": [0, 1, 2]}, run={"rounds": 9})
    with pytest.raises(FedmmError) as refused:
        swept(tmp_path, other, resume=True)
    assert str(refused.value) == (
        f"the comparison in {tmp_path} was started with another configuration, so it cannot be resumed with this one: "
        "fedmm-hidden=-6-seed2 is new; fedmm-hidden=-5-seed0 is gone; fedmm-hidden=-5-seed1 is gone; "
        "fedmm-hidden=-6-seed0: run.rounds was 6, now 9; fedmm-hidden=-6-seed1: run.rounds was 6, now 9"
    )
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_another_order_of_the_same_runs_is_the_same_sweep(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, tmp_path, 0, 3)
    swept(tmp_path, tables(sweep={"run.seed": [1, 0], "model.hidden": [[5], [6]]}), resume=True)
    assert results(tmp_path) == results(whole)


@pytest.mark.parametrize("plan", ["", "[]", "{}", '{"runs": {"a": {}}, "programs": []}', '{"runs": 1}'])
def test_a_plan_that_cannot_be_read_is_refused(tmp_path: Path, plan: str) -> None:
    (tmp_path / "plan.json").write_text(plan)
    with pytest.raises(FedmmError, match=r"plan\.json is not a plan of runs that can be continued"):
        swept(tmp_path, resume=True)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FedmmError, match="is not empty; name another"):
        swept(tmp_path, resume=True)


# A replica that diverged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [1, 4])
def test_a_stack_with_a_diverged_replica_goes_on_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    plan = tables(sweep={"algorithm.lr_min": [0.01, 1e18, 0.02]}, model={"name": "mlp", "hidden": [6]})
    with pytest.raises(FedmmError, match=r"1 of 3 runs diverged, first fedmm lr_min=1e\+18") as expected:
        swept(tmp_path / "whole", plan)
    stop_after(monkeypatch, tmp_path / "broken", 2, last, plan=plan)
    for _ in range(2):  # what has ended says the same again
        with pytest.raises(FedmmError) as again:
            swept(tmp_path / "broken", plan, resume=True)
        assert str(again.value) == str(expected.value)
        assert results(tmp_path / "broken") == results(tmp_path / "whole")
    statuses = [run.status for run in read_comparison(tmp_path / "broken").runs]
    assert statuses == ["completed", "diverged", "completed"]


# SIGKILL --------------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from pathlib import Path
from fedmm.runs import sweep
from fedmm.config.sweep_grid import grid
from fedmm.training.batched import StackSettings
from fedmm.config.toml import read_toml
from fedmm.training.stack_settings import Tuned

def choose_settings(*given):
    return Tuned(StackSettings(), 1, int(sys.argv[3]), "as the test wants it")

if __name__ == "__main__":
    sweep.choose_settings = choose_settings
    print("ready", flush=True)
    sweep.run_sweep(grid(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]), title="x", progress=False, resume=True)
"""


def started(folder: Path, name: str, processes: int) -> subprocess.Popen[bytes]:
    """A sweep in a process group of its own."""
    command = [sys.executable, "program.py", "plan.toml", name, str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, env=environment, start_new_session=True)


def write_program(folder: Path, rounds: int) -> None:
    plan = tables(run={"rounds": rounds, "evaluate_every": 10}, sweep={"run.seed": [0, 1, 2], "model.hidden": [[5]]})
    sweep = plan.pop("sweep")
    lines = "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in sweep.items())
    (folder / "plan.toml").write_text(f"{write_toml(plan)}\n[sweep]\n{lines}")
    (folder / "program.py").write_text(PROGRAM)


@pytest.mark.processes
@pytest.mark.parametrize(("processes", "rounds", "kills"), [(1, 150, 4), (2, 250, 2)])
def test_sigkill_of_all_processes_at_random_moments_changes_nothing(
    tmp_path: Path, processes: int, rounds: int, kills: int
) -> None:
    write_program(tmp_path, rounds)
    with started(tmp_path, "whole", processes) as process:
        assert process.wait() == 0
    draw = random.Random(processes)
    killed = 0
    for number in range(kills):
        with started(tmp_path, "killed", processes) as process:
            wait_for_rounds(tmp_path / "killed", process)
            time.sleep(draw.uniform(0.0, 0.5) if number else 0.0)
            killed += process.poll() is None
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    with started(tmp_path, "killed", processes) as process:
        assert process.wait() == 0
    assert killed >= 1
    assert results(tmp_path / "killed") == results(tmp_path / "whole")


def wait_for_rounds(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Until a run has finished another round."""

    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob("*/rounds.jsonl"))

    before, deadline = size(), time.monotonic() + 600
    while size() <= before and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)


@pytest.mark.processes
def test_workers_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    write_program(tmp_path, 1_000_000)
    with started(tmp_path, "killed", 2) as process:
        wait_for_rounds(tmp_path / "killed", process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 600
        while (left := alive_in_group(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.1)
    for each in left:
        os.kill(each, signal.SIGKILL)
    assert not left


def alive_in_group(group: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = path.read_text().split(" ", 1)
        except OSError:
            continue
        state, _, its_group = rest.rsplit(") ", 1)[1].split()[:3]
        if int(its_group) == group and state not in "ZX":
            found.append(int(pid))
    return found


# Comparisons ----------------------------------------------------------------------------------------------------------


def test_a_comparison_goes_on_with_what_is_left(tmp_path: Path) -> None:
    experiments = grid(tables(sweep={"run.seed": [0, 1, 2]}, model={"name": "mlp", "hidden": [4]}))
    compare(experiments, tmp_path / "whole", title="x", workers=1, progress=False)
    compare(experiments, tmp_path / "broken", title="x", workers=1, progress=False)
    first, second, third = (tmp_path / "broken" / f"fedmm-seed{seed}" for seed in range(3))
    before = {path: path.stat().st_mtime_ns for path in first.rglob("*")}
    (second / "summary.json").unlink()  # it was killed in the last round
    (second / FOLDER / "round-00000006.safetensors").unlink()
    for path in sorted(third.rglob("*"), reverse=True):  # it was never begun
        path.rmdir() if path.is_dir() else path.unlink()
    third.rmdir()
    said: list[str] = []
    compare(experiments, tmp_path / "broken", title="x", workers=1, progress=False, resume=True, say=said.append)
    assert "fedmm-seed1: continuing after round 5" in said
    assert {path: path.stat().st_mtime_ns for path in first.rglob("*")} == before
    assert results(tmp_path / "broken") == results(tmp_path / "whole")
    with pytest.raises(FedmmError, match="fedmm-seed2 is gone"):
        compare(experiments[:2], tmp_path / "broken", title="x", workers=1, progress=False, resume=True)
