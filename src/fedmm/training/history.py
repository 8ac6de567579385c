"""The history of a run: its metrics, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from statistics import quantiles
from typing import Literal, TypedDict, overload

from fedmm.core.engine import Refusal, RoundRecord

MOST_NAMED = 50
"""The most clients that get columns of their own; with more, columns give the spread of their values."""
SPREAD = ("min", "q25", "median", "q75", "max")

Value = float | int | None
Row = dict[str, Value]


class Event(TypedDict):
    """What a guard did after a round, and why: it stopped the run, or rolled back to the state after ``to_round``.

    lr_times, penalty_times: the total factors on learning rates and penalties from then on.
    """

    round: int
    policy: Literal["stop", "rollback"]
    reason: str
    to_round: int
    lr_times: float
    penalty_times: float


def client_columns(by_client: Mapping[str, Mapping[str, float]]) -> Row:
    """Return columns such as ``drift.NAME`` for each client; for more than 50, ``drift.min``, ``.q25`` and so on."""
    columns: Row = {}
    many = max(map(len, by_client.values()), default=0) > MOST_NAMED
    for measure, values in by_client.items():
        if many and len(values) > 1:
            quartiles = quantiles(values.values(), n=4, method="inclusive")
            spread = (min(values.values()), *quartiles, max(values.values()))
            columns |= {f"{measure}.{name}": value for name, value in zip(SPREAD, spread, strict=True)}
        else:
            columns |= {f"{measure}.{name}": value for name, value in values.items()}
    return columns


class History:
    """One row per round: ``history[-1]`` is the last round, ``history["drift"]`` a column over all rounds.

    refusals: by round, the clients whose updates were refused, and why. events: what a guard did, in order.
    """

    def __init__(self, rows: list[Row] | None = None, events: list[Event] | None = None) -> None:
        self._rows = rows or []
        self.refusals: dict[int, tuple[Refusal, ...]] = {}
        self.events: list[Event] = events or []

    def append(
        self,
        record: RoundRecord,
        evaluation: Mapping[str, Value],
        event: Event | None = None,
        *,
        by_client: bool = False,
    ) -> Row:
        """Add a round and return its row.

        evaluation: metrics of the model, None if not measured. event: what the guard did after the round; the row then
        has ``rolled_back_to``. by_client: add columns of each client's drift and dual norm (:func:`client_columns`).
        """
        measured = asdict(record)
        own = client_columns(measured.pop("by_client"))
        metrics = measured.pop("metrics")
        measured["refused"] = len(record.refused)
        if record.refused:
            self.refusals[record.round] = record.refused
        row: Row = {"round": measured.pop("round"), **evaluation, **metrics, **measured, **(own if by_client else {})}
        if event:
            row["rolled_back_to"] = event["to_round"]
        self._rows.append(row)
        return row

    def copy(self) -> History:
        """Return an independent copy."""
        other = History(list(self._rows), list(self.events))
        other.refusals.update(self.refusals)
        return other

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: slice) -> list[Row]: ...
    @overload
    def __getitem__(self, key: str) -> list[Value]: ...
    def __getitem__(self, key: int | slice | str) -> Row | list[Row] | list[Value]:
        if isinstance(key, int | slice):
            return self._rows[key]
        return [row.get(key) for row in self._rows]

    def last(self, column: str) -> float | None:
        """Return the last measured value of a column, or None."""
        return next((value for value in reversed(self[column]) if value is not None), None)

    def total(self, column: str) -> float:
        """Return the sum of a column."""
        return sum(value for value in self[column] if value is not None)

    def __repr__(self) -> str:
        shown = [name for name in self._rows[0] if "." not in name] if self._rows else ["no rounds yet"]
        columns = ", ".join(shown)
        return f"History({len(self)} rounds: {columns})"
