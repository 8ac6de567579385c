"""Whether source rows are dealt as they were when a model was trained."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from fedmm.data.datasets.moons import Moons
from fedmm.data.domains import DomainPair, Labelled
from fedmm.training.fingerprint import fingerprint_split, same_split


@pytest.fixture
def pair() -> DomainPair:
    return Moons(rows=60, test_rows=30, validation_rows=20).load()


def with_inputs(pair: DomainPair, x: torch.Tensor) -> DomainPair:
    return replace(pair, source_test=Labelled(x, pair.source_test.y))


def same(one: DomainPair, other: DomainPair) -> bool:
    return same_split(json.loads(json.dumps(fingerprint_split(one))), fingerprint_split(other))


def test_rounding_is_no_change(pair: DomainPair) -> None:
    x = pair.source_test.x
    noise = 1.0 + 1e-6 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert same(pair, pair)
    assert json.loads(json.dumps(fingerprint_split(pair))) == fingerprint_split(pair)
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


@pytest.mark.parametrize("damaged", [{}, {"rows": 1}, {"rows": {}, "classes": "", "inputs": {}}, [1], "x"])
def test_what_is_no_fingerprint_is_of_no_split(pair: DomainPair, damaged: object) -> None:
    assert not same_split(damaged, fingerprint_split(pair))  # type: ignore[arg-type]


@pytest.mark.parametrize("inputs", [{}, {"train": 1}, {"train": [], "test": [], "aside": []}, None])
def test_damaged_sums_are_of_no_split(pair: DomainPair, inputs: object) -> None:
    own = fingerprint_split(pair)
    assert not same_split({**own, "inputs": inputs}, own)
