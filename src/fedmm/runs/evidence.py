"""Judge label shift, and whether adapting helped, from finished runs, without target labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedmm.core.signals.label_shift import LabelShift, estimate_label_shift
from fedmm.core.signals.validators import CANNOT_JUDGE, RULE, VALIDATORS, Signals, Verdict, judge_adaptation
from fedmm.data.datasets.per_site import KEY as PER_SITE
from fedmm.data.domains import DomainPair, Labelled
from fedmm.data.partition import TargetSupervised
from fedmm.data.splitting import count_shared, fingerprints
from fedmm.objectives import OBJECTIVES, SourceOnly
from fedmm.training.fingerprint import TRAINED_AND_CHOSEN_BY, same_data

MOST_ROWS = 1000
"""The most rows of each domain from which label shift is estimated."""
NO_SOURCE_ONLY = (
    "whether adapting helps cannot be judged: there is no source-only run among them; add objective.name = "
    f"'{SourceOnly.name}', with the same seeds"
)
SHIFT_ADVICE = "adapting may then do harm, and validators on the target mislead: compare with source only"
_FEWEST_ROWS = 20
_QUICK_ROWS, _QUICK_NUMBERS, _QUICK_CLASSES = 2000, 1000, 20
Summary = Mapping[str, Any]


def shift_of_model(probabilities: Callable[[Tensor], Tensor], pair: DomainPair) -> LabelShift | None:
    """Estimate label shift with a trained model; None if there are too few rows, or predictions are not finite.

    probabilities: predicts class probabilities ``[rows, classes]`` of rows.
    """
    source, target = _spread(_set_aside(pair), MOST_ROWS), _spread(pair.target, MOST_ROWS)
    if len(source.y) < _FEWEST_ROWS or len(target.y) < _FEWEST_ROWS:
        return None
    found = [probabilities(rows.x).cpu() for rows in (source, target)]
    if not all(bool(logits.isfinite().all()) for logits in found):
        return None
    return estimate_label_shift(found[0], source.y, found[1], source_inputs=source.x, target_inputs=target.x)


def shift_of_data(pair: DomainPair) -> LabelShift | None:
    """Estimate label shift with a quick logistic regression on the source, before any federated training.

    Return None for pictures, wide rows, values that are not finite, many classes, one class, or too few rows.
    """
    source, target = pair.source, pair.target
    simple = source.x.dim() == 2 and source.x.shape[1] <= _QUICK_NUMBERS and pair.classes <= _QUICK_CLASSES
    if not simple or len(source.y) < _FEWEST_ROWS or len(target.x) < _FEWEST_ROWS:
        return None
    if len(set(source.y.tolist())) < 2 or not bool(source.x.isfinite().all() and target.x.isfinite().all()):
        return None
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - slow to import
    from sklearn.pipeline import make_pipeline  # noqa: PLC0415 - slow to import
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415 - slow to import

    rows = _spread(source, _QUICK_ROWS)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that has not quite converged is good enough
        model.fit(rows.x.double().numpy(), rows.y.numpy())

    def probabilities(x: Tensor) -> Tensor:
        found = torch.zeros(len(x), pair.classes, dtype=torch.float64)
        found[:, torch.as_tensor(model.classes_)] = torch.from_numpy(model.predict_proba(x.double().numpy()))
        return found

    return shift_of_model(probabilities, pair)


def _set_aside(pair: DomainPair) -> Labelled:
    """Return labelled source rows that nothing was trained on: those for validation or, without any, for testing."""
    validation = pair.source_validation
    return validation if validation is not None and len(validation.y) else pair.source_test


def _spread(rows: Labelled, most: int) -> Labelled:
    if len(rows.y) <= most:
        return rows
    index = torch.linspace(0, len(rows.y) - 1, most, dtype=torch.float64).round().long()
    return Labelled(rows.x[index], rows.y[index])


def shift_table(shift: LabelShift, class_names: Sequence[str]) -> dict[str, Any]:
    """Return an estimate as plain values, for JSON."""
    return {
        "source": shift.source.tolist(),
        "target": shift.target.tolist(),
        "distance": shift.distance,
        "low": shift.low,
        "high": shift.high,
        "reliable": shift.reliable,
        "notable": shift.notable,
        "sentence": shift.sentence(class_names),
    }


def shift_warning(summary: Summary) -> str:
    """Return the warning or note on label shift for a run's summary; empty if the estimate indicates none."""
    shift = summary.get("label_shift")
    if not shift or not shift["notable"]:
        return ""
    return f"{'warning' if shift['reliable'] else 'note'}: {shift['sentence']}; {SHIFT_ADVICE}"


