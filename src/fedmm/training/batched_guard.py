"""Guards over the runs of a stack: each is looked at, and goes back, by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import Diverged
from fedmm.engines.batched import METRICS, Batched
from fedmm.training.adaptation import Adaptation
from fedmm.training.guard import Watch
from fedmm.training.history import Event, History


class StackGuard:
    """The guards of a stack's replicas, of which at least one watches.

    A bad round is noticed on the device, in the round itself, and leaves a replica as it was. What it measured is read
    after every round, which is the guard's cost: the device is waited for.
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
            Watch(each.guard, each.algorithm, state, history) if each.guard.watches else None
            for each, state, history in zip(adaptations, states, histories, strict=True)
        ]
        for replica, (watch, state) in enumerate(zip(self._watches, states, strict=True)):
            if watch and histories[replica].events and not state.ended:
                engine.restore(replica, state, watch.algorithm)

    def before_round(self) -> None:
        """Tell the device what the next round may measure."""
        self._engine.set_limits([watch.limits() if watch else None for watch in self._watches])

    def after_round(self, measures: Tensor) -> dict[int, Event]:
        """Bring back the replicas whose round was bad, where their guards want that; what was done, by replica.

        measures: ``[replicas, measures]`` of the round.
        """
        events: dict[int, Event] = {}
        round_ = self._engine.round
        for replica, (watch, alive) in enumerate(zip(self._watches, self._engine.alive.tolist(), strict=True)):
            if watch is None or self._engine.finished[replica] or _stopped(self._histories[replica]):
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
        """A replica's state with the good ones that it may go back to."""
        watch = self._watches[replica]
        return replace(state, fallback=watch.fallback) if watch else state


def _stopped(history: History) -> bool:
    return bool(history.events) and history.events[-1]["policy"] == "stop"


def stop_of(history: History) -> Diverged | None:
    """Why a guard ended a run; None where none did."""
    last = history.events[-1] if _stopped(history) else None
    return Diverged("", last["round"], last["reason"]) if last else None
