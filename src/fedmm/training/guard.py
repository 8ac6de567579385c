"""A guard over a run: it detects rounds that are not finite or explode, and stops, rolls back or skips clients."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Literal

from fedmm.core.algorithm import Algorithm, State
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import Diverged, require
from fedmm.core.federation import Terms
from fedmm.core.layout import PerGroup
from fedmm.core.validation import at_least, one_of, within
from fedmm.training.history import History

Policy = Literal["off", "stop", "rollback", "skip_client"]
POLICIES: tuple[Policy, ...] = ("off", "stop", "rollback", "skip_client")

DISTANCES = ("drift", "consensus_gap", "dual_norm")
LOSSES = ("task_loss", "domain_loss")
WATCHED = DISTANCES + LOSSES
"""The metrics that a guard checks in every round. A server step is no longer than drift and duals allow, so gradients
and parameters cannot explode without these."""

_STEPS = ("lr_min", "lr_max")
_PENALTIES = ("penalty_min", "penalty_max")


@dataclass(frozen=True)
class Guard:
    """The section ``[guard]``: what to do about a round that is not finite, or explodes.

    A round explodes if drift, consensus gap, dual norm or a loss exceeds ``explode`` times its median over the last
    ``window`` rounds. A distance must also exceed its maximum over the first ``window`` rounds, and a loss half of its
    value in the first round.

    policy: ``off``: a value that is not finite ends the run, and nothing else is checked. ``stop``: an explosion ends
        it too. ``rollback``: the run returns to a good state and continues from there with smaller steps; the lost
        rounds still count. ``skip_client``: a client's update is left out of a round if it is not finite, or if its
        norm exceeds ``explode`` times the median of its group; a round that still explodes ends the run.
    look_back: rounds between two good states that are kept; a rollback returns to the older of the last two.
    calm, stiffen: the factors by which a rollback multiplies learning rates and penalties.
    most: the number of rollbacks before the run ends.
    """

    policy: Policy = "off"
    explode: float = 20.0
    window: int = 50
    look_back: int = 20
    calm: float = 0.5
    stiffen: float = 2.0
    most: int = 5

    def __post_init__(self) -> None:
        one_of("policy", self.policy, POLICIES)
        require(1.0 < self.explode < math.inf, f"explode must be a number above 1, not {self.explode}")
        at_least("window", self.window, 2)
        at_least("look_back", self.look_back, 1)
        within("calm", self.calm, 1e-6, 1.0)
        within("stiffen", self.stiffen, 1.0, 1e6)
        at_least("most", self.most, 0)

    @property
    def watches(self) -> bool:
        """Whether rounds are checked."""
        return self.policy != "off"

    def terms(self, terms: Terms) -> Terms:
        """Return the terms with this guard's policy applied."""
        if self.policy != "skip_client":
            return terms
        return replace(terms, on_bad_update="skip", max_update_ratio=terms.max_update_ratio or self.explode)


