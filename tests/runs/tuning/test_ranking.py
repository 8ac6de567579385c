"""Vetoes and mean ranks of candidates, on made-up signals."""

from __future__ import annotations

import pytest

from fedmm.runs.tuning.ranking import Measured, believed_agreement, find_vetoes, keep_agreeing, rank_candidates


def run(information: float, risk: float | None = 0.5, *, bnm: float | None = None, best: float = 0.0) -> Measured:
    signals = {"target_information": information, "target_bnm": information if bnm is None else bnm}
    return Measured(signals | ({} if risk is None else {"source_risk": risk}), max(best, information))


FIELD = {"source only": [run(0.5)], "good": [run(0.8)], "fair": [run(0.6)]}


def test_nothing_is_wrong_with_a_field_of_good_candidates() -> None:
    assert find_vetoes(FIELD, "source only") == {}
    assert list(rank_candidates(FIELD, {})) == ["good", "fair", "source only"]


@pytest.mark.parametrize(
    ("runs", "why"),
    [
        ([Measured(diverged=True)], "1 of 1 runs diverged"),
        ([Measured()], "not measured"),
        ([run(0.6, best=1.3)], "collapsed: target_information fell from 1.3 to 0.6"),
        ([run(0.001, best=0.04)], "target_information never rose above 0.04, near 0"),
        ([run(0.44)], "target_information 0.44 is below source only's, 0.5"),
        ([run(0.9, risk=0.81)], "source_risk 0.81 is nearer to chance than to the best, 0.5"),
        ([run(0.9), run(0.9, best=2.0)], "collapsed: target_information fell from 2 to 0.9"),
    ],
)
def test_a_veto_says_why(runs: list[Measured], why: str) -> None:
    assert find_vetoes({**FIELD, "bad": runs}, "source only", classes=3) == {"bad": why}


def test_a_little_below_source_only_is_no_veto() -> None:
    assert find_vetoes({**FIELD, "near": [run(0.46, risk=0.79)]}, "source only", classes=3) == {}


def test_a_source_risk_is_no_veto_where_chance_is_not_known() -> None:
    assert find_vetoes({**FIELD, "risky": [run(0.9, risk=9.0)]}, "source only") == {}


def test_a_source_risk_is_no_veto_where_none_is_better_than_guessing() -> None:
    field = {"source only": [run(0.5, risk=1.1)], "a": [run(0.8, risk=1.2)], "b": [run(0.8, risk=1.3)]}
    assert find_vetoes(field, "source only", classes=2) == {}


def test_those_with_a_veto_come_after_the_others_and_the_unmeasured_last() -> None:
    field = {"gone": [Measured(diverged=True)], "risky": [run(0.95, risk=2.0)], **FIELD}
    vetoes = find_vetoes(field, "source only", classes=2)
    assert list(rank_candidates(field, vetoes)) == ["good", "fair", "source only", "risky", "gone"]


def test_ranks_are_averaged_over_validators_and_seeds() -> None:
    field = {
        "a": [run(0.9, risk=0.6, bnm=0.5), run(0.9, risk=0.6, bnm=0.5)],
        "b": [run(0.8, risk=0.5, bnm=0.6), run(1.0, risk=0.5, bnm=0.6)],
    }
    assert rank_candidates(field, {}) == {"b": pytest.approx(7 / 6), "a": pytest.approx(11 / 6)}


def test_equals_share_a_rank_and_keep_their_order() -> None:
    field = {"first": [run(0.7)], "second": [run(0.7)], "third": [run(0.6)]}
    assert rank_candidates(field, {}) == {
        "first": pytest.approx(5 / 3),
        "second": pytest.approx(5 / 3),
        "third": pytest.approx(8 / 3),
    }


def test_a_validator_that_some_lack_does_not_count() -> None:
    field = {"a": [run(0.9, risk=None)], "b": [run(0.8, risk=0.1)]}
    assert list(rank_candidates(field, {})) == ["a", "b"]


def test_the_half_that_agrees_best_is_kept_in_its_order_and_never_fewer_than_two() -> None:
    agreement = {"a": 0.5, "b": 0.9, "c": 0.7, "d": 0.1, "e": 0.8}
    assert keep_agreeing(["a", "b", "c", "d", "e"], agreement) == ["b", "c", "e"]
    assert keep_agreeing(["d", "a", "b"], agreement) == ["a", "b"]
    assert keep_agreeing(["d", "a"], agreement) == ["d", "a"]
    assert keep_agreeing(["d", "unmeasured", "b"], agreement) == ["d", "unmeasured", "b"]
    assert keep_agreeing([], {}) == []


def test_seeds_are_believed_only_if_near_rows_agree_in_less_than_half_of_what_they_do() -> None:
    def field(near: float, seeds: float) -> dict[str, dict[str, float]]:
        return {label: {"neighbour_agreement": near, "seed_agreement": seeds} for label in "abc"}

    assert believed_agreement("abc", field(0.31, 0.6)) == "neighbour_agreement"
    assert believed_agreement("abc", field(0.29, 0.6)) == "seed_agreement"
    assert believed_agreement("abc", {label: {"neighbour_agreement": 0.1} for label in "abc"}) == "neighbour_agreement"
    assert believed_agreement("abc", {label: {"seed_agreement": 0.1} for label in "abc"}) is None
