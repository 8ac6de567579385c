"""What ``fedmm tune`` tried and chose, from its ``tune.json``: a table for the terminal, and rows for reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from fedmm.core.errors import FedmmError, require
from fedmm.reporting.tables import FittedRow, fit_table

SIGNALS = ("target_information", "target_bnm", "source_risk")
"""What candidates are ranked by where there is a target."""
AGREEMENT = ("seed_agreement", "neighbour_agreement")
"""What finalists are kept by."""


@dataclass(frozen=True)
class TunedRow:
    """A candidate as it stood in the last rung it ran in; signals: in the order of those of the tuning, in words.

    agreement: in the order of ``AGREEMENT``, in words; empty if it was not measured.
    """

    candidate: str
    rung: int
    rounds: int
    seeds: int
    signals: Sequence[str]
    rank: float
    veto: str
    chosen: bool
    agreement: str = ""


@dataclass(frozen=True)
class TuningResult:
    """A finished tuning. sentence: what was chosen, and why. notes: what was left out for lack of time.

    metric: what was judged on rows set aside; empty if a target was adapted to. signals: the validators.
    """

    chosen: str
    sentence: str
    notes: Sequence[str]
    rungs: Sequence[str]
    rows: Sequence[TunedRow]
    metric: str = ""
    signals: Sequence[str] = SIGNALS


def read_tuned(folder: Path) -> TuningResult:
    """What a folder of ``fedmm tune`` says."""
    path = folder / "tune.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        require(state["format"] == "fedmm-tune-1", f"{path} was written by another version of fedmm")
        require(
            state["verdict"] is not None,
            f"{path} is of a tuning that has not ended; `fedmm tune --resume` continues it",
        )
        chosen = str(state["verdict"]["label"])
        signals = [str(name) for name in state.get("signals", SIGNALS)]
        rows = [
            TunedRow(
                str(row["candidate"]),
                int(row["rung"]),
                int(row["rounds"]),
                int(row["seeds"]),
                [_spread(row["signals"].get(name)) for name in signals],
                float(row["rank"]),
                str(row["veto"]),
                row["candidate"] == chosen,
                _agreement(row.get("agreement", {})),
            )
            for row in state["table"]
        ]
        rungs = [
            f"rung {number}: {len(rung['entries'])} candidates, {int(rung['rounds'])} rounds"
            + (f", judged after {int(rung['judged_after'])}" if rung["judged_after"] != rung["rounds"] else "")
            for number, rung in enumerate(state["rungs"], start=1)
        ]
        notes = [str(note) for note in [*state["notes"], state["ended"]] if note]
        sentence, metric = str(state["verdict"]["sentence"]), str(state.get("metric", ""))
        return TuningResult(chosen, sentence, notes, rungs, rows, metric, signals)
    except FedmmError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
        raise FedmmError(
            f"{path} is damaged, so the tuning can be neither shown nor continued; name the folders of its runs"
        ) from problem


def _spread(values: object) -> str:
    if not isinstance(values, dict):
        return "-"
    mean, low, high = (float(values[key]) for key in ("mean", "low", "high"))
    return f"{mean:.3f}" if low == high else f"{mean:.3f} ({low:.3f} to {high:.3f})"


def _agreement(values: dict[str, float]) -> str:
    return ", ".join(f"{float(values[name]):.2f}" for name in AGREEMENT if name in values)


def rich_tuned(tuned: TuningResult, width: int) -> Table:
    """All candidates: how far they came, why they were ruled out, and as the width allows what they were ranked by."""
    agree = not tuned.metric
    headings = ["rung:\nrounds", "rank", *(["agree-\nment"] if agree else [])]
    headings += [name.replace("_", "\n") for name in tuned.signals]
    rows = []
    for row in tuned.rows:
        name = f"{row.candidate}\nruled out: {row.veto}" if row.veto else row.candidate
        cells = [
            f"{row.rung}: {row.rounds}",
            f"{row.rank:.1f}",
            *([row.agreement.replace(", ", "\n")] if agree else []),
        ]
        cells += [signal.replace(" (", "\n").replace(" to ", "-").rstrip(")") for signal in row.signals]
        rows.append(FittedRow(name, cells, row.chosen))
    return fit_table("candidate", headings, rows, width)
