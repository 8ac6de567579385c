"""What did not fit into the time of a tuning, in sentences: how its plan differs from the whole one."""

from __future__ import annotations

from collections.abc import Sequence

from fedmm.runs.tuning.halving import tell_left_out
from fedmm.runs.tuning.state import COMPLETED, RungResult, TuningState

_SHORT = "for lack of time"
_NAMED = 8
"""Candidates that a sentence names at most."""


def find_competing(rung: RungResult, always: Sequence[str]) -> list[str]:
    """The candidates of a rung but those that are always there, the best first."""
    return [label for label in rung.order if label not in always]


def list_planned(state: TuningState, always: Sequence[str], number: int) -> list[str]:
    """Those that would compete in a rung if the time were enough, the best first; number: from 0 on."""
    if not number:
        return [label for label in state.candidates if label not in always][: state.whole_plan[0].candidates]
    order = find_competing(state.rungs[number - 1], always)
    return order[: -(-len(order) // state.eta)]


def tell_rung(state: TuningState, always: Sequence[str], number: int) -> list[str]:
    """Which candidates a rung was left without; empty if none."""
    left_out = list_planned(state, always, number)[state.plan[number].candidates :]
    if not left_out:
        return []
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    where = f" rung {number + 1}:" if number else ""
    return [f"{_SHORT}{where} {tell_left_out(len(left_out))}: {', '.join(left_out[:_NAMED])}{more}"]


def tell_rounds(state: TuningState) -> list[str]:
    """By how much the last rung is shorter than it was to be; empty if it is not."""
    rounds, whole = state.plan[-1].rounds, state.whole_plan[-1].rounds
    return [f"{_SHORT} the last rung has {rounds} of {whole} rounds"] if rounds < whole else []


def tell_cuts(state: TuningState, always: Sequence[str]) -> list[str]:
    """What was left out of all rungs until now."""
    begun = range(min(len(state.rungs) + 1, len(state.plan)))
    return [sentence for number in begun for sentence in tell_rung(state, always, number)] + tell_rounds(state)


def tell_end(state: TuningState) -> str:
    """Where the time was over; empty if it was enough."""
    completed, planned = sum(rung.status == COMPLETED for rung in state.rungs), len(state.plan)
    if completed == planned or state.all_diverged:
        return ""
    if completed < len(state.rungs):
        return f"the time was over in rung {completed + 1} of {planned}; resume goes on"
    return f"{_SHORT} rung {completed + 1} of {planned} was not started; resume goes on"
