"""Progress of several runs at once."""

from __future__ import annotations

from collections.abc import Sequence

from fedmm.config.schema import Experiment
from fedmm.training.history import Row
from fedmm.training.progress import Shown, bars


class RunsProgress(Shown):
    """One bar over the rounds of all runs."""

    def __init__(self, experiments: Sequence[Experiment], *, show: bool) -> None:
        self._bar = bars(show, "note")
        rounds = sum(each.run.rounds for each in experiments)
        self._task = self._bar.add_task(f"{len(experiments)} runs", total=rounds, note="")
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
        """Count the rounds of a run up to ``done``, whenever they were run."""
        self._bar.update(self._task, advance=done - self._done.get(run, 0), note=note)
        self._done[run] = done
