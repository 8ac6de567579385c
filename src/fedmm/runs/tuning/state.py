"""``tune.json``, all that is known of a tuning: its format, and how it is read again."""

from __future__ import annotations

import json
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedmm.core.errors import FedmmError, require
from fedmm.runs.tuning.halving import Pace, Rung, estimate_seconds

if TYPE_CHECKING:
    from fedmm.runs.tuning.criteria import Criterion

STATE = "tune.json"
FORMAT = "fedmm-tune-1"
_KEYS = ("eta", "seeds", "candidates", "plan", "rungs", "field", "notes", "pace", "title")


def read_state(path: Path, criterion: Criterion) -> dict[str, Any]:
    """What a tuning left there, refused if it cannot be gone on with; criterion: what judges it."""
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
        require(state["format"] == FORMAT, f"{path} was written by another version of fedmm")
        _read_through(state, criterion)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(f"{path} is not a tuning that can be continued; use another folder") from problem
    return state


def _read_through(state: dict[str, Any], criterion: Criterion) -> None:
    """Read all that a tuning goes on with, so that what is damaged shows before anything runs."""
    from fedmm.runs.tuning.rung_results import Results, find_judged_rung, tabulate  # noqa: PLC0415 - loads torch

    for key in _KEYS:
        state[key]
    rungs, planned = state["rungs"], [Rung(**rung) for rung in (*state["plan"], *(state.get("whole_plan") or ()))]
    if state["pace"] is not None:
        estimate_seconds(planned, 0, Pace(**state["pace"]))
    counts = [count for rung in planned for count in astuple(rung)]
    counts += [rung[key] for rung in rungs for key in ("rounds", "judged_after")]
    words = [*state["field"], *state["notes"], *(word for rung in rungs for word in (rung["folder"], *rung["order"]))]
    kinds = {type(count) for count in counts} <= {int} and {type(word) for word in words} <= {str}
    if not (kinds and isinstance(rungs, list) and len(rungs) <= len(state["plan"])):
        raise TypeError
    if state.get("metric", "") != criterion.metric:
        return  # it is judged by something else, which is told apart from damage
    judged = find_judged_rung(rungs)
    if judged is not None:
        criterion.choose(Results.of(judged), {entry["label"]: entry["veto"] for entry in judged["entries"]})
    tabulate(rungs, criterion.always, criterion.signals)
