"""Runs that are killed, and go on."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from runs.forking import template
from runs.saved import model_in

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError
from fedmm.runs import resume
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import latest_folder
from fedmm.training.checkpoints import FOLDER
from fedmm.training.snapshots import load_snapshot

ROUNDS = 12


def tables(**changes: Any) -> dict[str, Any]:
    run = {"rounds": ROUNDS, "threads": 1, "checkpoint_every": 1, "checkpoint_seconds": 0.0, "batch_size": 16}
    return {
        "run": {**run, **changes.pop("run", {})},
        "data": {"name": "moons", "rows": 60},
        "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [8], "head_dropout": 0.2},
        "objective": {"name": "dann"},
        "algorithm": {"name": "fedmm_smoothed", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 3},
        **changes,
    }


def small(**changes: Any) -> Experiment:
    return experiment(tables(**changes))


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def checkpoints_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / FOLDER).iterdir())


class Stopped(Exception):  # noqa: N818 - what happens to the run
    pass


def run_until(each: Experiment, folder: Path, last: int, **options: Any) -> None:
    """Run until a round is over, then end as a crash would: nothing after it is done."""

    def after(row: dict[str, Any]) -> None:
        if row["round"] == last:
            raise Stopped

    with pytest.raises(Stopped):
        run_experiment(each, folder, progress=False, on_round=after, **options)


USUAL: dict[str, Any] = {}
FEWER_BYTES = {"uploads": "int8", "broadcasts": "fp16", "participation": 0.5}


@pytest.mark.parametrize("options", [USUAL, FEWER_BYTES], ids=["usual", "fewer bytes"])
@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_a_run_that_crashed_again_and_again_ends_bit_identical(
    tmp_path: Path, engine: str, options: dict[str, Any]
) -> None:
    each = small(run={"engine": engine, **options})
    run_experiment(each, tmp_path / "whole", progress=False)
    run_until(each, tmp_path / "broken", 3)
    run_until(each, tmp_path / "broken", 4, resume=True)
    run_until(each, tmp_path / "broken", 9, resume=True)
    run_experiment(each, tmp_path / "broken", progress=False, resume=True)
    assert model_in(tmp_path / "broken") == model_in(tmp_path / "whole")
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "whole")


def test_a_resumed_run_goes_on_where_it_was_and_says_so(tmp_path: Path) -> None:
    run_until(small(), tmp_path / "run", 7)
    said: list[str] = []
    first: list[Any] = []
    run_experiment(small(), tmp_path / "run", progress=False, resume=True, say=said.append,
                   on_round=lambda row: first.append(row["round"]))  # fmt: skip
    assert first[0] == 7  # round 7 was over, but its checkpoint was not yet written
    assert "continuing after round 6" in said


def test_a_run_that_was_never_begun_is_begun(tmp_path: Path) -> None:
    run_experiment(small(), tmp_path / "run", progress=False, resume=True)
    assert len(rows_of(tmp_path / "run")) == ROUNDS


BEST = "best.safetensors"


def test_a_finished_run_has_nothing_left_to_do(tmp_path: Path) -> None:
    run_experiment(small(), tmp_path / "run", progress=False)
    before = model_in(tmp_path / "run")
    again: list[Any] = []
    run_experiment(small(), tmp_path / "run", progress=False, resume=True, on_round=again.append)
    assert again == []
    assert model_in(tmp_path / "run") == before


def test_the_last_few_and_the_best_are_kept(tmp_path: Path) -> None:
    run_experiment(small(run={"keep_checkpoints": 3}), tmp_path / "run", progress=False)
    assert checkpoints_in(tmp_path / "run") == [BEST, *(f"round-{n:08d}.safetensors" for n in (10, 11, 12))]


@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_the_best_is_still_the_best_of_all_rounds_after_a_crash(tmp_path: Path, engine: str) -> None:
    each = small(run={"engine": engine, "best_by": "source_accuracy"})
    for last in (4, 9):
        run_until(each, tmp_path / "run", last, resume=True)
    run_experiment(each, tmp_path / "run", progress=False, resume=True)
    accuracies = [row["source_accuracy"] for row in rows_of(tmp_path / "run")]
    best, _ = load_snapshot(tmp_path / "run" / FOLDER / BEST, torch.device("cpu"))
    assert best.round == accuracies.index(max(accuracies)) + 1


def test_a_batched_run_goes_on_as_it_was_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many clients fit into the memory decides the last bits."""
    each = small(run={"engine": "batched"})
    monkeypatch.setattr(resume, "chunk_that_fits", lambda *given: 1)
    run_until(each, tmp_path / "run", 5)
    monkeypatch.setattr(resume, "chunk_that_fits", lambda *given: 2)
    summary = run_experiment(each, tmp_path / "run", progress=False, resume=True)
    assert summary["engine"]["chunk"] == 1


