"""The scores by which models without a target are judged, and their names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedmm.core.signals.groups import By
from fedmm.core.signals.validators import METRICS, metric_trained_for

WEIGHING = ("afl", "drfa", "fedmm_agnostic", "q_ffl")
"""The algorithms that train for the worst-off site."""
TESTED: Mapping[str, tuple[str, ...]] = {
    "accuracy": ("source_accuracy", "source_worst_accuracy"),
    "auc": ("source_auroc", "source_average_precision", "source_accuracy"),
    "worst_site": ("source_worst_accuracy", "source_accuracy"),
}
"""By metric, the columns of the history on test rows, most important first."""
NAMES: Mapping[str, str] = {
    "auroc": "AUROC",
    "average_precision": "average precision",
    "accuracy": "accuracy",
    "worst_accuracy": "worst site",
    "risk": "cross entropy",
}
"""Short names of scores, by what follows the rows in their columns."""
TITLES: Mapping[str, str] = {
    "source_auroc": "AUROC on test rows",
    "source_average_precision": "average precision on test rows",
    "source_accuracy": "accuracy on test rows",
    "source_worst_accuracy": "accuracy of the worst site on test rows",
    "source_risk": "cross entropy on rows set aside",
}
"""The names of columns if there is no target, and so no source either."""


def metric_of(algorithm: str, objective: str, best_by: str = "") -> str:
    """Return which of ``METRICS`` a model without a target was trained for or, if that does not say, chosen by."""
    return metric_trained_for(objective, best_by, weighs_clients=algorithm in WEIGHING)


def shared_metric(metrics: Iterable[str]) -> str:
    """Return the metric that judges several models: accuracy unless one of them is for another."""
    meant = set(metrics)
    return next((metric for metric in ("auc", "worst_site") if metric in meant), "accuracy")


def scores_of(metric: str) -> tuple[str, ...]:
    """Return the columns that measure a metric, first on test rows, then on rows set aside."""
    return (*TESTED[metric], *METRICS[metric])


def groups_by(metric: str) -> By:
    """Return the score that orders groups of rows."""
    return "auc" if metric == "auc" else "accuracy"


def name_of(column: str) -> str:
    """Return the name of the score in a column such as ``source_auroc``."""
    return NAMES[column.partition("_")[2]]


def is_share(column: str) -> bool:
    """Return whether a column is shown in percent."""
    return column.endswith("accuracy")
