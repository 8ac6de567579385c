"""What a run measured, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Literal, TypedDict, overload

from fedmm.core.engine import RoundRecord
from fedmm.core.inbox import Refusal

Value = float | int | None
Row = dict[str, Value]


class Event(TypedDict):
    """What a guard did in a round: it stopped the run, or went back to the state of ``to_round``, and why.

    lr_times, penalty_times: what the learning rates and penalties are multiplied with from then on.
    """

    round: int
    policy: Literal["stop", "rollback"]
    reason: str
    to_round: int
    lr_times: float
    penalty_times: float


class History:
    """One row a round. ``history[-1]`` is the last round, ``history["drift"]`` a column over all rounds.

    refusals: by round, the clients whose updates were not counted, and why. events: what a guard did, in order.
    """

    def __init__(self, rows: list[Row] | None = None, events: list[Event] | None = None) -> None:
        self._rows = rows or []
        self.refusals: dict[int, tuple[Refusal, ...]] = {}
        self.events: list[Event] = events or []

    def append(self, record: RoundRecord, evaluation: Mapping[str, Value], event: Event | None = None) -> Row:
        """Add a round and return its row; ``evaluation`` holds accuracies, None where they were not measured.

        event: what the guard did after it; the row then has ``rolled_back_to``.
        """
        measured = asdict(record)
        metrics = measured.pop("metrics")
        measured["refused"] = len(record.refused)
        if record.refused:
            self.refusals[record.round] = record.refused
        row: Row = {"round": measured.pop("round"), **evaluation, **metrics, **measured}
        if event:
            row["rolled_back_to"] = event["to_round"]
        self._rows.append(row)
        return row

    def copy(self) -> History:
        """A history that further rounds of this one are not added to."""
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
        """The newest measured value of a column, or None."""
        return next((value for value in reversed(self[column]) if value is not None), None)

    def total(self, column: str) -> float:
        """The sum of a column."""
        return sum(value for value in self[column] if value is not None)

    def __repr__(self) -> str:
        columns = ", ".join(self._rows[0]) if self._rows else "no rounds yet"
        return f"History({len(self)} rounds: {columns})"
