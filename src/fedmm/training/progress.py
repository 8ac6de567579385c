"""Progress bars on the terminal: rounds, accuracy, speed and time left."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedmm.core.engine import FederatedState
from fedmm.training.callbacks import Callback, Training
from fedmm.training.history import History, Row


def bars(show: bool, *fields: str) -> Progress:
    """Return progress bars on standard error with these text fields; silent without a terminal or ``show``."""
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


class RoundProgress(Callback):
    """A progress bar over the rounds of one run."""

    def __init__(self, label: str, rounds: int, *, show: bool) -> None:
        self._bar = bars(show, "accuracy", "speed")
        self._task = self._bar.add_task(label, total=rounds, accuracy="", speed="")
        self._accuracy = ""

    def wants_state(self, round_: int) -> bool:
        return False

    def begin(self, state: FederatedState, history: History) -> None:
        self._bar.start()

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        """Show one more finished round."""
        if row.get("target_accuracy") is not None:
            self._accuracy = f"target {row['target_accuracy']:6.1%}"
        speed = self._bar.tasks[0].speed
        self._bar.update(self._task, advance=1, accuracy=self._accuracy, speed=f"{speed:.1f} rounds/s" if speed else "")

    def close(self, training: Training | None) -> None:
        self._bar.stop()


class RunsProgress:
    """One progress bar over the rounds of several runs. rounds: their total number."""

    def __init__(self, runs: int, rounds: int, *, show: bool) -> None:
        self._bar = bars(show, "note")
        self._task = self._bar.add_task(f"{runs} runs", total=rounds, note="")
        self._accuracies: dict[int, float] = {}
        self._done: dict[int, int] = {}

    def __call__(self, run: int, row: Row) -> None:
        """Show one more finished round of a run."""
        accuracy = row.get("target_accuracy")
        if accuracy is not None:
            self._accuracies[run] = accuracy
        speed = self._bar.tasks[0].speed
        note = f"{speed:.1f} rounds/s" if speed else ""
        if self._accuracies:
            mean = sum(self._accuracies.values()) / len(self._accuracies)
            note += f"  mean target {mean:.1%}, oracle best {max(self._accuracies.values()):.1%}"
        self.skip(run, int(row["round"] or 0), note)

    def skip(self, run: int, done: int, note: str = "") -> None:
        """Advance the bar to ``done`` rounds of a run, whenever they were run."""
        self._bar.update(self._task, advance=done - self._done.get(run, 0), note=note)
        self._done[run] = done

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self._bar.stop()
