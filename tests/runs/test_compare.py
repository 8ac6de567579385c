"""One table and one verdict on the methods for one's own data; labels of the target choose nothing."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmm.core.signals.label_shift import LabelShift
from fedmm.reporting.compared import csv_compared, draw_compared, rich_compared, sentences, write_markdown
from fedmm.runs import sweep as sweeping
from fedmm.runs.compare import compare_methods, judge_candidates, labels_say
from fedmm.training import batched as stack
from fedmm.training.batched import StackSettings
from fedmm.training.progress import RunsProgress
from fedmm.training.stack_settings import Tuned

MIXES = torch.tensor([0.5, 0.5], dtype=torch.float64)
SAME_MIX = LabelShift(MIXES, MIXES, 0.0, True, 0.0, 0.05)
OTHER_MIX = LabelShift(MIXES, torch.tensor([0.8, 0.2], dtype=torch.float64), 0.3, True, 0.2, 0.4)
TABLES: dict[str, Any] = {
    "run": {"rounds": 2, "batch_size": 8},
    "data": {"name": "moons", "rows": 60, "test_rows": 30},
    "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [4]},
    "objective": {"name": "dann"},
    "algorithm": {"name": "fedmm_smoothed", "local_steps": 2},
}


@pytest.fixture(autouse=True)
def _in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))


def entry(label: str, information: list[float], risk: float = 0.5, **measures: list[float]) -> dict[str, Any]:
    """A candidate with a run for each value."""
    seeds = len(information)
    found = {"target_information": information, "target_bnm": information, "source_risk": [risk] * seeds, **measures}
    return {"label": label, "runs": [f"{label}-{n}" for n in range(seeds)], "diverged": 0, "measures": found}


def judged(*entries: dict[str, Any], shift: LabelShift | None = SAME_MIX) -> dict[str, Any]:
    return judge_candidates([entry("source only", [0.2, 0.3, 0.25]), *entries], shift)


# The verdict ----------------------------------------------------------------------------------------------------------


def test_of_those_that_are_supported_the_highest_in_information_is_named() -> None:
    found = judged(entry("one", [0.4, 0.5, 0.4]), entry("two", [0.5, 0.6, 0.5]), entry("unsure", [0.1, 0.9, 0.9]))
    assert found["supported"] is True
    assert found["use"] == "two"
    assert found["sentence"].startswith(
        "Use two, of 2 that it supports the highest in target_information: the evidence"
    )


def test_where_nothing_is_supported_source_only_is_named_with_what_speaks_against_the_nearest() -> None:
    found = judged(entry("worse", [0.1, 0.1, 0.1]), entry("risky", [0.6, 0.6, 0.6], risk=0.9))
    assert found["supported"] is False
    assert found["use"] == "source only"
    assert found["sentence"].startswith(
        "The evidence does not support adapting; use source only. risky: source_risk rose"
    )


def test_label_shift_speaks_against_every_candidate() -> None:
    found = judged(entry("tempting", [0.9, 0.9, 0.9]), shift=OTHER_MIX)
    assert found["supported"] is False
    assert "class mix is estimated to differ" in found["sentence"]


def test_too_few_seeds_are_not_judged() -> None:
    found = judge_candidates([entry("source only", [0.2]), entry("one", [0.9])], SAME_MIX)
    assert found["supported"] is None
    assert found["use"] == "source only"
    assert found["sentence"].startswith("Whether adapting helps cannot be judged; use source only. one: 3 seeds")


def test_a_candidate_with_a_diverged_run_is_not_supported() -> None:
    broken = {**entry("broken", [0.9, 0.9, 0.9]), "diverged": 1, "measures": {"target_information": [0.9, None, 0.9]}}
    found = judged(broken)
    assert found["supported"] is False
    assert "1 of 3 runs of broken diverged" in found["sentence"]
    found = judge_candidates([{**broken, "label": "source only"}, entry("one", [0.9, 0.9, 0.9])], SAME_MIX)
    assert found["supported"] is None


@pytest.mark.parametrize(
    ("after", "supported", "word"),
    [
        ([0.8, 0.9, 0.8], True, "agree:"),
        ([0.5, 0.4, 0.5], True, "disagree:"),
        ([0.5, 0.4, 0.5], False, "agree:"),
        ([0.8, 0.9, 0.8], False, "disagree:"),
        ([0.5, 0.8, 0.8], False, "cannot tell the two apart:"),
        ([0.8, 0.9, 0.8], None, "could have judged:"),
    ],
)
def test_labels_of_the_target_only_say_whether_they_agree(
    after: list[float], supported: bool | None, word: str
) -> None:
    entries = [entry("source only", [0.0] * 3, target_accuracy=[0.7, 0.6, 0.7]), entry("one", [0.0] * 3)]
    verdict = {"supported": supported, "use": "one" if supported else "source only", "nearest": "one"}
    assert labels_say(entries, verdict) is None
    entries[1]["measures"]["target_accuracy"] = after
    said = labels_say(entries, verdict)
    assert said is not None
    assert f"which chose nothing here, {word}" in said
    assert "the oracle's choice is" in said


def test_target_labels_do_not_move_the_verdict() -> None:
    right, wrong = (entry("one", [0.4] * 3, target_accuracy=[share] * 3) for share in (1.0, 0.0))
    assert judged(right) == judged(wrong)


# The runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("compare") / "all"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
        found = compare_methods(TABLES, folder, title="moons", objectives=["dann", "mdd"], progress=False)
    assert found is not None
    return folder, found


def test_every_candidate_has_every_validator_that_it_can_be_measured_by(compared: tuple[Path, dict[str, Any]]) -> None:
    folder, table = compared
    assert json.loads((folder / "compare.json").read_text()) == table
    found = {entry["label"]: set(entry["measures"]) for entry in table["candidates"]}
    without = {
        "target_accuracy", "source_accuracy", "target_information", "target_entropy", "target_bnm", "target_snd",
        "target_auroc",
    }  # fmt: skip
    assert found["source only"] == found["per-site standardisation"] == found["fedavg_gda + mdd"] == without
    assert found["fedmm_smoothed + dann"] == without | {"domain_accuracy", "proxy_a_distance"}
    assert all(len(values) == 3 for entry in table["candidates"] for values in entry["measures"].values())


def test_the_candidates_make_a_program_of_each_objective_plain_and_restrained(
    compared: tuple[Path, dict[str, Any]],
) -> None:
    plan = json.loads((compared[0] / "plan.json").read_text())
    assert len(plan["programs"]) == 4


def test_without_source_rows_set_aside_the_verdict_says_so(compared: tuple[Path, dict[str, Any]]) -> None:
    table = compared[1]
    assert table["verdict"]["use"] == "source only"
    assert table["verdict"]["supported"] is not True


def test_the_table_goes_to_terminal_markdown_and_csv(compared: tuple[Path, dict[str, Any]]) -> None:
    table = compared[1]
    markdown = write_markdown(table)
    for sentence in sentences(table):
        assert sentence in markdown
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    assert len(lines) == 2 + len(table["candidates"])
    assert len({line.count("|") for line in lines}) == 1
    assert rich_compared(table, 80).row_count == len(table["candidates"])
    rows = list(csv.DictReader(csv_compared(table).splitlines()))
    assert len(rows) == 3 * len(table["candidates"])
    for row in rows:
        entry = next(entry for entry in table["candidates"] if entry["label"] == row["candidate"])
        assert float(row["target_information"]) == entry["measures"]["target_information"][int(row["seed"])]
        assert (row["domain_accuracy"] == "") == ("domain_accuracy" not in entry["measures"])


def test_where_all_runs_diverged_there_is_a_picture_that_says_so(compared: tuple[Path, dict[str, Any]]) -> None:
    folder, table = compared
    gone = [{**each, "measures": {}, "diverged": len(each["runs"])} for each in table["candidates"]]
    other = folder.parent / "diverged"
    other.mkdir()
    (other / "compare.json").write_text(json.dumps({**table, "candidates": gone}))
    assert draw_compared(other).stat().st_size > 1000


def test_the_picture_depends_on_the_file_alone(compared: tuple[Path, dict[str, Any]]) -> None:
    folder = compared[0]
    first = draw_compared(folder).read_bytes()
    assert draw_compared(folder).read_bytes() == first


def test_a_comparison_that_was_stopped_goes_on_to_the_same_table(
    compared: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(6))

    def ctrl_c(*_: object) -> None:  # once all six runs of the first program have their first round
        if next(calls) == 5:
            raise KeyboardInterrupt

    wanted = {"title": "moons", "objectives": ["dann", "mdd"], "progress": False}
    with monkeypatch.context() as patch:
        patch.setattr(stack, "_FLUSH_SECONDS", -1.0)
        patch.setattr(RunsProgress, "__call__", ctrl_c)
        assert compare_methods(TABLES, tmp_path / "all", **wanted) is None
    assert not (tmp_path / "all" / "compare.json").exists()
    found = compare_methods(TABLES, tmp_path / "all", resume=True, **wanted)
    assert found is not None
    assert found["candidates"] == compared[1]["candidates"]


# The truth ------------------------------------------------------------------------------------------------------------


def arrays_of(path: Path, source: Any, target: Any) -> dict[str, Any]:
    (source_x, source_y), (target_x, target_y) = source, target
    np.savez(path, source_x=source_x, source_y=source_y, target_x=target_x, target_y=target_y)
    return {
        "run": {"rounds": 40, "batch_size": 32, "evaluate_every": 40},
        "data": {"name": "arrays", "file": str(path), "held_out": 0.3},
        "model": {"name": "mlp", "hidden": [16], "adversary_hidden": [8]},
        "algorithm": {"name": "fedmm_smoothed", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 10},
    }


def test_sites_whose_instruments_have_other_gains_are_to_be_standardised(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    gains = np.array([0.5, 0.5, 2.0, 2.0, 2.0, 2.0])
    parts = []
    for gain in (1.0, gains):
        y = np.arange(800) % 2
        x = random.normal(size=(800, 6))
        x[:, :2] += (2 * y - 1)[:, None]
        parts.append((gain * x, y))
    tables = arrays_of(tmp_path / "gains.npz", *parts)
    found = compare_methods(tables, tmp_path / "out", title="gains", objectives=["dann"], progress=False)
    assert found is not None
    assert found["verdict"]["supported"] is True
    assert found["verdict"]["use"] == "per-site standardisation"


def test_two_hospitals_with_other_shares_of_sick_are_not_to_be_adapted(tmp_path: Path) -> None:
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    malignant = 1 - data.target
    parts = []
    halves = np.array_split(np.random.default_rng(0).permutation(len(malignant)), 2)
    for half, share in zip(halves, (0.45, 0.7), strict=True):
        sick, well = half[malignant[half] == 1], half[malignant[half] == 0]
        rows = min(int(len(sick) / share), int(len(well) / (1 - share)))
        chosen = np.concatenate([sick[: round(rows * share)], well[: rows - round(rows * share)]])
        parts.append((data.data[chosen], malignant[chosen]))
    tables = arrays_of(tmp_path / "cancer.npz", *parts)
    found = compare_methods(tables, tmp_path / "out", title="cancer", objectives=["dann"], progress=False)
    assert found is not None
    assert found["verdict"]["supported"] is False
    assert "class mix is estimated to differ" in found["verdict"]["sentence"]
    assert found["label_shift"]["target"][1] == pytest.approx(0.7, abs=0.1)
    accuracy = {entry["label"]: np.mean(entry["measures"]["target_accuracy"]) for entry in found["candidates"]}
    assert accuracy["source only"] > 0.9


@pytest.mark.skipif("FEDMM_DATA" not in os.environ, reason="set FEDMM_DATA to a folder with heart/")
def test_heart_patients_of_another_hospital_are_not_to_be_adapted_to(tmp_path: Path) -> None:
    folder = Path(os.environ["FEDMM_DATA"]) / "heart"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not there")
    tables = {name: np.genfromtxt(folder / f"processed.{name}.data", delimiter=",") for name in ("cleveland", "va")}
    middle = np.nanmedian(tables["cleveland"][:, :13], axis=0)
    parts = [
        (np.where(np.isnan(rows[:, :13]), middle, rows[:, :13]), (rows[:, 13] > 0).astype(int))
        for rows in tables.values()
    ]
    given = arrays_of(tmp_path / "heart.npz", *parts)
    found = compare_methods(given, tmp_path / "out", title="heart", objectives=["dann"], progress=False)
    assert found is not None
    assert found["verdict"]["use"] == "source only"