def test_newer_checkpoints_that_cannot_be_read_do_not_push_out_the_good_ones(tmp_path: Path) -> None:
    run_until(small(), tmp_path / "run", 3)
    for round_ in (50, 60, 70):
        (tmp_path / "run" / FOLDER / f"round-{round_:08d}.safetensors").write_bytes(b"torn")
    run_until(small(), tmp_path / "run", 5, resume=True)
    assert checkpoints_in(tmp_path / "run") == [BEST, *(f"round-{n:08d}.safetensors" for n in (3, 4))]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: str) -> None:
    each = small()
    run_experiment(each, tmp_path / "whole", progress=False)
    run_until(each, tmp_path / "run", 8)
    newest = tmp_path / "run" / FOLDER / "round-00000007.safetensors"
    content = newest.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :]
    newest.write_bytes({"truncated": content[:middle], "flipped": flipped, "empty": b""}[damage])
    said: list[str] = []
    run_experiment(each, tmp_path / "run", progress=False, resume=True, say=said.append)
    (damaged,) = (line for line in said if "trying the one before it" in line)
    assert "round-00000007.safetensors" in damaged
    assert "continuing after round 6" in said
    assert model_in(tmp_path / "run") == model_in(tmp_path / "whole")


def test_without_a_readable_checkpoint_the_run_begins_again_and_says_so(tmp_path: Path) -> None:
    run_until(small(), tmp_path / "run", 3)
    for path in (tmp_path / "run" / FOLDER).iterdir():
        path.write_bytes(b"no state")
    said: list[str] = []
    run_experiment(small(), tmp_path / "run", progress=False, resume=True, say=said.append)
    assert any("starts again" in line for line in said)
    assert len(rows_of(tmp_path / "run")) == ROUNDS


def test_another_configuration_is_refused_with_the_differences(tmp_path: Path) -> None:
    run_until(small(), tmp_path / "run", 3)
    other = tables(run={"rounds": 20, "label": "new name"})
    other["algorithm"]["lr_min"] = 0.1
    with pytest.raises(FedmmError) as refused:
        run_experiment(experiment(other), tmp_path / "run", progress=False, resume=True)
    assert "run.rounds was 12, now 20" in str(refused.value)
    assert "algorithm.lr_min was 0.05, now 0.1" in str(refused.value)
    assert "label" not in str(refused.value)


@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_data_that_changed_is_noticed(tmp_path: Path, engine: str) -> None:
    def on(rows: list[list[float]]) -> Experiment:
        lines = [f"{a},{b},{number % 2},{'north' if number < 20 else 'south'}" for number, (a, b) in enumerate(rows)]
        (tmp_path / "table.csv").write_text("\n".join(["a,b,sick,site", *lines]))
        data = {"name": "table", "file": str(tmp_path / "table.csv"), "label": "sick", "site": "site"}
        data |= {"target_sites": ["south"]}
        return small(data=data, run={"engine": engine}, partition={"name": "by_site"})

    rows = [[float(number), float(number % 7)] for number in range(40)]
    run_until(on(rows), tmp_path / "run", 4)
    rows[3][1] = 100.0
    with pytest.raises(FedmmError, match=r"the data has changed since the run in .* started: client '.*' held"):
        run_experiment(on(rows), tmp_path / "run", resume=True)


