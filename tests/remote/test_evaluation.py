"""Measures from sums at sites: when a column is told, and what is refused, with sites in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from ray_federation import Federation

from fedmm.core.engine import FederatedState
from fedmm.core.metrics import Accuracy, Entropy, Metric, Risk, Seen, WorstAccuracy
from fedmm.core.signals.ranking import Ranking
from fedmm.remote.evaluation import MetricRequest, SiteMetrics, Summed, measure_at_site, pack_question, read_sums
from fedmm.remote.packed import MEASURE, PROBLEM, Malformed, Packed

CLASSES, MOST = 3, 100
ENTROPY: dict[str, Metric] = {"entropy": Entropy()}
BOTH: dict[str, Metric] = {**ENTROPY, "accuracy": Accuracy()}
PROBLEM_ = Federation().problem()


def seen(rows: int, seed: int = 0) -> Seen:
    generator = torch.Generator().manual_seed(seed)
    return Seen(
        torch.randn(rows, CLASSES, generator=generator), torch.randint(0, CLASSES, (rows,), generator=generator)
    )


class Sites:
    """rows: by site, how many it holds. away: who does not answer. answers: what others answer instead."""

    def __init__(self, rows: Mapping[str, int], wanted: Mapping[str, Mapping[str, Metric]]) -> None:
        self.rows, self.wanted = rows, wanted
        self.away: set[str] = set()
        self.said: list[str] = []
        self.measures = SiteMetrics(PROBLEM_, MetricRequest(wanted, CLASSES, MOST), self.ask, self.said.append)

    def own(self, name: str) -> Seen:
        return seen(self.rows[name], len(name) + ord(name[-1]))

    def ask(self, kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        assert kind == MEASURE
        return {name: self.answer(name, each) for name, each in questions.items() if name not in self.away}

    def answer(self, name: str, question: Packed) -> Packed:
        def sums(columns: object, z: torch.Tensor, statistics: object, edges: object) -> dict[str, Summed]:
            assert torch.equal(z, PROBLEM_.start)
            if not self.rows[name]:
                return {column: Summed.of_none(each, CLASSES) for column, each in self.wanted[name].items()}
            return {
                column: Summed(self.rows[name], each.sums(self.own(name))) for column, each in self.wanted[name].items()
            }

        return measure_at_site(name, PROBLEM_.layout, PROBLEM_.statistics, question, sums)

    def __call__(self, round_: int = 1) -> dict[str, float]:
        state = FederatedState(round_, {"z": PROBLEM_.start}, {}, PROBLEM_.statistics)
        return {column: float(value) for column, value in self.measures(state).items()}

    def expected(self, *names: str) -> float:
        total = sum(float(Entropy().sums(self.own(name))) for name in sorted(names))
        return total / sum(self.rows[name] for name in names)


def test_sums_of_sites_add_up_to_the_measure_of_all_rows() -> None:
    sites = Sites({"a": 30, "b": 12}, {"a": BOTH, "b": ENTROPY})
    found = sites()
    assert found["entropy"] == pytest.approx(sites.expected("a", "b"))
    assert found["accuracy"] == float(Accuracy().value(Accuracy().sums(sites.own("a")), 30))
    assert sites.said[0].startswith("round 1: measured by a, b in ")


def test_a_site_that_is_away_may_hold_a_tenth_of_the_rows_and_no_more() -> None:
    sites = Sites({"a": 90, "b": 10, "c": 20}, dict.fromkeys("abc", ENTROPY))
    sites.away = {"b"}
    assert sites() == {}  # it has never told how many it holds
    sites.away = set()
    assert sites()["entropy"] == pytest.approx(sites.expected("a", "b", "c"))
    sites.away = {"b"}
    assert sites()["entropy"] == pytest.approx(sites.expected("a", "c"))
    sites.away = {"c"}
    assert sites() == {}
    assert "what c measured is not counted: it did not answer" in sites.said[-2]
    assert sites.said[-1].endswith("; too few rows for entropy")


def test_a_site_with_too_few_rows_is_not_waited_for() -> None:
    sites = Sites({"a": 30, "b": 0}, {"a": ENTROPY, "b": ENTROPY})
    assert sites()["entropy"] == pytest.approx(sites.expected("a"))
    sites.away = {"b"}
    assert sites()["entropy"] == pytest.approx(sites.expected("a"))
    assert Sites({"a": 0}, {"a": ENTROPY})() == {}


def test_sums_that_are_too_large_together_leave_their_measure_out() -> None:
    risk: dict[str, Metric] = {"risk": Risk()}
    answer = Packed({"sums": np.array([10.0, 1.5e308])}, {"round": 1}, {})
    said: list[str] = []

    def ask(kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        return {name: answer._replace(about={"client": name, "round": 1}) for name in questions}

    measures = SiteMetrics(PROBLEM_, MetricRequest(dict.fromkeys("ab", risk), CLASSES, MOST), ask, said.append)
    assert measures(FederatedState(1, {"z": PROBLEM_.start}, {}, PROBLEM_.statistics)) == {}
    assert said[0] == "round 1: risk is left out: the sums of the sites make inf"


def test_the_worst_site_is_known_only_where_all_sites_answer() -> None:
    worst: dict[str, Metric] = {"worst": WorstAccuracy(1)}
    answers = {"a": [10.0, 9.0, 10.0], "b": [2.0, 1.0, 2.0], "c": [0.0, 0.0, 0.0]}  # c has fewer rows than it may tell

    def ask(kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        return {
            n: Packed({"sums": np.array(answers[n])}, {"client": n, "round": 1}, {}) for n in questions if n in answers
        }

    measures = SiteMetrics(PROBLEM_, MetricRequest(dict.fromkeys("abc", worst), CLASSES, MOST), ask)
    state = FederatedState(1, {"z": PROBLEM_.start}, {}, PROBLEM_.statistics)
    assert float(measures(state)["worst"]) == 0.5
    del answers["b"]  # a seventh of the rows, and yet the worst
    assert measures(state) == {}
    del answers["c"]
    answers["b"] = [2.0, 2.0, 2.0]
    assert float(measures(state)["worst"]) == 0.9


def test_nobody_is_asked_for_nothing() -> None:
    sites = Sites({}, {})
    assert sites() == {}
    assert sites.said == []


ABOUT: dict[str, int | float | str | bool] = {"client": "a", "round": 3}
GOOD = np.array([10.0, 3.0, 10.0, 4.0])


def changed(*by: float) -> Packed:
    return Packed({"sums": GOOD + np.array(by)}, dict(ABOUT), {})


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "it did not answer"),
        (Packed({}, {PROBLEM: "its disk\nis full"}, {}), "its disk is full"),
        (Packed({"sums": GOOD}, {**ABOUT, "client": "b"}, {}), "in the name of 'b'"),
        (Packed({"sums": GOOD}, {"client": "a"}, {}), "answers for round None, not 3"),
        (Packed({}, ABOUT, {}), "it sent no array"),
        (Packed({"sums": GOOD, "z": GOOD}, ABOUT, {}), "it sent sums, z, where"),
        (Packed({"sums": GOOD.astype(np.float32)}, ABOUT, {}), r"its sums are float32 of shape \(4,\), not float64"),
        (Packed({"sums": GOOD.reshape(2, 2)}, ABOUT, {}), r"of shape \(2, 2\), not float64 of shape \(4,\)"),
        (Packed({"sums": GOOD, "places": np.arange(4)}, ABOUT, {}), "its places are int64"),
        (Packed({"sums": GOOD, "places": np.int32([[0, 1, 2, 3]])}, ABOUT, {}), r"are int32 of shape \(1, 4\)"),
        (Packed({"sums": GOOD[:3], "places": np.int32([0, 1, 2, 3])}, ABOUT, {}), r"not float64 of shape \(4,\)"),
        (Packed({"sums": np.ones(5), "places": np.int32(range(5))}, ABOUT, {}), r"float64 of shape \(5,\)"),
        (Packed({"sums": GOOD, "places": np.int32([0, 1, 1, 3])}, ABOUT, {}), "not in order, or not below 4"),
        (Packed({"sums": GOOD, "places": np.int32([0, 1, 2, 4])}, ABOUT, {}), "not in order, or not below 4"),
        (Packed({"sums": GOOD, "places": np.int32([-1, 1, 2, 3])}, ABOUT, {}), "not in order, or not below 4"),
        (Packed({"places": np.int32([0])}, ABOUT, {}), "it sent places, where"),
        (Packed({"sums": GOOD * np.inf}, ABOUT, {}), "not all finite"),
        (changed(91, 0, 0, 0), "its entropy is over 101 rows, where a whole number"),
        (changed(-20, 0, 0, 0), "over -10 rows"),
        (changed(0.5, 0, 0, 0), "over 10.5 rows"),
        (changed(-10, 0, 0, 0), "its entropy has sums over no rows"),
        (changed(0, 0, 0, 7), "its sums for accuracy cannot be of 10 rows: it is not a number of rows"),
    ],
)  # fmt: skip
def test_what_a_site_may_not_answer_is_refused_with_a_reason(answer: Packed | None, words: str) -> None:
    panel = MetricRequest({"a": BOTH}, CLASSES, MOST)
    assert read_sums(panel, "a", 3, Packed({"sums": GOOD}, dict(ABOUT), {}))["accuracy"].rows == 10
    with pytest.raises(Malformed, match=words):
        read_sums(panel, "a", 3, answer)


def test_sums_that_are_mostly_zeros_travel_as_the_others_and_their_places() -> None:
    ranking: dict[str, Metric] = {"ranking": Ranking(), "entropy": Entropy()}
    logits = torch.linspace(-3.0, 3.0, 2 * MOST).view(MOST, 2)
    seen = Seen(logits * torch.tensor([1.0, -1.0]), torch.arange(MOST) % 2)
    state = FederatedState(3, {"z": PROBLEM_.start}, {}, PROBLEM_.statistics)
    question = pack_question(PROBLEM_, state, list(ranking))
    sums = {name: Summed(MOST, measure.sums(seen)) for name, measure in ranking.items()}
    answer = measure_at_site("a", PROBLEM_.layout, PROBLEM_.statistics, question, lambda *given: sums)
    assert sum(array.nbytes for array in answer.arrays.values()) <= 12 * (6 * MOST + 4)
    told = read_sums(MetricRequest({"a": ranking}, 2, MOST), "a", 3, answer)
    assert all(torch.equal(told[name].sums, sums[name].sums) for name in ranking)


def test_a_site_measures_nothing_but_a_model() -> None:
    for question, words in (
        (Packed({}, {"round": 1}, {}), "did not say what is to be measured"),
        (Packed({}, {"round": 1, "columns": "entropy"}, {}), "no model to measure"),
    ):
        with pytest.raises(Malformed, match=words):
            measure_at_site("a", PROBLEM_.layout, {}, question, lambda *given: {})


def test_running_statistics_of_another_model_are_refused_by_a_site() -> None:
    state = FederatedState(1, {"z": PROBLEM_.start}, {}, {"mean": torch.zeros(2)})
    question = pack_question(replace(PROBLEM_, share_statistics=True), state, ["entropy"])
    for own in ({}, {"mean": torch.zeros(3)}):
        with pytest.raises(Malformed, match="statistics that are not of this model"):
            measure_at_site("a", PROBLEM_.layout, own, question, lambda *given: {})
