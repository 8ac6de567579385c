"""What finished runs tell of label shift and of adapting: the rule on data whose class mix shifts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmm.config.schema import experiment
from fedmm.core.signals.label_shift import LabelShift, estimate_label_shift
from fedmm.core.signals.validators import RULE
from fedmm.data.datasets.arrays import Arrays
from fedmm.data.domains import DomainPair, Labelled
from fedmm.runs.evidence import (
    NO_SOURCE_ONLY,
    count_trained_test_rows,
    judge_runs,
    read_shift,
    shift_of_data,
    shift_table,
)
from fedmm.runs.run import run_experiment

HEART = Path(os.environ.get("FEDMM_DATA", "")) / "heart"
MIXES = torch.tensor([0.5, 0.5], dtype=torch.float64)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")


def cancer(source: float, target: float) -> dict[str, Any]:
    """scikit-learn's breast cancer as two halves, thinned to these shares of malignant tumours."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    malignant = 1 - data.target
    halves = np.array_split(np.random.default_rng(0).permutation(len(malignant)), 2)
    found = {}
    for name, half, share in zip(("source", "target"), halves, (source, target), strict=True):
        sick, well = half[malignant[half] == 1], half[malignant[half] == 0]
        rows = min(int(len(sick) / share), int(len(well) / (1 - share)))
        chosen = np.concatenate([sick[: round(rows * share)], well[: rows - round(rows * share)]])
        found |= {f"{name}_x": data.data[chosen].astype(np.float32), f"{name}_y": malignant[chosen]}
    return found


def load(folder: Path, arrays: dict[str, Any]) -> DomainPair:
    np.savez(folder / "rows.npz", **arrays)
    return Arrays(file=str(folder / "rows.npz"), held_out=0.3).load()


def test_a_class_mix_that_shifts_is_found_before_training(tmp_path: Path) -> None:
    found = shift_of_data(load(tmp_path, cancer(0.45, 0.70)))
    assert found is not None
    assert found.notable
    assert float(found.target[1]) == pytest.approx(0.70, abs=0.1)


def test_a_class_mix_that_stays_is_not_warned_of(tmp_path: Path) -> None:
    found = shift_of_data(load(tmp_path, cancer(0.45, 0.45)))
    assert found is not None
    assert not found.notable


@pytest.mark.skipif(not HEART.is_dir(), reason="FEDMM_DATA names no folder with heart/")
@pytest.mark.parametrize("target", HOSPITALS)
def test_the_mix_of_no_hospital_is_called_that_of_the_others(target: str, tmp_path: Path) -> None:
    tables = {name: np.genfromtxt(HEART / f"processed.{name}.data", delimiter=",") for name in HOSPITALS}
    source = np.concatenate([rows for name, rows in tables.items() if name != target])
    median = np.nanmedian(source[:, :13], axis=0)
    arrays = {}
    for name, rows in (("source", source), ("target", tables[target])):
        x = np.where(np.isnan(rows[:, :13]), median, rows[:, :13])
        arrays |= {f"{name}_x": x.astype(np.float32), f"{name}_y": (rows[:, 13] > 0).astype(np.int64)}
    found = shift_of_data(load(tmp_path, arrays))
    assert found is not None
    assert not found.small


def test_pictures_and_few_rows_are_not_guessed_at() -> None:
    rows = Labelled(torch.zeros(30, 1, 4, 4), torch.arange(30) % 2)
    assert shift_of_data(DomainPair(rows, rows, rows, None, ("a", "b"))) is None
    few = Labelled(torch.zeros(5, 4), torch.arange(5) % 2)
    assert shift_of_data(DomainPair(few, few, few, None, ("a", "b"))) is None


def test_test_rows_that_are_trained_on_are_counted(tmp_path: Path) -> None:
    arrays = cancer(0.45, 0.70)
    everything = load(tmp_path, arrays)
    assert count_trained_test_rows(everything) == len(everything.target.y)
    apart = Arrays(file=str(tmp_path / "rows.npz"), target_held_out=0.3).load()
    assert count_trained_test_rows(apart) == 0


