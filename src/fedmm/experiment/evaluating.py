"""A run's model on labelled rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.core.errors import require
from fedmm.data.labels import UNLABELLED
from fedmm.experiment.finished import FinishedRun
from fedmm.experiment.predicting import OWN_ROWS, Incoming, incoming, own_rows, predicted
from fedmm.experiment.scores import BINS, Scores, scores

EVALUATION = "fedmm-evaluation-1"
_SHOWN = 5


@dataclass(frozen=True)
class Evaluation:
    """Scores on the rows whose class is known to the model; unlabelled, strange: rows and labels left out."""

    run: FinishedRun
    data: str
    scores: Scores
    unlabelled: int
    strange: tuple[str, ...]

    def table(self) -> dict[str, Any]:
        """Everything as plain values, for JSON and for the picture."""
        return {
            "format": EVALUATION,
            "run": str(self.run.folder),
            "label": self.run.experiment.label,
            "checkpoint": self.run.checkpoint,
            "round": self.run.round,
            "chosen_by": self.run.chosen_by,
            "data": self.data,
            "left_out": self.unlabelled,
            "unknown_labels": list(self.strange),
            **self.scores.table(),
        }


def rows_named(run: FinishedRun, data: str, *, skip_bad: bool = False) -> Incoming:
    """The rows of a file or folder, or of the run's own data set where ``data`` is one of the words for them."""
    return own_rows(run, data) if data in OWN_ROWS else incoming(run, Path(data), skip_bad=skip_bad)


def evaluate(
    run: FinishedRun, data: str, rows: Incoming, *, bins: int = BINS, on_rows: Callable[[int], None] = lambda rows: None
) -> Evaluation:
    """Score the model on rows with labels; ``on_rows`` is told how many more were predicted."""
    labels, logarithms, strange, left_out = [], [], set[str](), 0
    for part in rows.parts:
        found = predicted(run, part)
        y = torch.full((len(part.x),), UNLABELLED) if found.y is None else found.y.cpu()
        known = y != UNLABELLED
        labels.append(y[known])
        logarithms.append(found.logarithms[known])
        strange |= set(found.strange)
        left_out += int((~known).sum())
        on_rows(len(part.x))
    y = torch.cat(labels)
    odd = f", only unknown ones such as {', '.join(sorted(strange)[:_SHOWN])}" if strange else ""
    require(
        len(y) > 0,
        f"{data} has no labels of the model's classes ({', '.join(run.class_names[:_SHOWN])}, ...){odd}; evaluate "
        "labelled data, or use `fedmm predict`",
    )
    return Evaluation(
        run, data, scores(y, torch.cat(logarithms), run.class_names, bins), left_out, tuple(sorted(strange))
    )
