"""Which finalist wins, on made-up signals, and what is read of a rung's runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from fedmm.core.label_shift import LabelShift
from fedmm.runs.evidence import shift_table
from fedmm.runs.ranking import Measured
from fedmm.runs.rung_results import Results, choose_finalist, read_results, tabulate

MIXES = torch.tensor([0.5, 0.5], dtype=torch.float64)
SAME_MIX = shift_table(LabelShift(MIXES, MIXES, 0.0, True, 0.0, 0.05), ("a", "b"))


def runs(*information: float, risk: float = 0.5) -> list[Measured]:
    return [Measured({"target_information": x, "target_bnm": x, "source_risk": risk}) for x in information]


def results(shift: dict[str, Any] | None = SAME_MIX, **measured: list[Measured]) -> Results:
    return Results({"source only": runs(0.2, 0.3, 0.25), **measured}, 10, shift)


def test_of_those_that_are_supported_the_best_mean_rank_wins() -> None:
    choice = choose_finalist(results(one=runs(0.5, 0.5, 0.5), two=runs(0.6, 0.6, 0.4), odd=runs(0.9, 0.9, 0.1)), {})
    assert (choice.label, choice.adapted, choice.supported) == ("two", "two", True)
    assert choice.sentence.startswith("Use two, of 2 candidates that the evidence supports the best by mean rank:")


def test_source_only_wins_where_the_rule_supports_none_and_the_best_that_adapts_is_named() -> None:
    choice = choose_finalist(results(one=runs(0.1, 0.6, 0.6)), {})
    assert (choice.label, choice.adapted, choice.supported) == ("source only", "one", False)
    assert choice.sentence.startswith("The evidence does not support adapting; use source only. The best that adapts")
    unsure = choose_finalist(results(None, one=runs(0.6, 0.6, 0.6)), {})
    assert (unsure.label, unsure.supported) == ("source only", None)


def test_a_veto_rules_out_what_the_rule_would_support() -> None:
    field = results(one=runs(0.6, 0.6, 0.6), two=runs(0.5, 0.5, 0.5))
    assert choose_finalist(field, {"one": "collapsed"}).label == "two"
    nobody = choose_finalist(field, {"one": "collapsed", "two": "source_risk"})
    assert (nobody.label, nobody.adapted) == ("source only", None)
    assert nobody.sentence.endswith("use source only. one: collapsed.")


def test_without_anything_measured_source_only_is_the_answer() -> None:
    assert choose_finalist(None, {}).label == "source only"


def write(folder: Path, status: str, rows: list[dict[str, Any]], **summary: Any) -> None:
    folder.mkdir(parents=True)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    about = {"kind": "run", "status": status, "rounds": len(rows), **summary}
    (folder / "summary.json").write_text(json.dumps(about), encoding="utf-8")


def test_runs_are_judged_after_the_last_round_that_all_were_evaluated_in(tmp_path: Path) -> None:
    def row(t: int, x: float | None) -> dict[str, Any]:
        return {"round": t, "target_information": x, "target_bnm": x, "target_accuracy": 1.0}

    write(tmp_path / "s", "completed", [row(1, 0.1), row(2, 0.2), row(3, 0.3), row(4, 0.4)], label_shift=SAME_MIX)
    write(tmp_path / "a", "interrupted", [row(1, 0.5), row(2, 0.3), row(3, None)])
    write(tmp_path / "b", "diverged", [row(1, 0.9)])
    write(tmp_path / "c", "completed", [row(1, 0.9), row(2, None)])
    names = {"source only": ["s"], "a": ["a"], "b": ["b"], "c": ["c"], "never begun": ["d"]}
    found = read_results(tmp_path, names)
    assert found.round == 2
    assert found.measured["source only"] == [Measured({"target_information": 0.2, "target_bnm": 0.2}, 0.2)]
    assert found.measured["a"] == [Measured({"target_information": 0.3, "target_bnm": 0.3}, 0.5)]
    assert found.measured["b"] == found.measured["c"] == [Measured(diverged=True)]
    assert found.measured["never begun"] == [Measured()]
    assert found.label_shift == SAME_MIX


def test_the_table_has_each_candidate_as_it_stood_in_its_last_rung() -> None:
    def entry(label: str, *information: float) -> dict[str, Any]:
        signals = [{"target_information": x} for x in information]
        return {"label": label, "runs": ["r"] * len(information), "signals": signals, "rank": 1.0, "veto": ""}

    rungs = [
        {"entries": [entry("a", 0.1), entry("b", 0.2), entry("c", 0.3)], "order": ["c", "b", "a"], "judged_after": 3},
        {"entries": [entry("b", 0.4, 0.6), entry("c", 0.3, 0.3)], "order": ["b", "c"], "judged_after": 9},
    ]
    rows = tabulate(rungs, ["a"])
    assert [(row["candidate"], row["rung"], row["rounds"]) for row in rows] == [("b", 2, 9), ("c", 2, 9), ("a", 1, 3)]
    assert rows[0]["signals"]["target_information"] == {"mean": 0.5, "low": 0.4, "high": 0.6}
    assert rows[0]["signals"]["source_risk"] is None
    assert [row["always"] for row in rows] == [False, False, True]
