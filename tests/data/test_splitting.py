from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedmm.core.errors import FedmmError
from fedmm.data.splitting import split_rows


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
