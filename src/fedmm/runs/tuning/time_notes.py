"""Describe what did not fit into the time of a tuning: how its plan differs from the one without a limit."""

from __future__ import annotations

from collections.abc import Sequence

from fedmm.runs.tuning.halving import tell_left_out
from fedmm.runs.tuning.state import COMPLETED, RungResult, TuningState

_SHORT = "for lack of time"
_NAMED = 8
"""The most candidates that a sentence names."""


def find_competing(rung: RungResult, always: Sequence[str]) -> list[str]:
    """Return the candidates of a rung without those in every rung, the best first."""
    return [label for label in rung.order if label not in always]


def list_planned(state: TuningState, always: Sequence[str], number: int) -> list[str]:
    """Return those that would compete in a rung without a time limit, the best first; number: from 0 on."""
    if not number:
        return [label for label in state.candidates if label not in always][: state.whole_plan[0].candidates]
    order = find_competing(state.rungs[number - 1], always)
    return order[: -(-len(order) // state.eta)]


def tell_rung(state: TuningState, always: Sequence[str], number: int) -> list[str]:
    """Say which candidates a rung leaves out; empty if none."""
    left_out = list_planned(state, always, number)[state.plan[number].candidates :]
    if not left_out:
        return []
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    where = f" rung {number + 1}:" if number else ""
    return [f"{_SHORT}{where} {tell_left_out(len(left_out))}: {', '.join(left_out[:_NAMED])}{more}"]


def tell_rounds(state: TuningState) -> list[str]:
    """Say how much shorter the last rung is than without a time limit; empty if it is not."""
    rounds, whole = state.plan[-1].rounds, state.whole_plan[-1].rounds
    return [f"{_SHORT} the last rung has {rounds} of {whole} rounds"] if rounds < whole else []


def tell_cuts(state: TuningState, always: Sequence[str]) -> list[str]:
    """Say what was left out of the rungs that were started."""
    left_out = [sentence for number in range(len(state.rungs)) for sentence in tell_rung(state, always, number)]
    return left_out + (tell_rounds(state) if len(state.rungs) == len(state.plan) else [])


def tell_end(state: TuningState) -> str:
    """Say where the time ran out; empty if it was enough."""
    completed, planned = sum(rung.status == COMPLETED for rung in state.rungs), len(state.plan)
    if completed == planned or state.all_diverged:
        return ""
    if not state.rungs:
        return "no rung was started; resume continues"
    if completed < len(state.rungs):
        return f"the time was over in rung {completed + 1} of {planned}; resume continues"
    return f"{_SHORT} rung {completed + 1} of {planned} was not started; resume continues"
