"""Draws are pinned: a change of any of these numbers changes every run that was ever made."""

from __future__ import annotations

import hashlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmm.core import seeding
from fedmm.core.seeding import hashed, key, permutation, uniform

MASK = (1 << 64) - 1
LOW_63 = (1 << 63) - 1


def splitmix64(state: int) -> int:
    """Vigna's finaliser in unbounded integers, as a check on the wrapping arithmetic."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_hashed_is_splitmix64() -> None:
    # The published first outputs of splitmix64.c for seed 1234567; its state grows by the golden ratio before each.
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert hashed(1234567, torch.arange(1, 6)).tolist() == [value & LOW_63 for value in published]


@given(st.integers(0, LOW_63), st.integers(0, 2**62))
def test_hashed_wraps_as_unsigned_integers_do(start: int, position: int) -> None:
    expected = splitmix64(start + position * 0x9E3779B97F4A7C15) & LOW_63
    assert int(hashed(start, torch.tensor(position))) == expected
    assert int(hashed(torch.tensor(start), torch.tensor(position))) == expected


def test_a_tensor_of_keys_broadcasts_against_positions() -> None:
    keys = torch.tensor([[1], [2]])
    together = hashed(keys, torch.arange(3))
    assert together.tolist() == [hashed(k, torch.arange(3)).tolist() for k in (1, 2)]


def test_key_is_the_first_63_bits_of_a_sha256() -> None:
    text = "int:7\x1fstr:rows\x1fstr:site-a\x1fint:3"
    expected = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1
    assert key(7, "rows", "site-a", 3) == expected == 2866454496363321120


def test_keys_of_unlike_parts_differ() -> None:
    parts = [(1,), ("1",), (1, 1), (11,), ("a", "b"), ("ab",), ("a", "b", ""), (0, "a"), ("a", 0)]
    assert len({key(*p) for p in parts}) == len(parts)


def test_permutations_are_pinned() -> None:
    start = key(0, "rows")
    by_hash = sorted(range(8), key=lambda place: splitmix64(start + place * 0x9E3779B97F4A7C15) & LOW_63)
    assert permutation(start, 8).tolist() == by_hash == [1, 5, 0, 4, 6, 3, 7, 2]


@given(st.integers(0, LOW_63), st.integers(1, 300))
def test_a_permutation_holds_every_number_once(start: int, size: int) -> None:
    order = permutation(start, size)
    assert order.dtype == torch.int64
    assert order.sort().values.tolist() == list(range(size))


def test_draws_of_rows_are_pinned() -> None:
    drawn = seeding.rows((0, "rows", "a"), 4, 0, 10, "cpu")
    orders = [permutation(key(0, "rows", "a", "epoch", epoch), 4) for epoch in range(3)]
    assert drawn.tolist() == torch.cat(orders).tolist()[:10] == [1, 0, 3, 2, 1, 3, 0, 2, 3, 0]


def test_every_place_of_a_permutation_sees_every_number() -> None:
    # 4,000 permutations of 5: each of the 25 (place, number) counts is binomial(4000, 1/5), mean 800, deviation 25.3.
    orders = torch.stack([permutation(key(0, number), 5) for number in range(4000)])
    counts = torch.stack([(orders == value).sum(0) for value in range(5)])
    assert int((counts - 800).abs().max()) < 5 * 25.3


def test_uniform_numbers_are_uniform() -> None:
    draws = uniform(key(0, "uniform"), torch.arange(1 << 16))
    assert draws.dtype == torch.float32
    assert float(draws.min()) >= 0.0
    assert float(draws.max()) < 1.0
    # Mean of 65,536 draws: 1/2 with deviation 1 / sqrt(12 x 65536) = 1.13e-3.
    assert float(draws.double().mean()) == pytest.approx(0.5, abs=5 * 1.13e-3)
    # 16 bins: 4,096 in each with deviation sqrt(65536 x 15/256) = 62.
    counts = torch.histc(draws, 16, 0.0, 1.0)
    assert float((counts - 4096).abs().max()) < 5 * 62
    # Neighbours are independent: the correlation of 65,535 pairs has deviation 1/256.
    centred = draws.double() - 0.5
    assert abs(float((centred[1:] * centred[:-1]).mean()) * 12) < 5 / 256


def test_uniform_numbers_of_neighbouring_keys_are_unrelated() -> None:
    # As above: deviation 1/256 of the correlation, for keys that differ in one part of their parts by 1.
    first, second = (uniform(key(0, "dropout", "client", t), torch.arange(1 << 16)).double() - 0.5 for t in (0, 1))
    assert abs(float((first * second).mean()) * 12) < 5 / 256


@given(st.integers(1, 20), st.integers(0, 5), st.integers(0, 1000))
def test_rows_pass_over_all_rows_in_each_epoch(size: int, epoch: int, seed: int) -> None:
    drawn = seeding.rows((seed, "rows"), size, epoch * size, size, "cpu")
    assert drawn.sort().values.tolist() == list(range(size))


@given(st.integers(1, 20), st.integers(0, 60), st.lists(st.integers(1, 15), min_size=1, max_size=6))
def test_rows_are_the_same_however_they_are_cut(size: int, first: int, counts: list[int]) -> None:
    parts = (3, "rows", "site-a", "source")
    whole = seeding.rows(parts, size, first, sum(counts), "cpu")
    pieces, place = [], first
    for count in counts:
        pieces.append(seeding.rows(parts, size, place, count, "cpu"))
        place += count
    assert [len(piece) for piece in pieces] == counts
    assert torch.equal(torch.cat(pieces), whole)


def test_epochs_are_shuffled_anew_and_by_name() -> None:
    first, second = seeding.rows((0, "rows", "a"), 50, 0, 100, "cpu").split(50)
    other = seeding.rows((0, "rows", "b"), 50, 0, 50, "cpu")
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)
