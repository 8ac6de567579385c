"""Estimate a run's parameters, memory and time from local steps measured on this machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from fedmm.core.algorithm import State, first_exchange
from fedmm.core.engine import FederatedState
from fedmm.engines.messages import size_in_bytes
from fedmm.engines.worker import take_step
from fedmm.models.flat import rows_at_once
from fedmm.training.adaptation import Adaptation
from fedmm.training.problem import AdaptationClient

_LONG, _LONG_ENOUGH, _MOST_STEPS = 3.0, 0.4, 15
"""Seconds of a first step that need not be repeated; otherwise, the seconds and number of steps that are enough."""
_LONG_EVALUATION = 2.0
"""Seconds of an evaluation above which only part of it is measured."""
_ROWS_MEASURED, _NUMBERS_MEASURED = 64, 1 << 20
"""The largest batch that is evaluated for the estimate, in rows and in numbers."""
_VECTORS_AT_WORK = 6
"""Vectors of the size of z besides all states: the network's point, gradient and start, and a step's temporaries."""


@dataclass(frozen=True)
class ResourceEstimate:
    """Bytes and seconds that a run needs; a GPU needs the same memory and less time.

    states: of server and clients, with working memory; activations: of one local step's forward and backward pass, for
    all clients at once if the engine stacks them, or of an evaluation if that needs more.
    step: one local step of the slowest kind of client; evaluation: one evaluation; run: all rounds and evaluations.
    """

    parameters: int
    states: int
    data: int
    activations: int
    step: float
    round: float
    evaluation: float
    run: float

    @property
    def memory(self) -> int:
        """The total bytes, without those of torch itself."""
        return self.states + self.data + self.activations


def estimate(adaptation: Adaptation, rows: Iterable[Tensor], evaluate_every: int, *, stacked: bool) -> ResourceEstimate:
    """Estimate by timing local steps of a client of each kind; rows: the tensors of the data, each counted once."""
    engine, layout = adaptation.engine, adaptation.function.layout
    clients, statistics = len(engine.server.names), adaptation.problem.statistics
    number = torch.empty((), dtype=layout.dtype).element_size()
    own = size_in_bytes(engine.server.first()) + clients * (
        size_in_bytes(engine.server.first_own()) + size_in_bytes(statistics)
    )
    totals = clients * layout.size * number if engine.server.totals() else 0
    at_work = clients if stacked else 1
    vectors = clients * max(len(_upload_of(adaptation)), 1) + (_VECTORS_AT_WORK + _for_steps(adaptation)) * at_work
    states = 2 * own + totals + vectors * layout.size * number
    steps, saved, kinds = dict[str, float](), 0, dict[str, str]()
    for client_data in adaptation.client_data:
        kinds.setdefault(client_data.domains, client_data.name)
    for kind, name in kinds.items():
        long = [seconds for seconds in steps.values() if seconds >= _LONG]
        steps[kind], bytes_saved = (long[0], saved) if long else _step(adaptation, name)
        saved = max(saved, bytes_saved)
    kind_of = {client_data.name: client_data.domains for client_data in adaptation.client_data}
    work = sum(count * steps[kind_of[name]] for name, count in engine.server.steps.items() if name in kind_of)
    work /= 2 if adaptation.algorithm.in_pairs else 1
    share = engine.server.taking_part / max(len(kind_of), 1)
    evaluation, measuring = _evaluation(adaptation, _before_the_first(adaptation))
    rounds = adaptation.rounds
    return ResourceEstimate(
        parameters=layout.size,
        states=states,
        data=sum({row.data_ptr(): row.untyped_storage().nbytes() for row in rows}.values()),
        activations=max(saved * (len(kind_of) if stacked else 1), measuring),
        step=max(steps.values()),
        round=work * share,
        evaluation=evaluation,
        run=rounds * work * share + evaluation * -(-rounds // evaluate_every),
    )


def faster_alone(adaptation: Adaptation, step: float) -> float:
    """Return the speedup of a local step on one thread, 1 if a step is long; step: its seconds on torch's threads."""
    threads = torch.get_num_threads()
    if threads == 1 or step > _LONG_ENOUGH:
        return 1.0
    torch.set_num_threads(1)
    try:
        return step / _step(adaptation, adaptation.client_data[0].name)[0]
    finally:
        torch.set_num_threads(threads)