class Watch:
    """What a guard knows about a run, all of it kept in the history and a state's ``fallback`` for resuming."""

    def __init__(self, guard: Guard, algorithm: Algorithm, state: FederatedState, history: History) -> None:
        self.guard = guard
        self._algorithm = algorithm
        self._history = history
        self._good: tuple[FederatedState, ...] = state.fallback or (replace(state, fallback=()),)

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm with its step sizes and penalties after the rollbacks so far."""
        times = sum(event["policy"] == "rollback" for event in self._history.events)
        return calmer(self._algorithm, self.guard.calm**times, self.guard.stiffen**times)

    def limits(self) -> dict[str, float]:
        """Return the upper limit of each metric in the next round; infinite until enough rounds were seen."""
        since = self._history.events[-1]["round"] if self._history.events else 0
        rows = self._history[max(since, len(self._history) - self.guard.window) :]
        return {name: self._limit(name, [row.get(name) for row in rows]) for name in WATCHED}

    def _limit(self, name: str, recent: Sequence[float | None]) -> float:
        seen = [abs(value) for value in recent if value is not None and math.isfinite(value)]
        if len(seen) < self.guard.window // 2:
            return math.inf
        return max(self.guard.explode * median(seen), self._harmless(name))

    def _harmless(self, name: str) -> float:
        """Return a metric's size early in the run: a jump back to that from something very small is no explosion."""
        if name in LOSSES:
            return 0.5 * abs(next((value for row in self._history if (value := row.get(name)) is not None), 0.0))
        began = [row.get(name) for row in self._history[: self.guard.window] if row.get("rolled_back_to") is None]
        return max((abs(value) for value in began if value is not None and math.isfinite(value)), default=0.0)

    def trouble(self, values: Mapping[str, float], limits: Mapping[str, float]) -> str:
        """Return what is wrong with a round that has these metrics; empty for a good one."""
        for name, value in values.items():
            if not math.isfinite(value):
                return f"{name} is not finite"
        for name in WATCHED:
            if abs(values.get(name, 0.0)) > limits[name]:
                return f"{name} is {abs(values[name]):.3g}, above {limits[name]:.3g}"
        return ""

    @property
    def fallback(self) -> tuple[FederatedState, ...]:
        """The states that the run may return to, oldest first."""
        return self._good if self.guard.policy == "rollback" else ()

    def wants(self, round_: int) -> bool:
        """Return whether to keep the state after this round, if it is good."""
        return self.guard.policy == "rollback" and round_ - self._good[-1].round >= self.guard.look_back

    def passed(self, state: FederatedState) -> FederatedState:
        """Return a good round's state, with the states to fall back to."""
        if self.wants(state.round):
            self._good = (self._good[-1], replace(state, fallback=()))
        return replace(state, fallback=self.fallback)

    def back(self, round_: int, trouble: Diverged) -> FederatedState:
        """Return the state to continue from after a bad round; raise ``trouble`` if the run must end."""
        rollbacks = sum(event["policy"] == "rollback" for event in self._history.events) + 1
        good = self._good[0]
        gives_up = self.guard.policy != "rollback" or rollbacks > self.guard.most
        times = rollbacks - gives_up
        self._history.events.append(
            {
                "round": round_,
                "policy": "stop" if gives_up else "rollback",
                "reason": trouble.reason,
                "to_round": round_ - 1 if gives_up else good.round,
                "lr_times": self.guard.calm**times,
                "penalty_times": self.guard.stiffen**times,
            }
        )
        if gives_up:
            raise trouble
        restored = replace(good, round=round_, totals=_rescale_totals(good.totals, self._algorithm, self.guard.stiffen))
        self._good = (restored,)
        return replace(restored, fallback=(restored,))


def watched(record: RoundRecord) -> dict[str, float]:
    """Return the metrics of a round that a guard may check, by name; empty if no update was counted."""
    distances = {name: getattr(record, name) for name in DISTANCES}
    return {**distances, **record.metrics} if record.clients else {}


def calmer(algorithm: Algorithm, calm: float, stiffen: float) -> Algorithm:
    """Return the algorithm with smaller learning rates and, if it has any, larger penalties."""
    known = {option.name for option in fields(algorithm)}
    changes = {name: _times(getattr(algorithm, name), calm) for name in _STEPS}
    changes |= {name: _times(getattr(algorithm, name), stiffen) for name in _PENALTIES if name in known}
    return replace(algorithm, **changes)  # type: ignore[arg-type]


def _rescale_totals(totals: dict[str, State], algorithm: Algorithm, stiffen: float) -> dict[str, State]:
    """Rescale sums of updates so that penalties ``stiffen`` times larger give the same duals as before."""
    if not hasattr(algorithm, _PENALTIES[0]):
        return totals
    return {client: {name: sum_ / stiffen for name, sum_ in total.items()} for client, total in totals.items()}


def _times(value: PerGroup, factor: float) -> PerGroup:
    if isinstance(value, Mapping):
        return {group: number * factor for group, number in value.items()}
    return value * factor


def stop_of(history: History) -> Diverged | None:
    """Return why a guard ended a run; None if it did not."""
    last = history.events[-1] if history.events else None
    return Diverged("", last["round"], last["reason"]) if last and last["policy"] == "stop" else None
