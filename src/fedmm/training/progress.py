"""Progress of long work on the terminal: rounds, accuracy, speed and time left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedmm.training.history import Row


def bars(show: bool, *fields: str) -> Progress:
    """Bars on standard error with these fields of text; silent where that is not a terminal or ``show`` is False."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *(TextColumn(f"{{task.fields[{name}]}}") for name in fields),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not (show and console.is_terminal),
    )


class Shown:
    """Something with a bar that is on the terminal while it is entered."""

    _bar: Progress

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()


class RoundProgress(Shown):
    """A bar over the rounds of one run."""

    def __init__(self, label: str, rounds: int, *, show: bool) -> None:
        self._bar = bars(show, "accuracy", "speed")
        self._task = self._bar.add_task(label, total=rounds, accuracy="", speed="")
        self._accuracy = ""

    def __call__(self, row: Row) -> None:
        """Show one more finished round."""
        if row.get("target_accuracy") is not None:
            self._accuracy = f"target {row['target_accuracy']:6.1%}"
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, advance=1, accuracy=self._accuracy, speed=f"{speed:.1f} rounds/s" if speed else "")
