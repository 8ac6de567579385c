"""Sweeps leave the same runs that would have been run one by one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fedmm.config.sweep_grid import grid
from fedmm.core.errors import FedmmError
from fedmm.engines.batched import Batched
from fedmm.reporting import read_comparison
from fedmm.runs import sweep as sweeping
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import claim_folder
from fedmm.runs.sweep import run_sweep
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned, choose_settings, chunk_that_fits

TABLES: dict[str, Any] = {
    "run": {"rounds": 4, "batch_size": 8, "dtype": "float64", "evaluate_every": 2},
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [4], "head_dropout": 0.2},
    "objective": {"name": "dann"},
    "algorithm": {"name": "fedmm", "local_steps": 3},
    "sweep": {
        "run.seed": [0, 1],
        "algorithm": [{"name": "fedmm", "local_steps": 3}, {"name": "scaffold_gda", "local_steps": 2}],
    },
}


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def assert_same_rounds(folder: Path, expected: Path) -> None:
    for row, other in zip(rounds_of(folder), rounds_of(expected), strict=True):
        assert row.keys() == other.keys()
        for key, value in other.items():
            assert row[key] == (None if value is None else pytest.approx(value, rel=1e-9)), key


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweep") / "all"
    run_sweep(grid(TABLES), folder, title="all", progress=False)
    return folder


def test_every_run_is_what_it_would_have_been_alone(swept: Path, tmp_path: Path) -> None:
    for number, (each, run) in enumerate(zip(grid(TABLES), read_comparison(swept).runs, strict=True)):
        alone = tmp_path / str(number)
        run_experiment(each, alone, progress=False)
        assert_same_rounds(run.folder, alone)
        model, reference = (load_file(folder / "model.safetensors") for folder in (run.folder, alone))
        assert model.keys() == reference.keys()
        for name, tensor in model.items():
            torch.testing.assert_close(tensor, reference[name], rtol=1e-9, atol=1e-12)


def test_every_run_leaves_an_ordinary_folder(swept: Path) -> None:
    for run in read_comparison(swept).runs:
        assert {path.name for path in run.folder.iterdir()} == {
            "experiment.toml", "rounds.jsonl", "summary.json", "model.safetensors", "samples.safetensors",
            "boundary.safetensors", "checkpoints", "exhibits.safetensors", "model-best.safetensors",
            "held.json",
            "input.json",
        }  # fmt: skip
        summary = json.loads((run.folder / "summary.json").read_text())
        assert summary["engine"]["name"] == "batched"
        assert summary["precision"] == "fp32"


def test_the_plan_is_told_before_it_is_carried_out(tmp_path: Path) -> None:
    said: list[str] = []
    run_sweep(grid(TABLES), tmp_path / "x", title="x", progress=False, say=said.append)
    plan, *_ = said
    assert plan.startswith("4 runs in 1 program:\n  1. 4 runs of 4 rounds, mlp, dann, fedmm, scaffold_gda; measured")


@pytest.mark.parametrize("processes", [1, 2, pytest.param(2, marks=pytest.mark.processes, id="2 real")])
def test_processes_change_nothing(swept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    chosen = Tuned(StackSettings(looped=True, chunk=1), 1, processes, "as the test wants it")
    monkeypatch.setattr(sweeping, "choose_settings", lambda *given: chosen)
    run_sweep(grid(TABLES), tmp_path / "x", title="x", progress=False)
    for run, expected in zip(read_comparison(tmp_path / "x").runs, read_comparison(swept).runs, strict=True):
        assert_same_rounds(run.folder, expected.folder)


def test_a_sweep_in_a_folder_in_use_writes_nothing_there(tmp_path: Path) -> None:
    run_sweep(grid(TABLES), tmp_path / "x", title="x", progress=False)
    before = {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()}
    others = grid({**TABLES, "sweep": {"run.seed": [7, 8]}})
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with (
            claim_folder(tmp_path / "x", "plan.json", resume=True),
            pytest.raises(FedmmError, match="another process is at work in"),
        ):
            run_sweep(others, tmp_path / "x", title="x", progress=False, **options)
    assert {path: path.read_bytes() for path in (tmp_path / "x").rglob("*") if path.is_file()} == before


def test_a_run_that_diverges_is_named_and_the_others_are_kept(tmp_path: Path) -> None:
    tables = {**TABLES, "sweep": {"algorithm.lr_min": [0.01, 1e200]}}
    with pytest.raises(
        FedmmError, match=r"1 of 2 runs diverged, first fedmm lr_min=1e\+200, seed 0: client 'source-1'"
    ):
        run_sweep(grid(tables), tmp_path / "x", title="x", progress=False)
    statuses = [run.status for run in read_comparison(tmp_path / "x").runs]
    assert statuses == ["completed", "diverged"]


def test_a_single_run_may_be_batched(tmp_path: Path) -> None:
    each = grid({**TABLES, "sweep": {"run.seed": [3]}})[0]
    said: list[str] = []
    run_experiment(each, tmp_path / "reference", progress=False, say=said.append)
    batched = replace(each, run=replace(each.run, engine="batched"))
    run_experiment(batched, tmp_path / "batched", progress=False, say=said.append)
    engines = [line for line in said if line.startswith("engine")]
    assert engines[0].startswith("engine in_process: a single run on a CPU")
    assert engines[1] == "engine batched: as requested"
    assert_same_rounds(tmp_path / "batched", tmp_path / "reference")


def test_the_best_way_on_a_cpu_is_measured() -> None:
    experiments = grid(TABLES)
    cache = DataCache()
    tuned = choose_settings([prepare(each, cache) for each in experiments], "fp32")
    assert tuned.why.startswith("measured best: ")
    assert 1 <= tuned.threads * tuned.processes <= max(os.cpu_count() or 1, 1)


def test_threads_that_were_asked_for_are_used() -> None:
    cache = DataCache()
    adaptations = [prepare(each, cache) for each in grid(TABLES)]
    for threads in (1, 2):
        assert choose_settings(adaptations, "fp32", threads).threads == threads


def test_a_sweep_cannot_run_in_process(tmp_path: Path) -> None:
    each = [replace(e, run=replace(e.run, engine="in_process")) for e in grid(TABLES)]
    with pytest.raises(FedmmError, match=r"run\.engine must be 'auto' or 'batched' in a sweep"):
        run_sweep(each, tmp_path / "x", title="x", progress=False)
    assert not (tmp_path / "x").exists()


def test_chunks_hold_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    adaptation = prepare(grid(TABLES)[0], DataCache())
    assert chunk_that_fits([adaptation], "fp32", StackSettings()) == 2
    monkeypatch.setattr("fedmm.training.stack_settings._CPU_MEMORY", 1)
    assert chunk_that_fits([adaptation], "fp32", StackSettings()) == 1


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_in_a_round_leaves_readable_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, advance = iter(range(1, 10)), Batched.advance

    def advanced(stack: Batched) -> torch.Tensor:
        if next(rounds) == 3:
            signal.raise_signal(signal.SIGINT)
        return advance(stack)

    one = Tuned(StackSettings(), 1, 1, "as the test wants it")
    monkeypatch.setattr(sweeping, "choose_settings", lambda *given: one)
    monkeypatch.setattr(Batched, "advance", advanced)
    summary = run_sweep(grid(TABLES), tmp_path / "x", title="x", progress=False)
    assert summary["status"] == "interrupted"
    runs = read_comparison(tmp_path / "x").runs
    assert [run.status for run in runs] == ["interrupted"] * 4
    assert all(list(run.records) in ([1, 2], [1, 2, 3]) for run in runs)


@pytest.mark.processes
@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_leaves_readable_runs(tmp_path: Path) -> None:
    tables = tmp_path / "long.toml"
    tables.write_text(
        '[run]\nrounds = 1000000\n[data]\nname = "moons"\nrows = 40\ntest_rows = 20\n[model]\nname = "mlp"\n'
        'hidden = [4]\n[objective]\nname = "dann"\n[algorithm]\nname = "fedmm"\nlocal_steps = 1\n'
        '[sweep]\n"run.seed" = [0, 1]\n'
    )
    process = subprocess.Popen(
        [Path(sys.executable).with_name("fedmm"), "sweep", tables, "--out", tmp_path / "x"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 600
        while not all(map(_has_rounds, (tmp_path / "x" / f"fedmm-seed{seed}" for seed in (0, 1)))):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
    assert [run.status for run in read_comparison(tmp_path / "x").runs] == ["interrupted"] * 2


def _has_rounds(folder: Path) -> bool:
    path = folder / "rounds.jsonl"
    return path.exists() and path.stat().st_size > 0
