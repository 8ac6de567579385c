"""Agreement of predictions on counts whose kappa is known, and neighbours on a line."""

from __future__ import annotations

import pytest
import torch

from fedmm.core.signals.agreement import count_pairs, find_neighbours, kappa


def test_pairs_are_counted_and_counts_of_clients_add_up() -> None:
    first, second = torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, 1, 2])
    counts = count_pairs(first, second, 3)
    assert counts.tolist() == [[1, 1, 0], [0, 1, 0], [0, 0, 1]]
    parts = count_pairs(first[:1], second[:1], 3) + count_pairs(first[1:], second[1:], 3)
    assert parts.tolist() == counts.tolist()


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([[5, 0], [0, 5]], 1.0),
        ([[0, 5], [5, 0]], -1.0),
        ([[25, 25], [25, 25]], 0.0),
        ([[20, 5], [10, 15]], 0.4),  # 0.7 agree, 0.5 would by chance
        ([[9, 0], [0, 0]], 0.0),  # one class is all there is
        ([[0, 0], [0, 0]], 0.0),
    ],
)
def test_kappa_is_what_is_beyond_chance(counts: list[list[int]], expected: float) -> None:
    assert kappa(torch.tensor(counts)) == pytest.approx(expected)


def test_neighbours_are_the_nearest_other_rows() -> None:
    x = torch.tensor([0.0, 1.0, 10.0, 12.0]).reshape(4, 1, 1)
    assert find_neighbours(x, 1).flatten().tolist() == [1, 0, 3, 2]
    assert find_neighbours(x, 9).shape == (4, 3)
    assert find_neighbours(x[:1], 5).shape == (1, 0)