def test_a_run_with_noise_keeps_no_checksum_of_rows_and_knows_their_numbers(tmp_path: Path) -> None:
    """Whoever knows all rows of a client but one could try out that one by a checksum."""

    def noisy(rows: int) -> Experiment:
        model = {"name": "mlp", "hidden": [8], "adversary_hidden": [8], "centre": "none"}
        return small(
            data={"name": "moons", "rows": rows},
            run={"probe_rows": 0},
            model=model,
            algorithm={"name": "fedmm"},
            transmission={"name": "gaussian"},
        )

    run_until(noisy(40), tmp_path / "run", 2)
    assert json.loads((tmp_path / "run" / "held.json").read_text()) == {
        "source-1": "weight 1, source 40 rows [2] float32, target none",
        "target-1": "weight 1, source none, target 40 rows [2] float32",
    }
    (tmp_path / "run" / "experiment.toml").write_text(write_toml(noisy(44).tables()))
    with pytest.raises(FedmmError, match=r"the data has changed since the run in .* started: client 'source-1' held"):
        run_experiment(noisy(44), tmp_path / "run", resume=True)
    (tmp_path / "run" / "experiment.toml").write_text(write_toml(noisy(40).tables()))
    run_experiment(noisy(40), tmp_path / "run", progress=False, resume=True)
    assert "fingerprint" not in json.loads((tmp_path / "run" / "summary.json").read_text())


@pytest.mark.parametrize("text", ["", "[1]", "3", "null", "{"])
def test_a_damaged_list_of_what_was_held_is_named(tmp_path: Path, text: str) -> None:
    run_until(small(), tmp_path / "run", 2)
    (tmp_path / "run" / "held.json").write_text(text)
    with pytest.raises(FedmmError, match=r"held\.json cannot be read, so it is unknown how the run was started"):
        run_experiment(small(), tmp_path / "run", resume=True)


def test_an_unwritable_folder_stops_the_run_and_keeps_the_last_checkpoint(tmp_path: Path) -> None:
    each = small()
    run_until(each, tmp_path / "run", 5)
    before = checkpoints_in(tmp_path / "run")
    blocked = tmp_path / "run" / FOLDER / "round-00000006.safetensors.partial"
    blocked.mkdir()  # nothing can be written under that name
    with pytest.raises(FedmmError, match="cannot be written"):
        run_experiment(each, tmp_path / "run", progress=False, resume=True)
    blocked.rmdir()
    assert [name for name in checkpoints_in(tmp_path / "run") if name in before]
    run_experiment(each, tmp_path / "whole", progress=False)
    run_experiment(each, tmp_path / "run", progress=False, resume=True)
    assert model_in(tmp_path / "run") == model_in(tmp_path / "whole")


@pytest.mark.parametrize("name", ["run", "run-2", "run-3"])
def test_the_latest_of_several_folders_is_resumed(tmp_path: Path, name: str) -> None:
    for each in ("run", "run-2", "run-3"):
        (tmp_path / each).mkdir()
        if each == name:
            break
    assert latest_folder(tmp_path / "run") == tmp_path / name


PROGRAM = """
import sys, time
from pathlib import Path
from fedmm.config.schema import experiment
from fedmm.runs.run import run_experiment
from fedmm.config.toml import read_toml

def hold(row):
    while row["round"] == 149:
        time.sleep(1)

run_experiment(experiment(read_toml(Path(sys.argv[1]))), Path(sys.argv[2]), progress=False, resume=True, on_round=hold)
"""


@pytest.mark.processes
def test_sigkill_at_random_moments_changes_nothing(tmp_path: Path) -> None:
    """Killed many times in one run, also while a checkpoint is written; each time the next process goes on.

    A process that is faster than the kills waits for its own before the last round.
    """
    plan = tables(run={"rounds": 150, "keep_checkpoints": 2})
    (tmp_path / "plan.toml").write_text(write_toml(plan))
    run_experiment(experiment(plan), tmp_path / "whole", progress=False)
    draw = random.Random(0)
    with template() as interpreter:
        for _ in range(8):
            process = interpreter.start(PROGRAM, "plan.toml", "killed", folder=tmp_path)
            time.sleep(draw.uniform(0.1, 0.8))
            assert process.poll() is None
            process.kill()
    run_experiment(experiment(plan), tmp_path / "killed", progress=False, resume=True)
    assert model_in(tmp_path / "killed") == model_in(tmp_path / "whole")
    assert rows_of(tmp_path / "killed") == rows_of(tmp_path / "whole")