def _before_the_first(adaptation: Adaptation) -> FederatedState:
    """Return the initial state as far as evaluation needs it, without clients' own states, which may be large."""
    server, statistics = adaptation.engine.server, adaptation.problem.statistics
    return FederatedState(0, server.first(), {}, statistics, dict.fromkeys(server.names, statistics))


def _upload_of(adaptation: Adaptation) -> State:
    """Return an example of a client's upload."""
    upload, _ = first_exchange(adaptation.algorithm, adaptation.function.layout, adaptation.problem.start)
    return upload


def _for_steps(adaptation: Adaptation) -> int:
    """Return how many vectors of the size of z a client holds only during its local steps."""
    engine, algorithm = adaptation.engine, adaptation.algorithm
    sent, own = engine.server.broadcast(engine.server.first()).sent, engine.server.first_own()
    c = engine.workers[engine.server.names[0]].coefficients(0)
    working = algorithm.begin(sent["z"], sent, own, c)
    return sum(working[name].numel() for name in working.keys() - own.keys()) // sent["z"].numel()


def _step(adaptation: Adaptation, name: str) -> tuple[float, int]:
    """Return the seconds of a client's local step, and the bytes of its saved activations and their gradients."""
    engine, algorithm = adaptation.engine, adaptation.algorithm
    worker = engine.workers[name]
    client = worker.client
    assert isinstance(client, AdaptationClient)
    sent, own, c = (
        engine.server.broadcast(engine.server.first()).sent,
        engine.server.first_own(),
        worker.coefficients(0),
    )
    held = next(client.network.module.parameters()).untyped_storage().data_ptr()
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() != held:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    local = client.open_round(0, adaptation.rounds, _MOST_STEPS + 1, adaptation.problem.statistics)
    own = algorithm.begin(sent["z"], sent, own, c)

    def step(number: int) -> None:
        take_step(algorithm, local, number, sent["z"], sent, own, c)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        found = [_measure_seconds(partial(step, 0))]
    if found[0] < _LONG:
        found = []
        while len(found) < _MOST_STEPS and sum(found) < _LONG_ENOUGH:
            found.append(_measure_seconds(partial(step, len(found) + 1)))
    return min(found), sum(kept.values()) + 2 * max(kept.values(), default=0)  # two gradients at a time


def _evaluation(adaptation: Adaptation, state: FederatedState) -> tuple[float, int]:
    """Return the seconds of one evaluation, extrapolated from some rows if it is long, and its peak bytes."""
    function, total, at_once = adaptation.function, 0.0, rows_at_once(adaptation.function.input_shape)
    peak, few = 0, max(2, min(_ROWS_MEASURED, _NUMBERS_MEASURED // torch.Size(function.input_shape).numel()))
    for evaluator in adaptation.evaluators:
        part = evaluator.take(slice(0, min(at_once, few, len(evaluator))))
        work = partial(function.evaluate, function.start, function.statistics)
        work(part[:1])
        with _largest_layer(function.module) as layers:
            seconds = _measure_seconds(partial(work, part))
        total += seconds * len(evaluator) / len(part)
        peak = max(peak, max(layers, default=0) * min(at_once, len(evaluator)) // len(part))
    if adaptation.evaluators and total < _LONG_EVALUATION:
        total = min(_measure_seconds(partial(adaptation.evaluate, state)) for _ in range(2))
    return total, peak


@contextmanager
def _largest_layer(module: nn.Module) -> Iterator[list[int]]:
    """Record the input and output bytes of each layer that runs inside this context."""
    found: list[int] = []

    def note(layer: nn.Module, given: tuple[object, ...], made: object) -> None:
        tensors = [value for value in (*given, made) if isinstance(value, Tensor)]
        found.append(sum(tensor.numel() * tensor.element_size() for tensor in tensors))

    hooks = [layer.register_forward_hook(note) for layer in module.modules() if not list(layer.children())]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _measure_seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
