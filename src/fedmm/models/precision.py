"""How exact float32 products are on a GPU: an explicit choice, switched on around the work and off again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch

from fedmm.core.validation import one_of

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


def named_precision(name: str, option: str) -> Precision:
    """The precision that an option names; another is refused."""
    one_of(option, name, PRECISIONS)
    return cast(Precision, name)


@contextmanager
def precision(chosen: Precision, device: torch.device) -> Iterator[None]:
    """``fp32``: strict; ``tf32``: float32 with 10-bit mantissas in products; ``bf16``: products in bfloat16.

    On a CPU, float32 products are strict unless bf16 is chosen.
    """
    if device.type == "cuda":
        matmul, cudnn = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = chosen != "fp32"
        try:
            with _autocast(chosen, device):
                yield
        finally:
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul, cudnn
    else:
        with _autocast(chosen, device):
            yield


def _autocast(chosen: Precision, device: torch.device) -> torch.autocast | nullcontext[None]:
    if chosen != "bf16":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16, cache_enabled=False)
