"""How a device computes: the precision of float32 products, and CUDA streams for networks side by side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch

from fedmm.core.validation import one_of

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


def read_precision(name: str, option: str) -> Precision:
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


_MOST_STREAMS = 8


class CudaStreams:
    """Streams beside the current one, on a GPU; elsewhere nothing.

    Work in one begins after what was asked of the current stream before. After :meth:`join` the current stream waits
    for all of them. The backward pass of work runs in its stream by itself.
    """

    def __init__(self) -> None:
        self._streams: list[torch.cuda.Stream] = []
        self._used: set[int] = set()

    @contextmanager
    def use(self, number: int, device: torch.device) -> Iterator[None]:
        """Run work in a stream; numbers beyond the most streams share them."""
        if device.type != "cuda":
            yield
            return
        number %= _MOST_STREAMS
        while len(self._streams) <= number:
            self._streams.append(torch.cuda.Stream(device))  # type: ignore[no-untyped-call]
        stream = self._streams[number]
        stream.wait_stream(torch.cuda.current_stream(device))
        self._used.add(number)
        with torch.cuda.stream(stream):
            yield

    def join(self, device: torch.device) -> None:
        """Let the current stream wait for every stream that was used."""
        if device.type == "cuda":
            for number in sorted(self._used):
                torch.cuda.current_stream(device).wait_stream(self._streams[number])
            self._used.clear()
