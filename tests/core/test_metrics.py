"""Measures of a classifier from sums over rows: known answers, and sums that add up."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.metrics import (
    Accuracy,
    DomainHits,
    EmbeddedRisk,
    Entropy,
    Information,
    Metric,
    NeighbourhoodDensity,
    NuclearNorm,
    Risk,
    Seen,
    WorstAccuracy,
    proxy_a_distance,
)
from fedmm.core.objective import SOURCE, TARGET

KINDS = (Accuracy, Risk, Entropy, Information, NuclearNorm, EmbeddedRisk)
METRICS: dict[str, Metric] = {kind.__name__: kind() for kind in KINDS}
METRICS |= {"hits in the source": DomainHits(SOURCE), "hits in the target": DomainHits(TARGET)}
each_measure = pytest.mark.parametrize("measure", METRICS.values(), ids=METRICS)


def logits(probabilities: list[list[float]]) -> Tensor:
    return torch.tensor(probabilities, dtype=torch.float64).log()


def value(measure: Metric, given: Tensor, y: list[int] | None = None, ratio: list[float] | None = None) -> float:
    seen = Seen(
        given,
        torch.tensor(y or [0] * len(given)),
        None if ratio is None else torch.tensor(ratio, dtype=torch.float64).log(),
        torch.zeros(len(given), dtype=torch.int64),
    )
    return float(measure.value(measure.sums(seen), len(given)))


def random_seen(seed: int, *shape: int, classes: int = 4, spread: float = 2.0) -> Seen:
    generator = torch.Generator().manual_seed(seed)
    return Seen(
        spread * torch.randn(*shape, classes, generator=generator, dtype=torch.float64),
        torch.randint(0, classes, shape, generator=generator),
        torch.randn(*shape, generator=generator, dtype=torch.float64),
        torch.randint(0, 3, shape, generator=generator),
    )


def taken(seen: Seen, index: Any) -> Seen:
    parts = (seen.logits, seen.y, seen.log_ratio, seen.client)
    return Seen(*(None if each is None else each[index] for each in parts))  # type: ignore[arg-type]


def test_accuracy_counts_what_is_right() -> None:
    given = logits([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])
    assert value(Accuracy(), given, [0, 1, 1, 1]) == 0.75


def test_risk_is_the_mean_cross_entropy() -> None:
    given = logits([[0.5, 0.5], [0.25, 0.75]])
    assert value(Risk(), given, [0, 0]) == pytest.approx((math.log(2) + math.log(4)) / 2)


def test_entropy_of_a_fair_coin_is_log_2_and_of_a_sure_thing_0() -> None:
    assert value(Entropy(), logits([[0.5, 0.5]])) == pytest.approx(math.log(2))
    assert value(Entropy(), torch.tensor([[0.0, 1e4]])) == 0.0


def test_information_is_highest_where_predictions_are_sure_and_differ() -> None:
    # Sure and evenly spread: H(mean) = log 3, mean H = 0. Sure of one class, or unsure in each row: nothing.
    sure = 1e4 * torch.eye(3)
    assert value(Information(), sure) == pytest.approx(math.log(3))
    assert value(Information(), sure[:1].expand(5, 3)) == 0.0
    assert value(Information(), torch.zeros(5, 3)) == pytest.approx(0.0, abs=1e-12)


def test_information_is_the_entropy_of_the_mean_less_the_mean_entropy() -> None:
    given = logits([[0.9, 0.1], [0.3, 0.7]])

    def entropy(p: float) -> float:
        return -p * math.log(p) - (1 - p) * math.log(1 - p)

    expected = entropy(0.6) - (entropy(0.9) + entropy(0.3)) / 2
    assert value(Information(), given) == pytest.approx(expected)


def test_the_nuclear_norm_is_1_where_predictions_are_sure_and_evenly_spread() -> None:
    sure = 1e4 * torch.eye(3).repeat(4, 1)
    assert value(NuclearNorm(), sure) == pytest.approx(1.0)
    # All alike: one singular value, sqrt(rows) |p|, of at most sqrt(rows classes).
    assert value(NuclearNorm(), torch.zeros(5, 3)) == pytest.approx(1 / 3, rel=1e-7)
    assert value(NuclearNorm(), sure[:1].expand(5, 3)) == pytest.approx(1 / math.sqrt(3))
    assert value(NuclearNorm(), sure[:2]) == pytest.approx(1.0)


def test_density_is_that_of_neighbours_with_equal_predictions() -> None:
    # Four equal rows: each has three equally likely neighbours. Two sure pairs: almost all of a row's is its twin.
    assert value(NeighbourhoodDensity(), torch.zeros(4, 3)) == pytest.approx(math.log(3))
    pairs = 1e4 * torch.eye(2).repeat(2, 1)
    assert value(NeighbourhoodDensity(), pairs) == pytest.approx(0.0, abs=1e-6)


def test_a_client_alone_with_a_row_adds_nothing_to_the_density() -> None:
    seen = Seen(torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), client=torch.tensor([0, 0, 0, 1]))
    measure = NeighbourhoodDensity()
    assert float(measure.value(measure.sums(seen), 4)) == pytest.approx(math.log(2))
    alone = replace(seen, client=torch.arange(4))
    assert math.isnan(float(measure.value(measure.sums(alone), 4)))


def test_the_embedded_risk_is_the_source_risk_where_the_domains_are_alike() -> None:
    given = logits([[0.5, 0.5], [0.25, 0.75], [0.9, 0.1]])
    risk = value(Risk(), given, [0, 0, 1])
    assert value(EmbeddedRisk(), given, [0, 0, 1], [1.0, 1.0, 1.0]) == risk
    # An adversary that finds every row in one domain, however sure, says nothing of single rows.
    for ratio in (2.0, 1e-12, 1e12):
        assert value(EmbeddedRisk(), given, [0, 0, 1], [ratio] * 3) == pytest.approx(risk)


def test_the_control_variate_takes_out_what_the_mean_weight_is_off_by() -> None:
    # With equal losses w l = l w, so that eta = -l, and the estimate is l whatever the weights are.
    given = logits([[0.25, 0.75]] * 4)
    assert value(EmbeddedRisk(), given, [0] * 4, [0.1, 3.0, 7.0, 0.5]) == pytest.approx(math.log(4))


def test_an_embedded_risk_is_not_finite_where_the_adversary_is_beyond_numbers() -> None:
    seen = Seen(torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64), torch.tensor([0.0, 1e4]))
    measure = EmbeddedRisk()
    assert not math.isfinite(float(measure.value(measure.sums(seen), 2)))


def test_hits_count_rows_on_the_right_side_and_ties_by_half() -> None:
    ratio = [0.5, 2.0, 4.0, 1.0]
    assert value(DomainHits(TARGET), torch.zeros(4, 2), ratio=ratio) == 2.5 / 4
    assert value(DomainHits(SOURCE), torch.zeros(4, 2), ratio=ratio) == 1.5 / 4


def test_the_proxy_distance_is_0_at_chance_and_2_where_all_are_told_apart() -> None:
    assert proxy_a_distance(torch.tensor([0.5, 1.0, 0.75])).tolist() == [0.0, 2.0, 1.0]


def naive_nuclear(seen: Seen) -> float:
    p = torch.softmax(seen.logits, dim=1).numpy()
    return float(np.linalg.svd(p, compute_uv=False).sum() / math.sqrt(len(p) * min(p.shape)))


def naive_density(seen: Seen) -> float:
    p = torch.softmax(seen.logits, dim=1).numpy()
    assert seen.client is not None
    found = []
    for i, own in enumerate(seen.client.tolist()):
        others = [j for j, client in enumerate(seen.client.tolist()) if client == own and j != i]
        if others:
            cosines = np.array([p[i] @ p[j] / np.linalg.norm(p[i]) / np.linalg.norm(p[j]) for j in others])
            q: NDArray[np.float64] = np.exp(cosines / 0.05) / np.exp(cosines / 0.05).sum()
            found.append(-(q * np.log(q)).sum())
    return float(np.mean(found))


def naive_embedded_risk(seen: Seen) -> float:
    assert seen.log_ratio is not None
    w = seen.log_ratio.exp().numpy()
    loss = torch.nn.functional.cross_entropy(seen.logits, seen.y, reduction="none").numpy()
    eta = -np.cov(w * loss, w)[0, 1] / np.var(w, ddof=1)
    return float((w * loss).mean() + eta * w.mean() - eta)


@pytest.mark.parametrize("rows", [3, 12, 40])
@pytest.mark.parametrize(
    ("measure", "naive"),
    [
        (NuclearNorm(), naive_nuclear),
        (NeighbourhoodDensity(), naive_density),
        (EmbeddedRisk(), naive_embedded_risk),
    ],
    ids=["nuclear norm", "density", "embedded risk"],
)
def test_the_sums_give_what_the_definition_says(measure: Metric, naive: object, rows: int) -> None:
    for seed in range(3):
        seen = random_seen(seed, rows)
        if rows == 3:
            seen = replace(seen, client=torch.tensor([0, 1, 1]))
        assert callable(naive)
        found = float(measure.value(measure.sums(seen), rows))
        assert found == pytest.approx(naive(seen), rel=1e-9, abs=1e-12)


@each_measure
@drawn(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.integers(0, 9), st.sampled_from([0.1, 2.0, 20.0]))
@settings(max_examples=25, deadline=None)
def test_however_rows_are_dealt_to_clients_their_sums_give_one_value(
    measure: Metric, clients: list[int], seed: int, spread: float
) -> None:
    seen = random_seen(seed, len(clients), spread=spread)
    holder = torch.tensor(clients)
    parts = [measure.sums(taken(seen, (holder == client).nonzero().flatten())) for client in set(clients)]
    whole = measure.value(measure.sums(seen), len(clients))
    torch.testing.assert_close(measure.value(torch.stack(parts).sum(dim=0), len(clients)), whole, rtol=1e-7, atol=1e-7)


def test_clients_densities_add_up_where_each_pairs_its_own_rows() -> None:
    seen, measure = random_seen(4, 30), NeighbourhoodDensity()
    assert seen.client is not None
    parts = [measure.sums(taken(seen, (seen.client == client).nonzero().flatten())) for client in range(3)]
    torch.testing.assert_close(torch.stack(parts).sum(dim=0), measure.sums(seen))


@pytest.mark.parametrize("measure", [*METRICS.values(), NeighbourhoodDensity()], ids=[*METRICS, "density"])
def test_leading_axes_are_measured_one_by_one(measure: Metric) -> None:
    seen = random_seen(1, 2, 3, 6)
    together = measure.value(measure.sums(seen), 6)
    assert together.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            alone = taken(seen, (i, j))
            torch.testing.assert_close(together[i, j], measure.value(measure.sums(alone), 6), equal_nan=True)


@pytest.mark.parametrize("kind", [Entropy, Information, NuclearNorm, NeighbourhoodDensity])
def test_logits_that_are_not_numbers_give_no_number(kind: type[Metric]) -> None:
    assert not math.isfinite(value(kind(), torch.full((3, 2), math.nan)))


# Sums that others took ------------------------------------------------------------------------------------------------

ALL: dict[str, Metric] = {**METRICS, "NeighbourhoodDensity": NeighbourhoodDensity()}


@pytest.mark.parametrize("measure", ALL.values(), ids=ALL)
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0, 1e4])
def test_honest_sums_have_no_flaw(measure: Metric, spread: float) -> None:
    for rows in (1, 2, 7, 300):
        seen = random_seen(rows, rows, spread=spread)
        sums = measure.sums(seen)
        assert sums.shape == (measure.count(4),)
        assert measure.flaw(sums, rows, 4) == ""
        assert measure.flaw(measure.sums(replace(seen, log_ratio=torch.zeros(rows))), rows, 4) == ""


@pytest.mark.parametrize(
    ("measure", "sums", "words"),
    [
        (Accuracy(), [2.5], "not valid row counts"),
        (Accuracy(), [11.0], "not valid row counts"),
        (Accuracy(), [-1.0], "not valid row counts"),
        (Risk(), [-0.1], "a loss is below 0"),
        (Entropy(), [-0.1], "an entropy is below 0"),
        (Entropy(), [10 * math.log(2) + 0.1], "too large"),
        (Information(), [6.0, 5.0, 1.0], "not probabilities"),
        (Information(), [-1.0, 11.0, 1.0], "not probabilities"),
        (Information(), [5.0, 5.0, 8.0], "too large"),
        (NuclearNorm(), [4.0, 1.0, 1.0, 5.0], "not probabilities"),
        (NuclearNorm(), [4.0, 2.0, 0.0, 4.0], "not symmetric"),
        (NeighbourhoodDensity(), [1.0, 10.5], "not valid row counts"),
        (NeighbourhoodDensity(), [1.0, 12.0], "not valid row counts"),
        (NeighbourhoodDensity(), [50.0, 10.0], "too large"),
        (EmbeddedRisk(), [-11.0, 1.0, 0.0, 20.0, 0.0], "below 0"),
        (EmbeddedRisk(), [0.0, 1.0, -2.0, 1.0, 0.0], "below 0"),
        (EmbeddedRisk(), [9.0, 1.0, 0.0, 1.0, 0.0], "weights are not valid"),
        (DomainHits(SOURCE), [0.25], "not valid row counts"),
    ],
)
def test_sums_that_cannot_be_are_told(measure: Metric, sums: list[float], words: str) -> None:
    assert words in measure.flaw(torch.tensor(sums, dtype=torch.float64), 10, 2)


def test_the_worst_accuracy_is_that_of_the_worst_site_from_sums_that_stand_side_by_side() -> None:
    y, client = torch.tensor([0, 0, 1, 1, 1, 0]), torch.tensor([0, 0, 1, 1, 1, -1])
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    seen = Seen(logits, y, client=client)
    sums = WorstAccuracy(3).sums(seen)
    assert sums.tolist() == [
        2.0,
        2.0,
        1.0,
        3.0,
        0.0,
        0.0,
    ]  # hits and rows; the last row is nobody's
    assert float(WorstAccuracy(3).value(sums, 6)) == pytest.approx(1 / 3)
    own = WorstAccuracy(1).sums(Seen(logits[2:5], y[2:5], client=torch.zeros(3, dtype=torch.int64)))
    assert own.tolist() == [1.0, 3.0]
    assert WorstAccuracy(1).flaw(own, 3, 2) == ""
    assert WorstAccuracy(1).flaw(own, 4, 2) == "its number of rows is wrong"
    assert WorstAccuracy(1).flaw(torch.tensor([4.0, 3.0]).double(), 3, 2) == "its sums are not valid row counts"
    assert WorstAccuracy(1).value(torch.zeros(2), 0).isnan()
    both = torch.stack([sums, torch.tensor([2.0, 2.0, 3.0, 3.0, 0.0, 0.0]).double()])
    assert WorstAccuracy(3).value(both, 6).tolist() == pytest.approx([1 / 3, 1.0])
