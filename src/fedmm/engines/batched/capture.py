"""CUDA graphs: work that is recorded once and replayed with one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Work = Callable[[], None]


def warm_up(work: Work, changed: Sequence[Tensor]) -> None:
    """Run ``work`` so that kernels are compiled and chosen, then put the tensors it ``changed`` back as they were."""
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
    """A replay for each work; they share their memory, so that only one may run at a time."""
    memory = torch.cuda.graph_pool_handle()
    replays = []
    for work in works:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=memory):
            work()
        replays.append(graph.replay)
    return replays
