from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError
from fedmm.data.splitting import count_shared, distinct_share, fingerprints, split_rows


@given(st.lists(st.integers(1, 40), min_size=1, max_size=5), st.floats(0.01, 0.99), st.integers(0, 2**32))
def test_the_same_share_of_every_class_is_held_out(counts: list[int], share: float, seed: int) -> None:
    y = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    options = {"held_out": share, "target_held_out": 0.0, "seed": seed}
    if max(counts) == 1:
        with pytest.raises(FedmmError, match="every class, or site, has only one"):
            split_rows(y, y, **options)
        return
    split = split_rows(y, y, **options)
    train, held_out = split.source.tolist(), split.source_test.tolist()
    assert sorted(train + held_out) == list(range(len(y)))
    assert train == sorted(train)
    for label, count in enumerate(counts):
        assert int((y[split.source_test] == label).sum()) == min(max(1, round(share * count)), count - 1)


shares = st.tuples(st.floats(0.01, 0.9), st.floats(0.01, 0.9)).filter(lambda pair: sum(pair) < 0.99)
labels = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(
    lambda counts: torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
)
NO_TARGET = torch.empty(0, dtype=torch.int64)


def split_in_three(
    y: torch.Tensor, held_out: float, share: float, seed: int = 0, **names: list[str]
) -> list[list[int]]:
    """Rows to train on, to choose by and to test on, without a target."""
    split = split_rows(y, NO_TARGET, held_out=held_out, target_held_out=0.0, seed=seed, validation_share=share, **names)
    assert split.source_validation is not None
    return [part.tolist() for part in (split.source, split.source_validation, split.source_test)]


@settings(max_examples=200)
@given(labels, shares, st.integers(0, 2**32))
def test_rows_to_choose_by_are_apart_from_the_others_and_of_every_class(
    y: torch.Tensor, both: tuple[float, float], seed: int
) -> None:
    held_out, share = both
    counts = y.bincount().tolist()
    options = {"held_out": held_out, "target_held_out": 0.0, "seed": seed}
    if max(counts) == 1:
        with pytest.raises(FedmmError, match=r"^no row of the source can be held out to test on: [^.]*$"):
            split_in_three(y, held_out, share, seed)
        return
    alone = split_rows(y, NO_TARGET, **options)
    left = y[alone.source].bincount(minlength=len(counts)).tolist()
    if max(left) == 1:
        with pytest.raises(FedmmError, match=r"^validation_share leaves no row to select a model with: [^.]*$"):
            split_in_three(y, held_out, share, seed)
        return
    train, chosen_by, tested = parts = split_in_three(y, held_out, share, seed)
    assert sorted(train + chosen_by + tested) == list(range(len(y)))
    assert parts == [sorted(part) for part in parts] == split_in_three(y, held_out, share, seed)
    assert tested == alone.source_test.tolist()  # whatever is kept to choose by
    for label, count in enumerate(counts):
        trains, chooses, tests = (int((y[part] == label).sum()) for part in parts)
        assert trains >= 1
        assert (chooses >= 1) == (left[label] >= 2)
        assert abs(tests - held_out * count) <= 1
        assert abs(chooses - share * count) <= 2  # of what is left of a rounded number, rounded


@pytest.mark.parametrize(("count", "parts"), [(1, [1, 0, 0]), (2, [1, 0, 1]), (3, [1, 1, 1]), (10, [6, 2, 2])])
def test_few_rows_of_a_class_are_trained_on_first_then_tested_on(count: int, parts: list[int]) -> None:
    y = torch.tensor([0] * 100 + [1] * count)
    assert [sum(row >= 100 for row in part) for part in split_in_three(y, 0.2, 0.2)] == parts


@pytest.mark.parametrize("seed", range(6))
def test_a_class_that_few_groups_hold_is_trained_on_and_tested_on(seed: int) -> None:
    """Thirty patients of eight visits, of whom two fall ill after the first ones."""
    groups = [str(row // 8) for row in range(240)]
    y = torch.tensor([int(row // 8 in (4, 9) and row % 8 > 2) for row in range(240)])
    split = split_rows(y, NO_TARGET, held_out=0.3, target_held_out=0.0, seed=seed, source_groups=groups)
    assert [int(y[part].sum()) for part in (split.source, split.source_test)] == [5, 5]
    assert not {groups[row] for row in split.source.tolist()} & {groups[row] for row in split.source_test.tolist()}
    assert len(split.source_test) == 8 * (1 + 8)  # of two ill patients and 28 others


@pytest.mark.parametrize("seed", range(6))
def test_a_class_within_groups_of_a_rarer_one_keeps_a_group_to_train_on(seed: int) -> None:
    groups = [str(row // 2) for row in range(40)]
    y = torch.tensor([0, 2, 1, 2, *[0] * 36])  # class 1 is in one of the two groups of class 2
    split = split_rows(y, NO_TARGET, held_out=0.3, target_held_out=0.0, seed=seed, source_groups=groups)
    assert set(y[split.source].tolist()) == {0, 1, 2}


def test_another_seed_chooses_other_rows() -> None:
    y = torch.arange(200) % 2
    first, second = (split_in_three(y, 0.25, 0.25, seed) for seed in (0, 1))
    assert [len(part) for part in first] == [len(part) for part in second] == [100, 50, 50]
    assert all(one != other for one, other in zip(first, second, strict=True))


@given(st.integers(0, 2**32))
def test_every_site_trains_and_no_group_is_torn_apart(seed: int) -> None:
    y = torch.arange(60) % 3
    sites = ["one", "two", "two", *("abcd"[row % 4] for row in range(57))]
    groups = [f"{site}{row // 8}" for row, site in enumerate(sites)]
    parts = split_in_three(y, 0.45, 0.45, seed, source_sites=sites, source_groups=groups)
    assert sorted(row for part in parts for row in part) == list(range(60))
    assert {sites[row] for row in parts[0]} == {"one", "two", *"abcd"}
    assert sum(len({groups[row] for row in part}) for part in parts) == len(set(groups))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 5)])
def test_rows_that_are_the_same_share_a_fingerprint_and_others_do_not(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.randint(0, 200, (50, *shape)).to(dtype)
    assert fingerprints(x) == fingerprints(x.clone())
    other = x.clone()
    other.view(50, -1)[:, -1] += 1
    assert count_shared(fingerprints(x), fingerprints(other)) == 0
    mixed = torch.cat([other[:10], x[:7], other[10:20]])
    assert count_shared(fingerprints(x), fingerprints(mixed)) == 7
    assert distinct_share(fingerprints(torch.cat([x, x]))) == pytest.approx(distinct_share(fingerprints(x)) / 2)


def test_the_order_of_numbers_in_a_row_matters() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert count_shared(fingerprints(x), fingerprints(x.flip(1))) == 0


def test_nothing_and_minus_nothing_are_the_same() -> None:
    assert count_shared(fingerprints(torch.tensor([[0.0, 1.0]])), fingerprints(torch.tensor([[-0.0, 1.0]]))) == 1
