"""Centres of vectors, beside their definitions, with clients left out and with groups."""

from __future__ import annotations

import math

import pytest
import torch
from problems import FLOAT64, generator
from torch import Tensor

from fedmm import FedmmError
from fedmm.core.aggregation import (
    AGGREGATIONS,
    Aggregation,
    CoordinateMedian,
    GeometricMedian,
    Groups,
    Mean,
    TrimmedMean,
    group_centre,
)

each_aggregation = pytest.mark.parametrize("kind", AGGREGATIONS.values(), ids=AGGREGATIONS)
each_robust = pytest.mark.parametrize("kind", [k for k in AGGREGATIONS.values() if k.robust], ids=lambda k: k.name)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=FLOAT64, generator=generator(seed))


# Definitions ----------------------------------------------------------------------------------------------------------


def test_the_median_is_the_middle_value_or_the_mean_of_the_middle_two() -> None:
    vectors = torch.tensor([[1.0, 9.0], [5.0, -2.0], [2.0, 0.0], [100.0, 4.0]], dtype=FLOAT64)
    assert CoordinateMedian().centre(vectors).tolist() == [3.5, 2.0]
    assert CoordinateMedian().centre(vectors[:3]).tolist() == [2.0, 0.0]


@pytest.mark.parametrize(
    ("trim", "expected"),
    # of 1 2 3 4 10: nothing, one and two from each end; shares are rounded up
    [(0.0, 4.0), (0.05, 3.0), (0.2, 3.0), (0.21, 3.0), (0.4, 3.0), (0.49, 3.0)],
)
def test_the_trimmed_mean_cuts_its_share_off_each_end(trim: float, expected: float) -> None:
    vectors = torch.tensor([[3.0], [10.0], [1.0], [4.0], [2.0]], dtype=FLOAT64)
    assert TrimmedMean(trim).centre(vectors).tolist() == [expected]


def test_the_trimmed_mean_of_ten_without_a_fifth_is_the_mean_of_the_middle_six() -> None:
    vectors = torch.arange(10.0, dtype=FLOAT64).square().unsqueeze(1)
    expected = sum(n * n for n in range(2, 8)) / 6
    assert TrimmedMean(0.2).centre(vectors.flip(0)).item() == pytest.approx(expected)


@pytest.mark.parametrize("clients", [1, 2])
def test_with_one_or_two_clients_there_is_nothing_to_cut(clients: int) -> None:
    vectors = normal(clients, 3)
    torch.testing.assert_close(TrimmedMean(0.4).centre(vectors), vectors.mean(0))


def test_the_geometric_median_of_a_triangle_is_its_fermat_point() -> None:
    # Isosceles, apex angle below 120 degrees: on the axis, where both sides are seen under 120 degrees.
    vectors = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 3.0]], dtype=FLOAT64)
    expected = torch.tensor([0.0, 1.0 / math.sqrt(3.0)], dtype=FLOAT64)
    torch.testing.assert_close(GeometricMedian(100).centre(vectors), expected, rtol=0, atol=1e-6)


def test_at_the_geometric_median_unit_vectors_to_all_clients_cancel() -> None:
    vectors = normal(7, 5)
    away = vectors - GeometricMedian(200).centre(vectors)
    unit = away / away.norm(dim=-1, keepdim=True)
    assert float(unit.sum(0).norm()) < 1e-6


def test_more_than_half_in_one_place_are_the_geometric_median() -> None:
    vectors = torch.cat([normal(1, 4).repeat(4, 1), normal(3, 4, seed=1)])
    torch.testing.assert_close(GeometricMedian().centre(vectors), vectors[0])


# What all have in common ----------------------------------------------------------------------------------------------


@each_aggregation
def test_a_row_has_its_name_and_says_what_it_is(kind: type[Aggregation]) -> None:
    assert AGGREGATIONS[kind.name] is kind
    assert kind.summary
    assert kind() == kind()


@each_aggregation
def test_equal_vectors_are_their_own_centre(kind: type[Aggregation]) -> None:
    vector = normal(6)
    torch.testing.assert_close(kind().centre(vector.repeat(5, 1)), vector, rtol=1e-14, atol=1e-14)


@each_aggregation
def test_a_shift_of_all_vectors_shifts_the_centre(kind: type[Aggregation]) -> None:
    # so that the centre of the uploads z_i is z_0 and the centre of the updates z_i - z_0
    vectors, shift = normal(6, 4), 5.0 * normal(4, seed=1)
    torch.testing.assert_close(kind().centre(vectors + shift), kind().centre(vectors) + shift, rtol=1e-12, atol=1e-12)


