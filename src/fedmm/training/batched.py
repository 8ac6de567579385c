"""Several prepared runs of one shape as one program: building and running it, with their guards and best models."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import Diverged
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics
from fedmm.engines.batched import METRICS, Batched, Replica, round_record
from fedmm.models.devices import Precision, precision
from fedmm.models.stacked.network import StackedNetwork
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.callbacks import BestModel, Callback, RunLog, Status, Training, best_model_in
from fedmm.training.checkpoints import Checkpoints
from fedmm.training.evaluators import evaluate_replicas
from fedmm.training.guard import Watch, stop_of
from fedmm.training.history import Event, History, Row
from fedmm.training.loop import ctrl_c_waits, run_rounds
from fedmm.training.snapshots import ResumePoint

_FLUSH_SECONDS = 0.5


@dataclass(frozen=True)
class StackSettings:
    """How to run a stack.

    looped: run network by network instead of layer by layer. channels_last: store pictures in that memory format.
    chunk: clients of each replica to run at once, 0 for all. capture: replay CUDA graphs.
    """

    looped: bool = False
    channels_last: bool = False
    chunk: int = 0
    capture: bool = False


def build_stack(
    adaptations: Sequence[Adaptation], chosen: Precision, settings: StackSettings
) -> tuple[Batched, StackedNetwork]:
    """Return the engine of a stack, and its networks as one function; keep replicas of one algorithm adjacent."""
    first = adaptations[0].function
    network = StackedNetwork(
        [adaptation.function.module for adaptation in adaptations],
        first.layout,
        precision=chosen,
        frozen_statistics=first.policy == "frozen",
        looped=settings.looped,
        channels_last=settings.channels_last,
    )
    capture = ("round" if network.layer_by_layer else "step") if settings.capture else "none"
    engine = Batched(
        [Replica(a.problem, a.algorithm, a.rounds, a.terms) for a in adaptations],
        network,
        capture=capture,  # type: ignore[arg-type]
        chunk=settings.chunk or None,
        around=partial(precision, chosen, first.layout.device),
        guarded=any(each.guard.watches for each in adaptations),
    )
    return engine, network


@dataclass(frozen=True)
class _Round:
    """A finished round: the metrics of all replicas, still on the device, and what their guards did."""

    number: int
    measures: Tensor
    verdicts: Tensor
    found: dict[str, Tensor]
    clients: Tensor | None
    events: dict[int, Event]


class StackRun:
    """A stack with its histories; metrics stay on the device until they are recorded.

    callbacks: of each replica; a ``BestModel`` among them keeps that replica's best model.
    resume_from: a state and its history for each replica.
    """

    def __init__(
        self,
        adaptations: Sequence[Adaptation],
        chosen: Precision,
        settings: StackSettings,
        callbacks: Sequence[Sequence[Callback]] = (),
        resume_from: Sequence[ResumePoint] = (),
    ) -> None:
        self.adaptations = adaptations
        self.engine, self.network = build_stack(adaptations, chosen, settings)
        if resume_from:
            self.engine.load([state for state, _ in resume_from])
        self.histories = [history for _, history in resume_from] or [History() for _ in adaptations]
        states = [state for state, _ in resume_from] or [self.engine.state(n) for n in range(len(adaptations))]
        watching = any(adaptation.guard.watches for adaptation in adaptations)
        self._guard = StackGuard(adaptations, self.engine, states, self.histories) if watching else None
        given = callbacks or [()] * len(adaptations)
        self._models = [
            best_model_in(own) or adaptation.best_model() for own, adaptation in zip(given, adaptations, strict=True)
        ]
        self._best = StackBest(self._models, self.engine)
        self._logs = [
            RunLog(
                [*adaptation.callbacks(), *(callback for callback in own if not isinstance(callback, BestModel))],
                history,
            )
            for adaptation, own, history in zip(adaptations, given, self.histories, strict=True)
        ]
        checkpoints = [callback for own in given for callback in own if isinstance(callback, Checkpoints)]
        for checkpoint in checkpoints:
            checkpoint.together = checkpoints
        self._closed: set[int] = set()
        self._evaluate_every = 1
        self._impatient = any(adaptation.stopping.stop_by for adaptation in adaptations)
        self.ended = self.halfway = False
        self._around = partial(precision, chosen, adaptations[0].function.layout.device)
        self._pending: list[_Round] = []
        self._constants = self.network.constants(torch.arange(len(adaptations), device=self.engine.layout.device))

    def run(self, rounds: int, evaluate_every: int, stop: Callable[[], bool] = lambda: False) -> Status:
        """Run to the end, until Ctrl-C, or until ``stop`` returns True; every finished round goes to the callbacks.

        Ctrl-C waits for the current round, so that the run can be resumed; a second one takes effect at once.
        """
        self._evaluate_every = evaluate_every
        return run_rounds(self, rounds, stop)

    @property
    def round(self) -> int:
        """The number of finished rounds."""
        return self.engine.round

    def begin(self) -> None:
        """Open the callbacks of every replica."""
        self._flushed = time.perf_counter()
        self._closed = set()
        for replica, log in enumerate(self._logs):
            log.begin(self._state(replica))
        self._close_ended(self.engine.rounds_done.tolist())
        self.ended = self._impatient and self._none_goes_on()

    def advance(self, rounds: int) -> bool:
        """Run one round of all replicas; return whether it was read from the device and passed to the callbacks."""
        with ctrl_c_waits():
            self.halfway = True
            due = self._advance(rounds)
            states = any(log.wants_state(self.round) for n, log in enumerate(self._logs) if n not in self._closed)
            if self._guard or (self._impatient and due):
                self._flush(states=states)
            if self._impatient and due:
                self.ended = self._none_goes_on()
            self.halfway = False
        if not (states or self.round == rounds or time.perf_counter() - self._flushed > _FLUSH_SECONDS):
            return False
        with ctrl_c_waits():
            self._flush(states=states)
            if any(log.stopped for log in self._logs):
                self.ended = self._none_goes_on()
        return True

    def close(self, status: Status | None, error: Diverged | None = None) -> None:
        """Pass the last rounds to the callbacks and close them; after an unexpected error, only close them."""
        if status is None:
            for log in self._logs:
                log.close(None)
            return
        with suppress(KeyboardInterrupt), ctrl_c_waits():
            self._flush(states=False)
            self._close(range(len(self._logs)), status)

    def _advance(self, rounds: int) -> bool:
        """Run one round of all replicas; return whether it was evaluated."""
        if self._guard:
            self._guard.before_round()
        measures = self.engine.advance()
        events = self._guard.after_round(measures) if self._guard else {}
        done = self.engine.round
        due = done % self._evaluate_every == 0 or done == rounds
        found = self.evaluate() if due else {}
        clients = self.engine.by_client if due else None
        self._pending.append(_Round(done, measures, self.engine.verdicts, found, clients, events))
        return due

    def _none_goes_on(self) -> bool:
        """End the replicas that a callback stopped; return whether none is left running."""
        for replica, log in enumerate(self._logs):
            if log.stopped and not self.engine.finished[replica]:
                self.engine.finish(replica)
                self._close([replica], "completed")
        return not bool(self.engine.alive.any())

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """Return the evaluators' metrics of every server's model, ``[replicas]`` by column, on the device."""
        z, statistics = self.engine.models, self._prediction_statistics()

        def outputs(x: Tensor) -> Outputs:
            with self._around():
                return self.network.evaluate(z, x, self._constants, statistics)

        found = evaluate_replicas(
            [adaptation.evaluators for adaptation in self.adaptations], outputs, self.adaptations[0].measures
        )
        self._best.look(found, z, statistics)
        return found

    def _prediction_statistics(self) -> Statistics:
        if self.adaptations[0].function.policy != "local" or not self.engine.statistics:
            return self.engine.statistics
        by_replica = [
            self.engine.prediction_statistics(replica, adaptation.predicting_clients)
            for replica, adaptation in enumerate(self.adaptations)
        ]
        return {name: torch.stack([own[name] for own in by_replica]) for name in by_replica[0]}

    def _state(self, replica: int) -> FederatedState:
        state = self.engine.state(replica)
        return self._guard.with_fallback(replica, state) if self._guard else state

    def _flush(self, *, states: bool) -> None:
        """Pass every pending round to the callbacks; this waits for the device.

        states: also read the states after the last of these rounds.
        """
        if not self._pending:
            return
        done = self.engine.rounds_done.tolist()
        measures = torch.stack([finished.measures for finished in self._pending]).tolist()
        verdicts = torch.stack([finished.verdicts for finished in self._pending]).tolist()
        now = time.perf_counter()
        seconds = (now - self._flushed) / (len(self._pending) * len(self.adaptations))
        self._flushed = now
        pending, self._pending = self._pending, []
        rows: list[tuple[int, Row]] = []
        for finished, of_round, judged in zip(pending, measures, verdicts, strict=True):
            evaluation = {name: values.tolist() for name, values in finished.found.items()}
            of_clients = None if finished.clients is None else finished.clients.tolist()
            for replica, adaptation in enumerate(self.adaptations):
                if finished.number > done[replica]:
                    continue
                values = dict(zip(METRICS, of_round[replica], strict=True))
                refused = self.engine.refusals(replica, judged[replica])
                own = self.engine.clients_of(replica, of_clients[replica]) if of_clients else {}
                record = round_record(finished.number, values, self.engine, replica, seconds, refused, own)
                found = {name: evaluation[name][replica] if evaluation else None for name in adaptation.measures}
                event = finished.events.get(replica)
                rows.append((replica, self._logs[replica].add(record, found, event=event, by_client=bool(own))))
        if states:
            self._best.hand_over(self.histories)
        for replica, row in rows:
            known = states and row["round"] == self.engine.round
            self._logs[replica].tell(self._state(replica) if known else None, row)
        self._close_ended(done)

    def _close_ended(self, done: Sequence[int]) -> None:
        """Close the replicas that ended before the others."""
        ended = [n for n, rounds in enumerate(done) if rounds < self.engine.round or self.engine.finished[n]]
        self._close(ended, "completed")

    def _close(self, replicas: Iterable[int], status: Status) -> None:
        still_open = [replica for replica in replicas if replica not in self._closed]
        if still_open:
            self._best.hand_over(self.histories)
        for replica in still_open:
            self._closed.add(replica)
            self._logs[replica].close(self.training(replica, status))

    def training(self, replica: int, status: Status) -> Training:
        """Return a replica's training; one that stopped before the others has diverged, unless ended on purpose."""
        state = self._state(replica)
        error = stop_of(self.histories[replica])
        if error is None and state.round < self.engine.round and not state.finished:
            error = Diverged(self.engine.offender(replica), state.round + 1)
        ended = "diverged" if error else "completed" if state.finished else status
        stopped = self._logs[replica].stopped if state.finished else None
        return Training(state, self.histories[replica], ended, error, stopped, self._models[replica].best)

    def adapted(self, replica: int, status: Status) -> tuple[Adapted, Diverged | None]:
        """Return a replica's model and history, and the error if it diverged."""
        training = self.training(replica, status)
        return self.adaptations[replica].adapted(training), training.error


