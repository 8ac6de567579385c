"""Which finalist wins, on made-up signals, and what is read of a rung's runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmm.core.errors import FedmmError
from fedmm.core.signals.label_shift import LabelShift
from fedmm.runs.evidence import shift_table
from fedmm.runs.tuning.ranking import Measured
from fedmm.runs.tuning.rung_results import Results, choose_finalist, find_judged_rung, read_results, tabulate
from fedmm.runs.tuning.state import Entry, RungResult

MIXES = torch.tensor([0.5, 0.5], dtype=torch.float64)
SAME_MIX = shift_table(LabelShift(MIXES, MIXES, 0.0, True, 0.0, 0.05), ("a", "b"))


def runs(*information: float, risk: float = 0.5) -> list[Measured]:
    return [Measured({"target_information": x, "target_bnm": x, "source_risk": risk}) for x in information]


OTHER_MIX = {**SAME_MIX, "distance": 0.3, "low": 0.2, "high": 0.4, "notable": True}


def results(
    shift: dict[str, Any] | None = SAME_MIX, agree: dict[str, float] | None = None, **own: list[Measured]
) -> Results:
    agreement = {label: {"neighbour_agreement": value} for label, value in (agree or {}).items()}
    return Results({"source only": runs(0.2, 0.3, 0.25), **own}, 10, shift, agreement)


FINALISTS = {f"c{n}": runs(*[0.9 - n / 10] * 3) for n in range(6)}
"""Ranked in this order, before source only: four of seven are the half that agrees best."""


def test_of_the_half_that_agrees_best_with_near_rows_the_best_mean_rank_wins() -> None:
    agree = {"c0": 0.3, "c1": 0.6, "c2": 0.5, "c3": 0.9, "c4": 0.7, "c5": 0.1, "source only": 0.8}
    choice = choose_finalist(results(agree=agree, **FINALISTS), {})
    assert (choice.label, choice.adapted, choice.supported) == ("c1", "c1", True)
    assert choice.sentence.startswith("Use c1, which has the best mean rank by target_information")
    assert "of the 4 of 7 finalists whose predictions agree best" in choice.sentence
    assert choice.sentence.endswith("(neighbour_agreement 0.600).")


def test_a_choice_whose_predictions_agree_by_chance_says_so() -> None:
    agree = {**dict.fromkeys(FINALISTS, 0.0), "c1": 0.2, "source only": 0.0}
    choice = choose_finalist(results(agree=agree, **FINALISTS), {})
    assert choice.sentence.endswith("more than by chance, so that little speaks for it.")
    sure = choose_finalist(results(agree=dict.fromkeys(agree, 0.21), **FINALISTS), {})
    assert "chance" not in sure.sentence


def test_the_sentence_names_no_signal_that_was_not_measured() -> None:
    plain = [Measured({"target_information": 0.5, "target_bnm": 0.5})] * 3
    better = [Measured({"target_information": 0.6, "target_bnm": 0.6})] * 3
    choice = choose_finalist(Results({"source only": plain, "c0": better}, 10, None, {}), {})
    assert "the best mean rank by target_information, target_bnm of the finalists" in choice.sentence


def test_without_agreement_the_best_mean_rank_wins() -> None:
    assert choose_finalist(results(None, **FINALISTS), {}).label == "c0"
    assert choose_finalist(results(agree={"c1": 0.9}, **FINALISTS), {}).label == "c0"


def test_if_near_rows_hardly_ever_agree_seeds_are_believed() -> None:
    near = dict.fromkeys(["source only", *FINALISTS], 0.1)
    seeds = {"source only": 0.3, "c0": 0.4, "c1": 0.2, "c2": 0.9, "c3": 0.5, "c4": 0.8, "c5": 0.1}
    field = results(**FINALISTS)
    both = {label: {"neighbour_agreement": near[label], "seed_agreement": seeds[label]} for label in near}
    choice = choose_finalist(Results(field.measured, field.round, field.label_shift, both), {})
    assert choice.label == "c0"  # of c0, c2, c3 and c4
    assert choice.sentence.endswith("agree best with those of another seed (seed_agreement 0.400).")


def test_source_only_wins_if_it_agrees_better_and_has_the_lower_source_risk() -> None:
    agree = {"source only": 0.9, "one": 0.8}
    choice = choose_finalist(results(agree=agree, one=runs(0.9, 0.9, 0.9, risk=0.6)), {})
    assert (choice.label, choice.adapted, choice.supported) == ("source only", "one", False)
    assert "(neighbour_agreement 0.900, not 0.800), and its source_risk is lower" in choice.sentence
    assert choose_finalist(results(agree=agree, one=runs(0.9, 0.9, 0.9)), {}).label == "one"
    less = {"source only": 0.7, "one": 0.8}
    assert choose_finalist(results(agree=less, one=runs(0.9, 0.9, 0.9, risk=0.6)), {}).label == "one"


def test_source_only_wins_where_the_class_mix_is_reliably_estimated_to_differ() -> None:
    choice = choose_finalist(results(OTHER_MIX, **FINALISTS), {})
    assert (choice.label, choice.adapted, choice.supported) == ("source only", "c0", False)
    assert "class mix is estimated to differ from the source's in 30% of the rows" in choice.sentence
    rough = choose_finalist(results({**OTHER_MIX, "reliable": False}, **FINALISTS), {})
    assert rough.label == "c0"
    assert rough.sentence.endswith("The class mix of the target may differ, which was estimated roughly.")


def test_fewer_than_three_seeds_are_not_enough_to_adapt() -> None:
    few = {"one": runs(0.9, 0.9), "two": runs(0.8, 0.8)}
    choice = choose_finalist(results(**few), {})
    assert (choice.label, choice.adapted, choice.supported) == ("source only", "one", None)
    assert (
        "3 seeds of each finalist are needed, not 2; use source only. The best that adapts is one." in choice.sentence
    )


def test_a_veto_rules_out_what_would_win() -> None:
    field = results(one=runs(0.6, 0.6, 0.6), two=runs(0.5, 0.5, 0.5))
    assert choose_finalist(field, {"one": "collapsed"}).label == "two"
    nobody = choose_finalist(field, {"one": "collapsed", "two": "source_risk"})
    assert (nobody.label, nobody.adapted) == ("source only", None)
    assert nobody.sentence.endswith("use source only. one: collapsed.")


def test_where_source_only_diverged_and_nothing_else_is_left_nothing_is_to_be_used() -> None:
    vetoes = {"source only": "3 of 3 runs diverged", "as given": "1 of 3 runs diverged"}
    choice = choose_finalist(Results({label: [Measured(diverged=True)] * 3 for label in vetoes}, 0, None), vetoes)
    assert (choice.label, choice.adapted, choice.supported) == ("", None, None)
    assert choice.sentence.startswith("Nothing could be trained: 2 of 2 candidates diverged; use smaller learning rate")
    beside = {**results(one=runs(0.1, 0.1, 0.1)).measured, "source only": [Measured(diverged=True)] * 3}
    collapsed = choose_finalist(Results(beside, 10, None), {"source only": "3 of 3 runs diverged", "one": "collapsed"})
    assert collapsed.label == ""
    assert "1 of 2 candidates diverged, and the others are ruled out too" in collapsed.sentence


def test_source_only_that_diverged_is_not_advised_for_lack_of_seeds() -> None:
    field = {"source only": [Measured(diverged=True)], "one": runs(0.9)}
    choice = choose_finalist(Results(field, 10, None), {"source only": "1 of 1 runs diverged"})
    assert (choice.label, choice.supported) == ("one", None)


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
    assert found.measured["b"] == [Measured(diverged=True)]
    assert found.measured["c"] == [Measured()]  # it ended, and could not be measured
    assert found.measured["never begun"] == [Measured()]
    assert found.label_shift == SAME_MIX


@pytest.mark.parametrize("name", ["rounds.jsonl", "summary.json"])
@pytest.mark.parametrize(
    "damage",
    [b'{"round": 1, "targ', b"\xff\xfe", b"[" * 100_000, b"[1]"],
    ids=["torn", "not UTF-8", "deep", "a list"],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, damage: bytes) -> None:
    write(tmp_path / "a", "completed", [], rounds=1)
    (tmp_path / "a" / name).write_bytes(damage)
    with pytest.raises(FedmmError, match=rf"a/{name} is damaged; if another tuning is under way"):
        read_results(tmp_path, {"source only": ["a"]})


def test_the_table_has_each_candidate_as_it_stood_in_its_last_rung() -> None:
    def entry(label: str, *information: float) -> Entry:
        return Entry(label, ["r"] * len(information), [{"target_information": x} for x in information], 0, 1.0, "")

    first, second = [entry("a", 0.1), entry("b", 0.2), entry("c", 0.3)], [entry("b", 0.4, 0.6), entry("c", 0.3, 0.3)]
    rungs = [
        RungResult("rung-1", 3, 3, "completed", ["c", "b", "a"], first),
        RungResult("rung-2", 9, 9, "completed", ["b", "c"], second),
    ]
    rows = tabulate(rungs, ["a"])
    assert [(row["candidate"], row["rung"], row["rounds"]) for row in rows] == [("b", 2, 9), ("c", 2, 9), ("a", 1, 3)]
    assert rows[0]["signals"]["target_information"] == {"mean": 0.5, "low": 0.4, "high": 0.6}
    assert rows[0]["signals"]["source_risk"] is None
    assert [row["always"] for row in rows] == [False, False, True]


def test_where_source_only_diverged_nothing_is_judged_and_the_best_that_adapts_is_taken() -> None:
    found = results(agree=None, **FINALISTS)
    field = {**found.measured, "source only": [Measured(diverged=True)] * 3}
    choice = choose_finalist(Results(field, 10, None), {"source only": "3 of 3 runs diverged"})
    assert (choice.label, choice.adapted, choice.supported) == ("c0", "c0", None)
    assert "source only, with which it would be compared, is ruled out: 3 of 3 runs diverged" in choice.sentence


def test_where_nothing_that_adapts_was_measured_nothing_is_ruled_out() -> None:
    field = {"source only": runs(0.2, 0.3, 0.25), "a": [Measured()], "b": [Measured()]}
    choice = choose_finalist(Results(field, 10, SAME_MIX), {"a": "not measured", "b": "not measured"})
    assert (choice.label, choice.adapted, choice.supported) == ("source only", None, None)
    assert "no candidate that adapts was measured" in choice.sentence


def rung(rounds: int, after: int, *, status: str = "completed", unmeasured: bool = False) -> RungResult:
    signals: list[list[dict[str, float]]] = [[{"target_information": 0.5}], [{} if unmeasured else {"x": 0.5}]]
    entries = [Entry(label, ["r"], own, 0, 1.0, "") for label, own in zip("ab", signals, strict=True)]
    return RungResult("rung", rounds, after, status, ["a", "b"], entries)


@pytest.mark.parametrize(
    ("rungs", "which"),
    [
        ([], None),
        ([rung(30, 9, status="out of time")], None),
        ([rung(30, 10, status="out of time")], 0),
        ([rung(10, 10), rung(30, 9, status="out of time")], 0),
        ([rung(10, 10), rung(30, 12, status="out of time")], 1),
        ([rung(10, 10), rung(30, 30, status="out of time", unmeasured=True)], 0),
        ([rung(10, 10), rung(30, 30)], 1),
    ],
)
def test_a_rung_that_was_cut_short_is_judged_if_it_went_far_enough(rungs: list[RungResult], which: int | None) -> None:
    assert find_judged_rung(rungs) is (None if which is None else rungs[which])
