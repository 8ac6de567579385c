"""The state of a tuning, with the results of its rungs; ``tune.json`` holds it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fedmm.config.dataclass_io import build
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import write_json
from fedmm.runs.tuning.halving import Pace, Rung

STATE = "tune.json"
COMPLETED, OUT_OF_TIME = "completed", "out of time"
_FORMAT = "fedmm-tune-1"

Table = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """A candidate in a rung. runs: the folders of its runs, one per seed; signals: what each measured, by name.

    diverged: how many runs did. veto: why it may not win, empty if it may. agreement: of its predictions, by name.
    """

    label: str
    runs: Sequence[str]
    signals: Sequence[Mapping[str, float]]
    diverged: int
    rank: float
    veto: str
    agreement: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RungResult:
    """The result of a rung. judged_after: the round. order: the candidates by rank, the best first.

    label_shift: as estimated by the source-only runs.
    """

    folder: str
    rounds: int
    judged_after: int
    status: str
    order: Sequence[str]
    entries: Sequence[Entry] = ()
    label_shift: Table | None = None


@dataclass
class TuningState:
    """The state of a tuning.

    eta, seeds, candidates, metric: as requested; signals: the validators that judge. fingerprint: of the data or None.
    whole_plan: without a time limit; plan: as it is carried out. competing: in the next rung, the best first.
    remarks: on runs. The fields from ``status`` on are from when it last ended; notes: to show beside the verdict.
    """

    eta: int
    seeds: int
    candidates: Table
    metric: str
    signals: Sequence[str]
    rounds: int
    plan: list[Rung]
    whole_plan: list[Rung]
    competing: list[str]
    title: str = ""
    fingerprint: Mapping[str, Any] | None = None
    pace: Pace | None = None
    rungs: list[RungResult] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    status: str = "running"
    notes: list[str] = field(default_factory=list)
    ended: str = ""
    verdict: Table | None = None
    table: list[Table] = field(default_factory=list)
    tuned: Table | None = None

    @property
    def all_diverged(self) -> bool:
        """Whether all candidates of the last rung diverged, and would again."""
        return bool(self.rungs) and all(entry.diverged for entry in self.rungs[-1].entries)

    def write(self, path: Path) -> None:
        """Write the state as JSON."""
        write_json(path, {"format": _FORMAT, **asdict(self)})


def read_state(path: Path, metric: str, always: Sequence[str]) -> TuningState:
    """Read the state of a tuning; refuse one that cannot be continued.

    metric: by which it is judged now; always: the candidates that must be in every rung.
    """
    try:
        table = dict(json.loads(path.read_text(encoding="utf-8")))
        state = _read(table) if table.pop("format") == _FORMAT else None
        if state is not None and state.metric == metric:  # another metric is refused later
            known = state.candidates.keys() & {*always}
            require(all(known <= {*rung.order} for rung in state.rungs), "a rung lacks candidates")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(f"{path} is not a tuning that can be continued; use another folder") from problem
    if state is None:
        raise FedmmError(f"{path} was written by another version of fedmm")
    return state


def _read(table: Table) -> TuningState:
    state = TuningState(**table)
    lists = (state.plan, state.whole_plan, state.rungs, state.competing, state.remarks, state.notes)
    words = [state.title, *state.competing, *state.remarks, *state.notes]
    require(all(isinstance(each, list) for each in lists), "a list is missing")
    require(all(isinstance(word, str) for word in words), "a word is missing")
    require(0 < len(state.plan) >= len(state.rungs) and len(state.whole_plan) > 0, "rungs were not planned")
    state.plan = [build(Rung, rung, "plan") for rung in table["plan"]]
    state.whole_plan = [build(Rung, rung, "whole_plan") for rung in table["whole_plan"]]
    state.pace = None if state.pace is None else build(Pace, table["pace"], "pace")
    state.rungs = [_read_rung(rung) for rung in table["rungs"]]
    return state


def _read_rung(table: Table) -> RungResult:
    entries, shift = [build(Entry, entry, "entry") for entry in table["entries"]], table["label_shift"]
    plain = {key: value for key, value in table.items() if key not in ("entries", "label_shift")}
    require(sorted(table["order"]) == sorted(entry.label for entry in entries), "the order is of other candidates")
    require(all(len(entry.runs) == len(entry.signals) > 0 for entry in entries), "runs are missing")
    require(shift is None or {"distance", "reliable", "notable"} <= shift.keys(), "the estimate lacks numbers")
    return replace(build(RungResult, plain, "rung"), entries=entries, label_shift=shift)
