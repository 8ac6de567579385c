"""Networks side by side on one GPU: each small kernel leaves most of it idle, so several streams are used at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MOST_STREAMS = 8


class CudaStreams:
    """Streams beside the current one, on a GPU; elsewhere nothing.

    Work in one begins after what was asked of the current stream before. After :meth:`join` the current stream waits
    for all of them. The backward pass of work runs in its stream by itself.
    """

    def __init__(self, most: int = _MOST_STREAMS) -> None:
        self._most = most
        self._streams: list[torch.cuda.Stream] = []
        self._used: set[int] = set()

    @contextmanager
    def use(self, number: int, device: torch.device) -> Iterator[None]:
        """Run work in a stream; numbers beyond the most streams share them."""
        if device.type != "cuda":
            yield
            return
        number %= self._most
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