class StackBest:
    """Tracks each replica's best model on the device, as its ``BestModel`` would."""

    def __init__(self, models: Sequence[BestModel], engine: Batched) -> None:
        self._models = models
        self._engine = engine
        before = [model.best for model in models]
        device = engine.layout.device
        self._signs = [1.0 if model.by and model.by.higher else -1.0 for model in models]
        values = [sign * best.value if best else torch.nan for sign, best in zip(self._signs, before, strict=True)]
        self._values = torch.tensor(values, dtype=torch.float64, device=device)
        self._rounds = torch.tensor([best.round if best else 0 for best in before], device=device)
        self._z = engine.models.clone()
        self._statistics: Statistics = {}
        self._known = self._rounds.tolist()

    def look(self, found: Mapping[str, Tensor], z: Tensor, statistics: Statistics) -> None:
        """Update the best models by an evaluation: metrics ``[replicas]`` by column, points ``[replicas, size]``."""
        if not any(model.by for model in self._models):
            return
        if not self._statistics:
            self._statistics = {name: value.clone() for name, value in statistics.items()}
        nothing = self._values.new_tensor(torch.nan)
        values = torch.stack(
            [
                sign * found[model.by.column][replica].double() if model.by else nothing
                for replica, (model, sign) in enumerate(zip(self._models, self._signs, strict=True))
            ]
        )
        better = values.isfinite() & (self._values.isnan() | (values > self._values)) & self._engine.alive
        self._values = torch.where(better, values, self._values)
        self._rounds = torch.where(better, self._engine.rounds_done, self._rounds)
        self._z = torch.where(better.unsqueeze(-1), z, self._z)
        for name, value in statistics.items():
            over = better.view(-1, *(1,) * (value.dim() - 1))
            self._statistics[name] = torch.where(over, value, self._statistics[name])

    def hand_over(self, histories: Sequence[History]) -> None:
        """Pass new best models on to the callbacks; the histories must hold every round that was evaluated."""
        for replica, (model, round_) in enumerate(zip(self._models, self._rounds.tolist(), strict=True)):
            if round_ == self._known[replica]:
                continue
            statistics = {name: value[replica].clone() for name, value in self._statistics.items()}
            model.take(histories[replica][round_ - 1], self._z[replica].clone(), statistics)
            self._known[replica] = round_


