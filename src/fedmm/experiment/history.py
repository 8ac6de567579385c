"""What a run measured, round by round."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import overload

from fedmm.core.engine import RoundRecord
from fedmm.core.inbox import Refusal

Value = float | int | None
Row = dict[str, Value]


class History:
    """One row a round. ``history[-1]`` is the last round, ``history["drift"]`` a column over all rounds.

    refusals: by round, the clients whose updates were not counted, and why.
    """

    def __init__(self, rows: list[Row] | None = None) -> None:
        self._rows = rows or []
        self.refusals: dict[int, tuple[Refusal, ...]] = {}

    def append(self, record: RoundRecord, evaluation: Mapping[str, Value]) -> Row:
        """Add a round and return its row; ``evaluation`` holds accuracies, None where they were not measured."""
        measured = asdict(record)
        metrics = measured.pop("metrics")
        measured["refused"] = len(record.refused)
        if record.refused:
            self.refusals[record.round] = record.refused
        row: Row = {"round": measured.pop("round"), **evaluation, **metrics, **measured}
        self._rows.append(row)
        return row

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    @overload
    def __getitem__(self, key: int) -> Row: ...
    @overload
    def __getitem__(self, key: str) -> list[Value]: ...
    def __getitem__(self, key: int | str) -> Row | list[Value]:
        if isinstance(key, int):
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
