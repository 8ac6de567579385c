from __future__ import annotations

import pytest
import torch
from hypothesis import given
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
