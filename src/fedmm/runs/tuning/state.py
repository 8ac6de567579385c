"""``tune.json``, all that is known of a tuning: its format, and how it is read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.runs.tuning.halving import Pace, Rung

STATE = "tune.json"
FORMAT = "fedmm-tune-1"
_KEYS = ("eta", "seeds", "candidates", "plan", "rungs", "field", "notes", "pace", "title")


def read_state(path: Path) -> dict[str, Any]:
    """What a tuning left there, refused if it cannot be gone on with."""
    try:
        state = dict(json.loads(path.read_text(encoding="utf-8")))
        require(state["format"] == FORMAT, f"{path} was written by another version of fedmm")
        for key in _KEYS:
            state[key]
        for rung in state["rungs"]:
            _ = rung["status"], rung["rounds"], rung["order"], rung["entries"], rung["judged_after"], rung["folder"]
        for planned in (*state["plan"], *state.get("whole_plan", ())):
            Rung(**planned)
        if state["pace"] is not None:
            Pace(**state["pace"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise FedmmError(f"{path} is not a tuning that can be continued; use another folder") from problem
    return state
