"""Rows on another device than the numbers by which they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedmm.data.rows import TensorRows


class AsStrictAsAGpu(TorchFunctionMode):
    """Refuses an index that lies neither on the CPU nor beside what it indexes, as CUDA does and ``meta`` does not."""

    def __torch_function__(
        self, func: Any, kinds: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is Tensor.__getitem__ and isinstance(args[1], Tensor):
            assert args[1].device in (torch.device("cpu"), args[0].device)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("of_rows", "of_part", "asked"),
    [
        ("cpu", "cpu", "cpu"),
        ("meta", None, "cpu"),
        ("meta", "cpu", "cpu"),
        ("meta", "meta", "cpu"),
        ("meta", "meta", "meta"),
    ],
)
def test_rows_are_given_out_where_they_lie(of_rows: str, of_part: str | None, asked: str) -> None:
    part = None if of_part is None else torch.tensor([0, 2, 3], device=of_part)
    held = TensorRows(torch.zeros(4, 2, device=of_rows), torch.zeros(4, dtype=torch.int64, device=of_rows), index=part)
    with AsStrictAsAGpu():
        index = torch.tensor([1, 0], device=asked)
        found, labels = held.take(index), held.labels(index)
    assert (found.shape, labels.shape) == ((2, 2), (2,))
    assert found.device.type == labels.device.type == of_rows