@each_aggregation
def test_the_order_of_the_clients_does_not_matter(kind: type[Aggregation]) -> None:
    vectors = normal(6, 4)
    torch.testing.assert_close(kind().centre(vectors.flip(0)), kind().centre(vectors), rtol=1e-12, atol=1e-12)


@each_aggregation
@pytest.mark.parametrize("present", [1, 2, 3, 5])
@pytest.mark.parametrize("absent", [0.0, math.nan, math.inf, 1e300])
def test_clients_that_are_not_counted_may_hold_anything(kind: type[Aggregation], present: int, absent: float) -> None:
    vectors = normal(6, 4)
    counted = torch.zeros(6, dtype=torch.bool)
    counted[torch.randperm(6, generator=generator(present))[:present]] = True
    broken = torch.where(counted.unsqueeze(-1), vectors, absent)
    expected = kind().centre(vectors[counted])
    torch.testing.assert_close(kind().centre(broken, counted), expected, rtol=1e-12, atol=1e-12)


@each_aggregation
def test_leading_axes_are_stacks(kind: type[Aggregation]) -> None:
    vectors = normal(2, 3, 6, 4)
    counted = torch.rand(2, 3, 6, generator=generator(3)) < 0.7
    counted[..., 0] = True
    groups = torch.randint(0, 2, (2, 3, 6), generator=generator(4))
    together = group_centre(kind(), vectors, Groups(groups, 2), counted)
    for r in range(2):
        for s in range(3):
            alone = group_centre(kind(), vectors[r, s], Groups(groups[r, s], 2), counted[r, s])
            torch.testing.assert_close(together[r, s], alone, rtol=1e-12, atol=1e-12)


@each_aggregation
def test_float32_stays_float32(kind: type[Aggregation]) -> None:
    vectors = normal(5, 3).float()
    counted = torch.tensor([True, False, True, True, True])
    groups = torch.tensor([0, 0, 1, 1, 1])
    for centre in (
        kind().centre(vectors),
        kind().centre(vectors, counted),
        group_centre(kind(), vectors, Groups(groups, 2)),
    ):
        assert centre.dtype == torch.float32


@each_robust
@pytest.mark.parametrize("far", [1e3, 1e30])
def test_one_client_of_five_however_far_moves_a_robust_centre_little(kind: type[Aggregation], far: float) -> None:
    vectors = normal(5, 8).float()
    honest = vectors[1:]
    vectors[0] = far * normal(8, seed=9).float()
    centre = kind().centre(vectors)
    assert float((centre - honest.mean(0)).norm()) < float((honest - honest.mean(0)).norm(dim=-1).max())


# Groups ---------------------------------------------------------------------------------------------------------------


def test_the_mean_knows_no_groups() -> None:
    vectors = normal(5, 3)
    centre = group_centre(Mean(), vectors, Groups(torch.tensor([0, 0, 0, 0, 1]), 2))
    torch.testing.assert_close(centre, vectors.mean(0))


@each_robust
def test_groups_are_weighted_by_their_members(kind: type[Aggregation]) -> None:
    vectors = normal(7, 3)
    groups = torch.tensor([0, 1, 0, 1, 1, 0, 1])
    one, other = (kind().centre(vectors[groups == group]) for group in range(2))
    torch.testing.assert_close(group_centre(kind(), vectors, Groups(groups, 2)), (3 * one + 4 * other) / 7)


@each_robust
def test_a_group_that_is_not_there_counts_nothing(kind: type[Aggregation]) -> None:
    vectors = normal(4, 3)
    groups = torch.tensor([0, 2, 0, 2])
    counted = torch.tensor([True, False, True, False])
    expected = kind().centre(vectors[[0, 2]])
    torch.testing.assert_close(group_centre(kind(), vectors, Groups(groups, 3), counted), expected)


@each_aggregation
@pytest.mark.parametrize("most", [1, 2])
def test_with_nobody_counted_the_centre_is_zero(kind: type[Aggregation], most: int) -> None:
    vectors = torch.full((4, 3), math.nan, dtype=FLOAT64)
    groups, nobody = torch.zeros(4, dtype=torch.int64), torch.zeros(4, dtype=torch.bool)
    assert group_centre(kind(), vectors, Groups(groups, most), nobody).tolist() == [0.0, 0.0, 0.0]


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trim", [-0.1, 0.5, 0.7, math.nan, "much"])
def test_a_share_that_leaves_nothing_is_refused(trim: float) -> None:
    with pytest.raises(FedmmError, match="trim"):
        TrimmedMean(trim)


@pytest.mark.parametrize("iterations", [0, 2.5, "many"])
def test_no_iterations_are_refused(iterations: int) -> None:
    with pytest.raises(FedmmError, match="iterations"):
        GeometricMedian(iterations)
