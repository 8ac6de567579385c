"""Measures from sums at sites: when a column is told, and what is refused, with sites in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ray_federation import Federation
from sklearn.metrics import roc_auc_score

from fedmm.core.engine import FederatedState
from fedmm.core.metrics import (
    MOST_COUNTS,
    Accuracy,
    Entropy,
    Metric,
    Risk,
    Seen,
    WorstAccuracy,
    count_finer,
    values_by_column,
)
from fedmm.core.signals.ranking import MOST_EDGES, Ranking
from fedmm.remote.evaluation import (
    EDGES,
    MetricRequest,
    SiteMetrics,
    Summed,
    measure_at_site,
    pack_question,
    read_sums,
    with_edges,
)
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
        (changed(0, 0, 0, 7), "its sums for accuracy cannot be of 10 rows: its sums are not valid row counts"),
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
    assert sum(array.nbytes for array in answer.arrays.values()) <= 12 * (MOST + 4)
    told = read_sums(MetricRequest({"a": ranking}, 2, MOST), "a", 3, answer)
    assert all(torch.equal(told[name].sums, sums[name].sums) for name in ranking)


RANKED: dict[str, Metric] = {"x_ranking": Ranking(), "x_accuracy": Accuracy()}


class RankedSites(Sites):
    """Rows of two classes with scores in a narrow band, so that the first bins tell little.

    min_rows: of a class, for its counts to be told. asked: each question's number, and by site its edges.
    """

    def __init__(self, rows: Mapping[str, int], min_rows: int = 1) -> None:
        super().__init__(rows, dict.fromkeys(rows, RANKED))
        self.min_rows = min_rows
        self.asked: list[dict[str, Packed]] = []
        self.spoil: Callable[[dict[str, Packed]], dict[str, Packed]] = lambda answers: answers

    def own(self, name: str) -> Seen:
        generator = torch.Generator().manual_seed(ord(name))
        y = (torch.rand(self.rows[name], generator=generator) < 0.3).long()
        s = -5.0 + 1e-4 * (torch.randn(self.rows[name], generator=generator) + y)
        return Seen(torch.stack([torch.zeros_like(s), s], dim=-1), y)

    def ask(self, kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        self.asked.append(dict(questions))
        answers = super().ask(kind, questions)
        return self.spoil(answers) if len(self.asked) > 1 else answers

    def answer(self, name: str, question: Packed) -> Packed:
        def sums(columns: Sequence[str], z: object, statistics: object, edges: Mapping[str, torch.Tensor]) -> Any:
            summed = {}
            for column in columns:
                measure = with_edges(column, RANKED[column], edges[column]) if column in edges else RANKED[column]
                counts = measure.sums(self.own(name))
                if isinstance(measure, Ranking):
                    counts = measure.withheld(counts, self.min_rows)
                    summed[column] = Summed(sum(measure.rows_by_class(counts)), counts)
                else:
                    summed[column] = Summed(self.rows[name], counts)
            return summed

        return measure_at_site(name, PROBLEM_.layout, PROBLEM_.statistics, question, sums)

    def all_rows(self) -> Seen:
        own = [self.own(name) for name in sorted(self.rows)]
        return Seen(torch.cat([each.logits for each in own]), torch.cat([each.y for each in own]))


def in_one_place(seen: Seen, *, counts: int = MOST_COUNTS) -> dict[str, float]:
    """What one process measures on all rows."""
    first, rows = Ranking(), len(seen.y)
    metric, sums = (
        (first, first.sums(seen))
        if counts == 1
        else count_finer(first, first.sums(seen), rows, lambda finer: finer.sums(seen))
    )
    return {column: float(value) for column, value in values_by_column("x_ranking", metric, sums, rows).items()}


def test_sites_are_asked_again_for_finer_counts_and_tell_what_one_process_does() -> None:
    sites = RankedSites({"a": 60, "b": 35, "c": 80})
    found = sites()
    assert 2 <= len(sites.asked) <= MOST_COUNTS
    assert EDGES + "x_ranking" not in sites.asked[0]["a"].arrays
    for questions in sites.asked[1:]:
        assert list(questions) == ["a", "b", "c"]
        for question in questions.values():
            assert question.about["columns"] == "x_ranking"
            assert question.arrays[EDGES + "x_ranking"].dtype == np.int32
    expected = in_one_place(sites.all_rows())
    assert expected["x_auroc_error"] <= 1e-3
    assert {column: found[column] for column in expected} == pytest.approx(expected, abs=1e-12)
    assert f" with {len(sites.asked)} questions, " in sites.said[-1]
    round_, columns = sites.measures.of_sites
    metric, by_site = columns["x_ranking"]
    assert round_ == 1
    for name, own in by_site.items():
        seen = sites.own(name)
        auroc, error, *_ = metric.value(own.sums, own.rows).tolist()
        assert auroc == pytest.approx(roc_auc_score(seen.y, seen.logits[:, 1]), abs=error + 1e-12)
    once = len(sites.asked)
    assert sites() == found
    assert len(sites.asked) == 2 * once  # nothing of one evaluation is left for the next


def test_a_class_with_too_few_rows_is_withheld_at_every_question() -> None:
    sites = RankedSites({"a": 90, "b": 30, "c": 90}, min_rows=15)
    kept = sites.own("b").y == 0
    assert int(kept.sum()) >= 15 > int((~kept).sum()) > 0
    assert all(int(sites.own(name).y.sum()) >= 15 for name in "ac")
    told: list[dict[str, Packed]] = []

    def look(answers: dict[str, Packed]) -> dict[str, Packed]:
        told.append(answers)
        return answers

    sites.spoil = look
    found = sites()
    assert told
    for answers in told:
        assert answers["b"].arrays["sums"][0] == int(kept.sum())
        assert answers["b"].arrays["sums"].sum() == 2 * int(kept.sum())  # how many, and the counts of one class
    a, b, c = (sites.own(name) for name in "abc")
    rest = Seen(torch.cat([a.logits, b.logits[kept], c.logits]), torch.cat([a.y, b.y[kept], c.y]))
    assert found["x_auroc"] == pytest.approx(in_one_place(rest)["x_auroc"], abs=1e-12)


@pytest.mark.parametrize("what", ["silent", "other rows", "not its bins", "no number"])
def test_finer_counts_count_only_if_all_sites_give_them(what: str) -> None:
    sites = RankedSites({"a": 60, "b": 35, "c": 80})

    def spoil(answers: dict[str, Packed]) -> dict[str, Packed]:
        sums, places = (answers["b"].arrays[name].copy() for name in ("sums", "places"))
        if what == "other rows":
            sums, places = np.array([1.0, 1.0]), np.int32([0, 7])
        elif what == "not its bins":
            places[-1] = 2 * MOST_EDGES + 9
        elif what == "no number":
            sums[0] = np.nan
        spoiled = answers["b"]._replace(arrays={"sums": sums, "places": places})
        return {name: each for name, each in {**answers, "b": spoiled}.items() if (name, what) != ("b", "silent")}

    sites.spoil = spoil
    found = sites()
    coarse = in_one_place(sites.all_rows(), counts=1)
    assert len(sites.asked) == 2
    assert coarse["x_auroc_error"] > 1e-3
    assert {column: found[column] for column in coarse} == pytest.approx(coarse, abs=1e-12)
    assert found["x_accuracy"] == pytest.approx(float((sites.all_rows().y == 0).double().mean()))


def test_sites_that_have_no_rows_are_not_asked_again() -> None:
    sites = RankedSites({"a": 60, "b": 10, "c": 80}, min_rows=11)
    sites()
    assert [list(questions) for questions in sites.asked] == [["a", "b", "c"], *[["a", "c"]] * (len(sites.asked) - 1)]
    assert len(sites.asked) > 1


@pytest.mark.parametrize(
    ("column", "edges", "words"),
    [
        ("x_ranking", np.int32([3, 1]), "sent edges for x_ranking that cannot be used: edges must be in ascending"),
        ("x_ranking", np.int32([1]), "0 among them"),
        ("x_ranking", np.arange(MOST_EDGES + 1, dtype=np.int32), "from 1 to 131072 of them"),
        ("x_ranking", np.int32([[0]]), r"of shape \(1, 1\)"),
        ("x_ranking", np.int64([0]), "as int64, where int32 is taken"),
        ("x_ranking", np.array([0], dtype=">i4"), "as >i4, where int32 is taken"),
        ("x_ranking", np.uint32([0]), "as uint32, where int32 is taken"),
        ("x_accuracy", np.int32([0]), "edges for x_accuracy, which is not counted in bins"),
        ("y\nother", np.int32([0]), "edges for 'y other' as int32, where int32 is taken for columns that it asks for"),
    ],
)
def test_a_site_takes_no_other_edges_than_those_of_bins(column: str, edges: Any, words: str) -> None:
    sites = RankedSites({"a": 60})
    state = FederatedState(1, {"z": PROBLEM_.start}, {}, PROBLEM_.statistics)
    question = pack_question(PROBLEM_, state, list(RANKED))
    with pytest.raises(Malformed, match=words):
        sites.answer("a", question._replace(arrays={**question.arrays, EDGES + column: edges}))


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
