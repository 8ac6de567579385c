"""Several prepared runs of one shape as one program: building it, choosing how it runs, running it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from fedmm.core.errors import Diverged
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics
from fedmm.engines.batched import METRICS, Batched, Replica, round_record
from fedmm.models.precision import Precision, precision
from fedmm.models.stacked.network import StackedNetwork
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.batched_best import StackBest
from fedmm.training.batched_guard import StackGuard, stop_of
from fedmm.training.checkpoints import Checkpoints
from fedmm.training.evaluators import evaluated
from fedmm.training.history import Event, History, Row
from fedmm.training.loop import Begun, Status, Training, ctrl_c_waits
from fedmm.training.selection import Patience

_FLUSH_SECONDS = 0.5


@dataclass(frozen=True)
class StackSettings:
    """How a stack runs.

    looped: network by network instead of layer by layer; channels_last: pictures in that memory format.
    chunk: clients of each replica at once, 0 for all; capture: replay CUDA graphs.
    """

    looped: bool = False
    channels_last: bool = False
    chunk: int = 0
    capture: bool = False


def build_stack(
    adaptations: Sequence[Adaptation], chosen: Precision, settings: StackSettings
) -> tuple[Batched, StackedNetwork]:
    """The engine of a stack, and its networks as one function; replicas of one algorithm must stand together."""
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
    """A round that is over: what it measured of all replicas, on the device, and what their guards did."""

    number: int
    measures: Tensor
    verdicts: Tensor
    found: dict[str, Tensor]
    clients: Tensor | None
    events: dict[int, Event]


class StackRun:
    """A stack with its histories: what is measured stays on the device until it is written."""

    def __init__(
        self,
        adaptations: Sequence[Adaptation],
        chosen: Precision,
        settings: StackSettings,
        on_row: Callable[[int, Row], None],
        *,
        begun: Sequence[Begun] = (),
        checkpoints: Sequence[Checkpoints] = (),
    ) -> None:
        self.adaptations = adaptations
        self._checkpoints = checkpoints
        self._choosers = [each.best for each in checkpoints] or [each.chooser() for each in adaptations]
        self.engine, self.network = build_stack(adaptations, chosen, settings)
        self.histories = [history for _, history in begun] or [History() for _ in adaptations]
        if begun:
            self.engine.load([state for state, _ in begun])
        self._saved = self.engine.round if begun else -1
        self._stopped = {replica for replica, (state, _) in enumerate(begun) if state.ended}
        self._best = StackBest(self._choosers, self.engine)
        states = [state for state, _ in begun] or [self.engine.state(replica) for replica in range(len(adaptations))]
        watching = any(each.guard.watches for each in adaptations)
        self._guard = StackGuard(adaptations, self.engine, states, self.histories) if watching else None
        self._around = partial(precision, chosen, adaptations[0].function.layout.device)
        self._on_row = on_row
        self._pending: list[_Round] = []
        self._constants = self.network.constants(
            torch.arange(len(adaptations), device=adaptations[0].function.layout.device)
        )

    def run(self, rounds: int, evaluate_every: int, stop: Callable[[], bool] = lambda: False) -> Status:
        """Run to the end, until Ctrl-C, or until ``stop`` says so; every finished round is handed on.

        Ctrl-C waits for the round under way, so that the states can be gone on from; a second one is passed on at once.
        """
        status: Status = "completed"
        self._flushed = time.perf_counter()
        whole = True
        self._patience = [
            Patience(each.stopping, history) for each, history in zip(self.adaptations, self.histories, strict=True)
        ]
        impatient = any(each.stopping.stop_by for each in self.adaptations)
        try:
            ended = impatient and self._ended()
            while self.engine.round < rounds and not ended:
                with ctrl_c_waits():
                    whole = False
                    if self._guard:
                        self._guard.before_round()
                    measures = self.engine.advance()
                    events = self._guard.after_round(measures) if self._guard else {}
                    done = self.engine.round
                    due = done % evaluate_every == 0 or done == rounds
                    found = self.evaluate() if due else {}
                    clients = self.engine.by_client if due else None
                    self._pending.append(_Round(done, measures, self.engine.verdicts, found, clients, events))
                    if self._guard or (impatient and due):
                        self._flush()
                    ended = impatient and due and self._ended()
                    whole = True
                keep = any(each.due(done) for each in self._checkpoints) or done == rounds
                if keep or time.perf_counter() - self._flushed > _FLUSH_SECONDS:
                    with ctrl_c_waits():
                        self._flush()
                        if keep:
                            self._save()
                    if done < rounds and stop():
                        status = "interrupted"
                        break
        except KeyboardInterrupt:
            if not whole:
                raise
            status = "interrupted"
        with suppress(KeyboardInterrupt), ctrl_c_waits():
            self._flush()
            if self._saved != self.engine.round:
                self._save()
            self._best.hand_over(self.histories)
        return status

    def _ended(self) -> bool:
        """Whether no replica goes on; those whose validators want no more stay as they are."""
        for replica, patience in enumerate(self._patience):
            if patience.stopped and not self.engine.finished[replica]:
                self.engine.finish(replica)
        return not bool(self.engine.alive.any())

    @torch.no_grad()
    def evaluate(self) -> dict[str, Tensor]:
        """What the probes measure of every server's model, ``[replicas]`` by column, on the device."""
        z, statistics = self.engine.z, self._prediction_statistics()

        def outputs(x: Tensor) -> Outputs:
            with self._around():
                return self.network.evaluate(z, x, self._constants, statistics)

        found = evaluated([each.probes for each in self.adaptations], outputs, self.adaptations[0].measures)
        self._best.look(found, z, statistics)
        return found

    def _prediction_statistics(self) -> Statistics:
        if self.adaptations[0].function.policy != "local" or not self.engine.statistics:
            return self.engine.statistics
        each = [
            self.engine.prediction_statistics(replica, adaptation.predicting_clients)
            for replica, adaptation in enumerate(self.adaptations)
        ]
        return {name: torch.stack([own[name] for own in each]) for name in each[0]}

    def _save(self) -> None:
        """Write checkpoints of this round; those of replicas that stopped earlier are as they were.

        Older ones are removed when all are written: whatever happens meanwhile, all replicas have those of one round.
        """
        if self._checkpoints:
            self._best.hand_over(self.histories)
        for replica, checkpoints in enumerate(self._checkpoints):
            if replica in self._stopped:
                continue
            state, history = self.engine.state(replica), self.histories[replica]
            if self._guard:
                state = self._guard.with_fallback(replica, state)
            checkpoints.write(state, history)
            self._stopped |= {replica} if state.ended else set()
        for checkpoints in self._checkpoints:
            checkpoints.tidy()
        self._saved = self.engine.round

    def _flush(self) -> None:
        """Hand on every pending round; this is where the device is waited for."""
        if not self._pending:
            return
        done = self.engine.rounds_done.tolist()
        measures = torch.stack([each.measures for each in self._pending]).tolist()
        verdicts = torch.stack([each.verdicts for each in self._pending]).tolist()
        now = time.perf_counter()
        seconds = (now - self._flushed) / (len(self._pending) * len(self.adaptations))
        self._flushed = now
        pending, self._pending = self._pending, []
        for each, of_round, judged in zip(pending, measures, verdicts, strict=True):
            evaluation = {name: values.tolist() for name, values in each.found.items()}
            of_clients = None if each.clients is None else each.clients.tolist()
            for replica, adaptation in enumerate(self.adaptations):
                if each.number > done[replica]:
                    continue
                values = dict(zip(METRICS, of_round[replica], strict=True))
                refused = self.engine.refusals(replica, judged[replica])
                own = self.engine.clients_of(replica, of_clients[replica]) if of_clients else {}
                record = round_record(each.number, values, self.engine, replica, seconds, refused, own)
                found = {name: evaluation[name][replica] if evaluation else None for name in adaptation.measures}
                history = self.histories[replica]
                if adaptation.account:
                    found |= adaptation.account.after(history["clients"], record.clients)
                row = history.append(record, found, each.events.get(replica), by_client=bool(own))
                self._patience[replica].look(row)
                self._on_row(replica, row)

    def training(self, replica: int, status: Status) -> Training:
        """How one replica's training went; one that stopped before the others has diverged, unless it was finished."""
        state = self.engine.state(replica)
        error = stop_of(self.histories[replica])
        if error is None and state.round < self.engine.round and not state.finished:
            error = Diverged(self.engine.offender(replica), state.round + 1)
        ended = "diverged" if error else "completed" if state.finished else status
        stopped = self._patience[replica].stopped if state.finished else None
        return Training(state, self.histories[replica], ended, error, stopped, self._choosers[replica].best)

    def adapted(self, replica: int, status: Status) -> tuple[Adapted, Diverged | None]:
        """One replica's model and history, and what diverged."""
        training = self.training(replica, status)
        return self.adaptations[replica].adapted(training), training.error
