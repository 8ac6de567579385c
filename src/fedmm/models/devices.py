"""Device settings: the precision of float32 products, and CUDA streams to run networks concurrently."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Literal, cast

import torch

from fedmm.core.validation import one_of

Precision = Literal["fp32", "tf32", "bf16"]
PRECISIONS = ("fp32", "tf32", "bf16")


def read_precision(name: str, option: str) -> Precision:
    """Return the precision named by an option; refuse an unknown one."""
    one_of(option, name, PRECISIONS)
    return cast(Precision, name)


@contextmanager
def precision(chosen: Precision, device: torch.device) -> Iterator[None]:
    """Set the precision of products within the context.

    ``fp32``: strict; ``tf32``: 10-bit mantissas, on GPUs only (strict on a CPU); ``bf16``: products in bfloat16.
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
    """Side streams on a GPU; on other devices this does nothing.

    Work on a side stream starts after the work already queued on the current stream; after :meth:`join` the current
    stream waits for all side streams. Autograd runs the backward pass on the stream of the forward pass.
    """

    def __init__(self) -> None:
        self._streams: list[torch.cuda.Stream] = []
        self._used: set[int] = set()

    @contextmanager
    def use(self, number: int, device: torch.device) -> Iterator[None]:
        """Run the work inside the context on side stream ``number`` (modulo their maximum number)."""
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
        """Make the current stream wait for every side stream used since the last join."""
        if device.type == "cuda":
            for number in sorted(self._used):
                torch.cuda.current_stream(device).wait_stream(self._streams[number])
            self._used.clear()
