"""CUDA graphs, which record work once and replay it with one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Work = Callable[[], None]


def warm_up(work: Work, changed: Sequence[Tensor]) -> None:
    """Run ``work`` so that kernels are compiled and chosen, then restore the tensors that it ``changed``."""
    kept = [tensor.clone() for tensor in changed]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    for tensor, before in zip(changed, kept, strict=True):
        tensor.copy_(before)
    torch.cuda.synchronize()


def capture_graphs(works: Sequence[Work]) -> list[Work]:
    """Return a replay function for each work; they share memory, so only one may run at a time."""
    memory = torch.cuda.graph_pool_handle()
    replays = []
    for work in works:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            work()
        replays.append(graph.replay)
    return replays