class StackGuard:
    """The guards of a stack's replicas, at least one of which is on.

    A bad round is detected on the device, within the round, and leaves a replica unchanged. The metrics are read after
    every round, so the cost of a guard is that each round waits for the device.
    """

    def __init__(
        self,
        adaptations: Sequence[Adaptation],
        engine: Batched,
        states: Sequence[FederatedState],
        histories: Sequence[History],
    ) -> None:
        self._engine = engine
        self._histories = histories
        self._watches = [
            Watch(adaptation.guard, adaptation.algorithm, state, history) if adaptation.guard.watches else None
            for adaptation, state, history in zip(adaptations, states, histories, strict=True)
        ]
        for replica, (watch, state) in enumerate(zip(self._watches, states, strict=True)):
            if watch and histories[replica].events and not state.ended:
                engine.restore(replica, state, watch.algorithm)

    def before_round(self) -> None:
        """Set the limits of the next round's metrics on the device."""
        self._engine.set_limits([watch.limits() if watch else None for watch in self._watches])

    def after_round(self, measures: Tensor) -> dict[int, Event]:
        """Roll back the replicas whose round was bad, if their guards do so; return what was done, by replica.

        measures: the round's metrics, ``[replicas, metrics]``.
        """
        events: dict[int, Event] = {}
        round_ = self._engine.round
        for replica, (watch, alive) in enumerate(zip(self._watches, self._engine.alive.tolist(), strict=True)):
            if watch is None or self._engine.finished[replica] or stop_of(self._histories[replica]):
                continue
            if alive:
                if watch.wants(round_):
                    watch.passed(self._engine.state(replica))
                continue
            values = dict(zip(METRICS, measures[replica].tolist(), strict=True))
            limits = watch.limits()
            exploded = watch.trouble({name: values[name] for name in limits}, limits)
            offender = self._engine.offender(replica)
            bad = Diverged(offender, round_, "" if offender else exploded)
            try:
                back = watch.back(round_, bad)
            except Diverged:
                continue
            self._engine.restore(replica, back, watch.algorithm)
            events[replica] = self._histories[replica].events[-1]
        return events

    def with_fallback(self, replica: int, state: FederatedState) -> FederatedState:
        """Return a replica's state with the good states that it may fall back to."""
        watch = self._watches[replica]
        return replace(state, fallback=watch.fallback) if watch else state