def test_a_run_warns_of_label_shift_and_says_what_was_tested_on(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", **cancer(0.45, 0.70))
    said: list[str] = []
    given = experiment(
        {
            "run": {"rounds": 40, "evaluate_every": 40, "best_by": ""},
            "data": {"name": "arrays", "file": str(tmp_path / "rows.npz"), "held_out": 0.3},
            "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [8]},
            "objective": {"name": "source_only"},
            "algorithm": {"name": "fedavg_gda", "lr_min": 0.05, "lr_max": 0.05},
        }
    )
    summary = run_experiment(given, tmp_path / "run", progress=False, say=said.append)
    assert summary["label"] == "source only"
    assert summary["label_shift"]["notable"]
    assert summary["tested_rows_trained_on"] == 0  # source only: no target row is trained on
    assert any(line.startswith("warning: label shift: from source to target the share of '1' 4") for line in said)


def runs(
    label: str, objective: str, information: float, *, shift: Any = None, seeds: int = 3, **more: Any
) -> list[dict[str, Any]]:
    return [
        {
            "status": "completed", "label": label, "objective": objective, "partition": "source_target", "seed": seed,
            "target_information": information, "target_bnm": information, "source_risk": 0.2, "label_shift": shift,
            "rounds": 10, **more,
        }
        for seed in range(seeds)
    ]  # fmt: skip


def test_verdicts_are_on_everything_beside_source_only() -> None:
    p = torch.eye(2).double()[torch.arange(400) % 2] * 0.98 + 0.01
    none = shift_table(estimate_label_shift(p, torch.arange(400) % 2, p), ("a", "b"))
    assert read_shift(none).small
    found = judge_runs(
        [*runs("plain", "source_only", 0.3, shift=none), *runs("up", "dann", 0.4), *runs("down", "cdan", 0.2)]
    )
    assert {each["label"]: each["supported"] for each in found["verdicts"]} == {"up": True, "down": False}
    assert found["verdicts"][0]["source_only"] == "plain"
    assert found["rule"] == RULE


def held(inputs: float = 0.1, **target: Any) -> dict[str, Any]:
    """The fingerprint of some rows."""
    part = {"rows": 40, "classes": "c", "inputs": [inputs, 1.0]}
    return {"source": part, "target": {**part, "classes": "", **target}}


@pytest.mark.parametrize(("other", "difference"), [({"rounds": 3}, "rounds"), ({"fingerprint": held(rows=30)}, "rows")])
def test_runs_of_other_rounds_or_rows_are_not_compared_with(other: dict[str, Any], difference: str) -> None:
    rows = {"fingerprint": held()}
    up, short = runs("up", "dann", 0.4, **rows), runs("short", "source_only", 0.1, **{**rows, **other})
    (alone,) = judge_runs([*short, *up])["verdicts"]
    assert (alone["supported"], alone["source_only"], alone["label_shift"]) == (None, None, None)
    assert alone["sentence"].endswith(f"did as many rounds on the same rows: short differs in {difference}")
    (beside,) = judge_runs([*short, *up, *runs("whole", "source_only", 0.5, **rows)])["verdicts"]
    assert beside["supported"] is False  # not higher than 0.5
    scaled = runs("scaled", "dann", 0.6, per_site=True, fingerprint=held(0.7))
    assert judge_runs([*scaled, *runs("whole", "source_only", 0.5, **rows)])["verdicts"][0]["supported"] is not False


def test_inputs_that_another_machine_computed_are_the_same_rows() -> None:
    plain = runs("plain", "source_only", 0.1, fingerprint=held())
    rounded = runs("up", "dann", 0.4, fingerprint=held(0.1 * (1.0 + 1e-7)))
    assert judge_runs([*plain, *rounded])["verdicts"][0]["source_only"] == "plain"


def test_runs_that_one_rule_ended_in_other_rounds_are_compared() -> None:
    def stopped(label: str, objective: str, rounds: list[int], **rule: Any) -> list[dict[str, Any]]:
        may_stop = {"rounds": 100, "stop_by": "source_risk", "patience": 50, **rule}
        each = runs(label, objective, 0.1, may_stop=may_stop)
        return [run | {"rounds": many} for run, many in zip(each, rounds, strict=True)]

    plain, up = stopped("plain", "source_only", [100] * 3), stopped("up", "dann", [72, 63, 44])
    assert judge_runs([*plain, *up])["verdicts"][0]["source_only"] == "plain"
    other = stopped("other", "source_only", [100] * 3, patience=10)
    (alone,) = judge_runs([*other, *up])["verdicts"]
    assert alone["sentence"].endswith(": other differs in rounds")


def test_each_verdict_says_what_it_compared_with() -> None:
    low, high = (shift_table(LabelShift(MIXES, MIXES, 0.0, True, 0.0, high), ("a", "b")) for high in (0.05, 0.3))
    short = runs("short", "source_only", 0.1, shift=high, source_risk=0.1)
    whole = runs("whole", "source_only", 0.1, shift=low, rounds=20)
    found = judge_runs([*short, *whole, *runs("a", "dann", 0.4), *runs("b", "dann", 0.4, rounds=20)])["verdicts"]
    assert [(each["label"], each["source_only"], each["label_shift"]) for each in found] == [
        ("a", "short", high), ("b", "whole", low),
    ]  # fmt: skip


def test_what_adapts_to_nothing_is_neither_judged_nor_compared_with() -> None:
    plain, up, ranked = (
        runs(*each) for each in (("none", "source_only", 0.1), ("up", "dann", 0.4), ("auc", "auc", 0.4))
    )
    assert [each["label"] for each in judge_runs([*plain, *up, *ranked])["verdicts"]] == ["up"]
    assert judge_runs([*up, *ranked])["verdicts"] == []
    assert judge_runs(ranked)["note"] == ""


def test_without_a_source_only_run_nothing_is_judged() -> None:
    found = judge_runs(runs("up", "dann", 0.4))
    assert found["verdicts"] == []
    assert found["note"] == NO_SOURCE_ONLY
    supervised = [each | {"partition": "target_supervised"} for each in runs("bound", "source_only", 0.5)]
    assert judge_runs([*supervised, *runs("up", "dann", 0.4)])["verdicts"] == []
    assert judge_runs([])["verdicts"] == []
