"""Choosing the fastest way to run a stack on this machine, by measurement."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmm.core.algorithm import steps_by_client
from fedmm.core.errors import count_of
from fedmm.engines.batched import Batched
from fedmm.models.devices import Precision
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack

_CPU_MEMORY = 64 << 20  # about the size of the caches; larger chunks were slower per client
_GPU_SHARE = 0.4
_ALWAYS_FITS = 32
_TRIALS = 3
START_SECONDS = 6.0
"""The start-up cost of separate processes."""


@dataclass(frozen=True)
class Tuned:
    """The chosen way to run. settings: of the stack. threads: of each process on a CPU. why: what was measured."""

    settings: StackSettings
    threads: int
    processes: int
    why: str


def choose_settings(adaptations: Sequence[Adaptation], chosen: Precision, threads: int = 0) -> Tuned:
    """Return the fastest way to run these replicas on their device. threads: of each process; 0 to choose them too."""
    device = adaptations[0].function.layout.device
    if device.type == "cuda":
        settings = StackSettings(capture=True, channels_last=True)
        settings = replace(settings, chunk=chunk_that_fits(adaptations, chosen, settings))
        return Tuned(settings, torch.get_num_threads(), 1, "a GPU: rounds are captured as CUDA graphs")
    return _choose_on_cpu(adaptations, chosen, threads)


def _choose_on_cpu(adaptations: Sequence[Adaptation], chosen: Precision, wanted: int) -> Tuned:
    cores = os.cpu_count() or 1
    pictures = len(adaptations[0].function.input_shape) == 3
    ways = [StackSettings(), StackSettings(looped=True)]
    if pictures:
        ways.append(StackSettings(looped=True, channels_last=True))
    most_steps = max(
        steps_by_client(a.algorithm.steps, a.problem.listed)[h.name] for a in adaptations for h in a.client_data
    )
    steps = most_steps * adaptations[0].rounds * len(adaptations)
    best: tuple[float, float, StackSettings, int, int] | None = None
    for threads in [wanted] if wanted else sorted({1, cores}):
        processes = max(1, cores // threads)
        share = adaptations[: -(-len(adaptations) // processes)]
        for way in ways:
            settings = replace(way, chunk=chunk_that_fits(share, chosen, way))
            with torch_threads(threads):
                seconds = _seconds_per_step(share, chosen, settings) / len(share)
            used = min(processes, len(adaptations))
            whole = seconds / used * steps + (START_SECONDS if used > 1 else 0.0)
            if best is None or whole < best[0]:
                best = (whole, seconds / used, settings, threads, used)
    assert best is not None
    _, seconds, settings, threads, processes = best
    order = "network by network" if settings.looped else "layer by layer"
    memory = ", channels last" if settings.channels_last else ""
    return Tuned(
        settings,
        threads,
        processes,
        f"measured best: {order}{memory}, {count_of(processes, 'process', 'processes')} of "
        f"{count_of(threads, 'thread')}, {1e3 * seconds:.2f} ms per step and run",
    )


def _seconds_per_step(adaptations: Sequence[Adaptation], chosen: Precision, settings: StackSettings) -> float:
    """Return the seconds of one local step of all replicas, the best of a few trials."""
    engine, _ = build_stack(adaptations, chosen, settings)
    times = []
    for _ in range(_TRIALS + 1):
        began = time.perf_counter()
        engine.try_step()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def chunk_that_fits(adaptations: Sequence[Adaptation], chosen: Precision, settings: StackSettings) -> int:
    """Return how many clients of each replica fit into memory at once."""
    device = adaptations[0].function.layout.device
    clients = len(adaptations[0].problem.clients)
    if device.type == "cuda" and clients * len(adaptations) <= _ALWAYS_FITS:
        return clients
    memory = _GPU_SHARE * torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _CPU_MEMORY
    one, _ = build_stack(adaptations[:1], chosen, replace(settings, chunk=1, capture=False))
    needed = max(1, _bytes_kept(one)) * len(adaptations)
    return int(min(clients, max(1, memory // needed)))


def _bytes_kept(engine: Batched) -> int:
    """Estimate the memory of one client's step: twice what autograd saves, and a few vectors like z."""
    vectors = 6 * engine.z[0].numel() * engine.z.element_size()
    kept = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal kept
        kept += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        engine.try_step()
    return 2 * kept + vectors


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """Set torch's number of threads within the context."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
