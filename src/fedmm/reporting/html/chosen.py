"""Which round a run chose, and which of its models is shown."""

from __future__ import annotations

from typing import NamedTuple

from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.read import Run

LOWER_IS_BETTER = (
    "source_risk", "dev_risk", "target_entropy", "domain_accuracy", "proxy_a_distance", "loss", "task_loss",
)  # fmt: skip
ORACLES = ("target_accuracy", "oracle")
"""Metrics that look at target labels."""


class ChosenRound(NamedTuple):
    """A round that was chosen, and the target accuracy there, None if it was not measured."""

    round: int
    accuracy: float | None


def chosen_round(run: Run, metric: str) -> ChosenRound | None:
    """The round that is best by a metric; None if it was never measured."""
    rounds, values = run.series(metric)
    if not rounds:
        return None
    best = min(values) if metric in LOWER_IS_BETTER else max(values)
    at = rounds[values.index(best)]
    accuracies = dict(zip(*run.series("target_accuracy"), strict=True))
    return ChosenRound(at, accuracies.get(at))


def choice_of(entry: Entry) -> tuple[str, ChosenRound | None]:
    """The metric by which a run chose without target labels, and what it chose; else the first that it measured.

    Without a target, a run that chose by nothing keeps its last model.
    """
    wanted = [entry.best_by] if entry.best_by and not is_oracle(entry.best_by) else []
    others = ["target_information", "dev_risk", "target_snd", "target_bnm", "source_risk"] if entry.has_target else []
    for metric in [*wanted, *others]:
        chosen = chosen_round(entry.run, metric)
        if chosen:
            return metric, chosen
    return "", None


def is_oracle(metric: str) -> bool:
    """Whether a metric looks at target labels."""
    return metric in ORACLES or metric.startswith("oracle")


def describe_model(report: Report) -> str:
    """A sentence on which model the scores of test rows are of."""
    seed = ", of the run with the first seed" if report.seeds > 1 else ""
    firsts = [method.first for method in report.methods]
    best = [entry.tested_round for entry in firsts if entry.tested_round not in (None, entry.last_round)]
    if len(firsts) > 1 and best:
        return (
            f"The model is the one that fedmm predict uses{seed}: of the best round or, if none was chosen, the last."
        )
    if best:
        return f"The model is the one that fedmm predict uses{seed}: round {best[0]}, best by {firsts[0].best_by}."
    return f"The model is that of the last round{seed}."
