"""Whether rows are those, dealt as they were, when a model was trained."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fedmm.data.datasets.moons import Moons
from fedmm.data.domains import DomainPair, Labelled
from fedmm.training.fingerprint import SOURCE_PARTS, TRAINED_AND_CHOSEN_BY, fingerprint_pair, same_data


@pytest.fixture
def pair() -> DomainPair:
    return Moons(rows=60, test_rows=30, validation_rows=20).load()


def with_inputs(pair: DomainPair, x: torch.Tensor) -> DomainPair:
    return replace(pair, source_test=Labelled(x, pair.source_test.y))


def same(one: DomainPair, other: DomainPair) -> bool:
    return same_data(json.loads(json.dumps(fingerprint_pair(one))), fingerprint_pair(other), SOURCE_PARTS)


def test_rounding_is_no_change(pair: DomainPair) -> None:
    x = pair.source_test.x
    noise = 1.0 + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert same(pair, pair)
    assert json.loads(json.dumps(fingerprint_pair(pair))) == fingerprint_pair(pair)
    assert same(pair, with_inputs(pair, x * noise))


def test_rows_of_the_same_classes_in_another_order_are_a_change(pair: DomainPair) -> None:
    x, y = pair.source_test.x.clone(), pair.source_test.y
    first, last = (y == 0).nonzero()[[0, -1], 0].tolist()
    x[[first, last]] = x[[last, first]]
    assert not same(pair, with_inputs(pair, x))


def test_one_hot_rows_of_one_sum_are_told_apart(pair: DomainPair) -> None:
    x = torch.eye(10).repeat(3, 1)
    assert not same(with_inputs(pair, x), with_inputs(pair, x.flip(0)))


def test_other_classes_and_parts_are_a_change(pair: DomainPair) -> None:
    assert not same(pair, replace(pair, source=Labelled(pair.source.x, 1 - pair.source.y)))
    assert not same(pair, replace(pair, source_validation=None))


def test_parts_without_rows_are_compared_and_so_are_pictures(pair: DomainPair) -> None:
    empty = with_inputs(pair, torch.zeros(0, 2))
    empty = replace(empty, source_test=Labelled(torch.zeros(0, 2), torch.zeros(0, dtype=torch.int64)))
    assert same(empty, empty)
    pictures = torch.arange(8 * 3 * 4 * 4, dtype=torch.uint8).view(8, 3, 4, 4)
    assert same(with_inputs(pair, pictures), with_inputs(pair, pictures))
    assert not same(with_inputs(pair, pictures), with_inputs(pair, pictures.flip(0)))


@pytest.mark.parametrize("damaged", [{}, {"source": 1}, {"source": {}}, [1], "x"])
def test_what_is_no_fingerprint_is_of_no_rows(pair: DomainPair, damaged: object) -> None:
    assert not same_data(damaged, fingerprint_pair(pair), SOURCE_PARTS)  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [[], 1, [1.0], ["a", "b"], None])
def test_damaged_sums_are_of_no_rows(pair: DomainPair, inputs: object) -> None:
    own = fingerprint_pair(pair)
    assert not same_data({**own, "source": {**own["source"], "inputs": inputs}}, own, SOURCE_PARTS)


def test_other_inputs_of_the_target_are_a_change_and_its_labels_are_not_looked_at(pair: DomainPair) -> None:
    one = fingerprint_pair(pair)
    relabelled = fingerprint_pair(replace(pair, target=Labelled(pair.target.x, 1 - pair.target.y)))
    assert relabelled == one
    moved = fingerprint_pair(replace(pair, target=Labelled(pair.target.x + 1.0, pair.target.y)))
    assert not same_data(moved, one, TRAINED_AND_CHOSEN_BY)
    assert same_data(moved, one, SOURCE_PARTS)
