"""Evaluate a run's model on labelled rows: overall, by class, and whether its probabilities can be trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.core.errors import require
from fedmm.core.files import require_replaceable
from fedmm.core.signals.groups import EVALUATION, By, GroupedScores
from fedmm.core.signals.intervals import wilson
from fedmm.data.domains import RowStream
from fedmm.data.labels import UNKNOWN, UNLABELLED
from fedmm.inference.load_run import FinishedRun
from fedmm.inference.predict import OWN_ROWS, TEST, groups_in, is_training_file, open_own_rows, open_rows, predict_rows
from fedmm.inference.scores import BINS, Scores, compute_groups, compute_scores
from fedmm.runs.evidence import count_trained_test_rows

_SHOWN = 5


@dataclass(frozen=True)
class Evaluation:
    """Scores on the rows whose class is known to the model.

    left_out: the number of other rows; unknown: those of them with a label that is not one of the model's classes;
    strange: these labels. trained_on: how many of the rows were trained on, without their labels.
    grouped: the scores of groups of rows, if requested.
    """

    run: FinishedRun
    data: str
    scores: Scores
    left_out: int
    unknown: int
    strange: tuple[str, ...]
    trained_on: int = 0
    grouped: GroupedScores | None = None

    def table(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON and for the figure.

        ``accuracy`` is over the rows whose class the model knows, ``accuracy_of_all`` over all labelled rows, where
        rows of a class that the model does not know count as wrong.
        """
        labelled, hits = self.scores.rows + self.unknown, sum(row[k] for k, row in enumerate(self.scores.confusion))
        return {
            "format": EVALUATION,
            "run": str(self.run.folder),
            "label": self.run.experiment.label,
            "checkpoint": self.run.checkpoint,
            "round": self.run.round,
            "chosen_by": self.run.chosen_by,
            "temperature": self.run.temperature,
            "bias": self.run.bias,
            "threshold": self.run.threshold,
            "data": self.data,
            "left_out": self.left_out,
            "unknown_labels": list(self.strange),
            "unknown_rows": self.unknown,
            "absent_classes": [class_.name for class_ in self.scores.classes if not class_.support],
            "labelled_rows": labelled,
            "accuracy_of_all": hits / labelled,
            "accuracy_of_all_interval": wilson(hits, labelled),
            "trained_on": self.trained_on,
            "training_file": is_training_file(self.run, self.data),
            **self.scores.table(),
            "grouped": None if self.grouped is None else asdict(self.grouped),
        }


def require_own_evaluation(path: Path) -> None:
    """Refuse a name that does not end in .json, and to replace a file that holds anything but an evaluation."""
    require(path.suffix.lower() == ".json", f"--out {path} must end in .json")
    require_replaceable(path, "--out", "an evaluation", lambda path: EVALUATION.encode() in path.read_bytes())


def rows_named(run: FinishedRun, data: str, *, skip_bad: bool = False) -> RowStream:
    """Return the rows of a file or folder, or of the run's own data set if ``data`` is in ``OWN_ROWS``."""
    return open_own_rows(run, data) if data in OWN_ROWS else open_rows(run, Path(data), skip_bad=skip_bad)


def evaluate(
    run: FinishedRun,
    data: str,
    rows: RowStream,
    *,
    bins: int = BINS,
    group: str = "",
    max_fpr: float | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Evaluation:
    """Score the model on labelled rows; on_rows: called with the number of rows of each part once it is predicted.

    group: also score groups of rows, by a column of a table or, for the run's own rows, by ``site``.
    max_fpr: with two classes, also measure the partial area under the ROC curve up to this false positive rate.
    """
    groups = groups_in(run, data, group) if group else []
    grouped: list[str] = []
    labels, logarithms, predicted, strange, left_out, unknown, seen = [], [], [], set[str](), 0, 0, 0
    for part in rows.parts:
        found = predict_rows(run, part)
        y = torch.full((len(part.x),), UNLABELLED) if found.y is None else found.y.cpu()
        known = y >= 0
        labels.append(y[known])
        logarithms.append(found.logarithms[known])
        predicted.append(found.classes[known])
        grouped += [groups[seen + row] for row in known.nonzero().flatten().tolist()] if group else []
        seen += len(part.x)
        strange |= set(found.strange)
        left_out += int((~known).sum())
        unknown += int((y == UNKNOWN).sum())
        on_rows(len(part.x))
    y = torch.cat(labels)
    odd = f", only unknown ones such as {', '.join(sorted(strange)[:_SHOWN])}" if strange else ""
    require(
        len(y) > 0,
        f"{data} has no labels of the model's classes ({', '.join(run.class_names[:_SHOWN])}, ...){odd}; evaluate "
        "labelled data, or use `fedmm predict`",
    )
    values = set(grouped)
    require(
        len(values) != 1,
        f"--group {group} has one value alone in the labelled rows of {data}, {next(iter(values), '')!r}; groups to "
        "compare need two",
    )
    logs, classes = torch.cat(logarithms), torch.cat(predicted)
    by: By = "auc" if run.experiment.objective.name == "auc" else "accuracy"
    return Evaluation(
        run,
        data,
        compute_scores(y, logs, run.class_names, bins, classes, max_fpr),
        left_out,
        unknown,
        tuple(sorted(strange)),
        _count_trained_on(run) if data == TEST else 0,
        compute_groups(group, grouped, y, logs, classes, len(run.class_names), by) if group else None,
    )


def _count_trained_on(run: FinishedRun) -> int:
    """Return how many of the run's own target test rows it trained on, without their labels."""
    if not run.experiment.objective.adapts:
        return 0
    return count_trained_test_rows(run.experiment.data.load())