def read_shift(table: Mapping[str, Any]) -> LabelShift:
    """Return the estimate from a table written by :func:`shift_table`."""
    source, target = (torch.tensor(table[name], dtype=torch.float64) for name in ("source", "target"))
    return LabelShift(source, target, table["distance"], table["reliable"], table["low"], table["high"])


def count_trained_test_rows(pair: DomainPair) -> int:
    """Count the test rows of the target that are also trained on, without their labels."""
    if pair.target_test is None or not len(pair.target_test.x) or not len(pair.target.x):
        return 0
    return count_shared(fingerprints(pair.target.x), fingerprints(pair.target_test.x))


def worst_shift(source_only: Sequence[Summary]) -> Mapping[str, Any] | None:
    """Return the estimate of source-only runs with the largest upper bound; None if there is none."""
    found = [table for summary in source_only if (table := summary.get("label_shift"))]
    return max(found, key=lambda table: float(table["high"]), default=None)


def signals_of(summaries: Sequence[Summary]) -> Signals:
    """Return the label-free validators after the last rounds of one method's runs, if every run measured them."""
    found = {
        name: [float(summary[validator.column]) for summary in summaries if summary.get(validator.column) is not None]
        for name, validator in VALIDATORS.items()
        if not validator.oracle
    }
    whole = {name: values for name, values in found.items() if len(values) == len(summaries)}
    return Signals(whole, whole.get("source_risk", ()))


def is_source_only(summary: Summary) -> bool:
    """Return whether a run trained on source labels alone, without scaling per site."""
    learns_otherwise = summary["partition"] == TargetSupervised.name or summary.get(PER_SITE, False)
    return bool(summary["objective"] == SourceOnly.name and not learns_otherwise)


def find_difference(summaries: Sequence[Summary]) -> str:
    """Return why runs cannot be compared, ``rounds`` or ``rows``; empty if they can.

    Runs that may stop early by the same rule count as equally long. Rows are compared by their fingerprints, if they
    are known and the rows were not scaled per site.
    """
    first, *others = [summary.get("may_stop") or summary["rounds"] for summary in summaries]
    if any(planned != first for planned in others):
        return "rounds"
    known = [rows for summary in summaries if (rows := summary.get("fingerprint")) and not summary.get(PER_SITE)]
    return "" if all(same_data(known[0], rows, TRAINED_AND_CHOSEN_BY) for rows in known) else "rows"


def _adapts(summary: Summary) -> bool:
    """Return whether to judge a run: its objective adapts, or is source only with scaling per site or target labels."""
    objective = OBJECTIVES.get(summary["objective"], SourceOnly)
    return objective.adapts or objective is SourceOnly


def judge_runs(summaries: Sequence[Summary]) -> dict[str, Any]:
    """Return the rule's verdict on every method among runs, by the runs' summaries, as plain values.

    Runs with the same label are seeds of one method. Each is compared with the source-only method of the lowest source
    risk among those with as many rounds on the same rows; the verdict names it, with its estimate of label shift. Runs
    that did not complete are not judged.
    """
    methods: dict[str, list[Summary]] = {}
    for summary in summaries:
        if summary["status"] == "completed":
            methods.setdefault(summary["label"], []).append(summary)
    plain = {label: runs for label, runs in methods.items() if is_source_only(runs[0])}
    adapted = {label: runs for label, runs in methods.items() if label not in plain and _adapts(runs[0])}
    if not plain or not adapted:
        return {"rule": RULE, "verdicts": [], "note": NO_SOURCE_ONLY if adapted else ""}

    def risk(label: str) -> float:
        values = signals_of(plain[label]).source_risk
        return fmean(values) if values else float("inf")

    def judge(label: str, runs: Sequence[Summary]) -> dict[str, Any]:
        differences = {other: find_difference([*plain[other], *runs]) for other in plain}
        against = min((other for other, difference in differences.items() if not difference), key=risk, default=None)
        if against is None:
            others = ", ".join(f"{other} differs in {difference}" for other, difference in differences.items())
            verdict = Verdict(None, f"{CANNOT_JUDGE}: no source-only run did as many rounds on the same rows: {others}")
            return {"label": label, **asdict(verdict), "source_only": None, "label_shift": None}
        worst = worst_shift(plain[against])
        shift = None if worst is None else read_shift(worst)
        verdict = judge_adaptation(signals_of(plain[against]), signals_of(runs), shift)
        return {"label": label, **asdict(verdict), "source_only": against, "label_shift": worst}

    return {"rule": RULE, "verdicts": [judge(label, runs) for label, runs in adapted.items()], "note": ""}
