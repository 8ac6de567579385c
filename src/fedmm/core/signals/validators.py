"""Validators for choosing a model, and the one rule on whether an adapted model may be trusted over source only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from fedmm.core.errors import FedmmError, unknown

if TYPE_CHECKING:
    from fedmm.core.signals.label_shift import LabelShift  # needs torch, which reports do without

ORACLE = "oracle_"
"""Prefix of the names of all validators, files and keys that depend on target labels."""


@dataclass(frozen=True)
class Validator:
    """A criterion for choosing a model.

    column: of the history. higher: whether higher is better. needs: what it requires. sends: what leaves a client.
    reference: its origin. oracle: whether it uses target labels, which are unavailable in practice.
    """

    name: str
    column: str
    higher: bool
    needs: str
    sends: str
    reference: str
    oracle: bool = False

    def better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Return whether a value is better than another by more than ``by``; any finite number is better than None."""
        if not math.isfinite(value):
            return False
        return than is None or ((value - than) if self.higher else (than - value)) > by


_TARGET = "target inputs of the clients (run.probe_rows above 0)"
_ASIDE = "labelled source rows set aside (source_validation, or validation_rows in a site's file)"
_COUNTS = "how many of its scores are in each of some 25,000 bins, by class; again in finer ones if need be"
_PSI = "an adversary that predicts domains (dann, cdan)"

VALIDATORS: dict[str, Validator] = {
    validator.name: validator
    for validator in (
        Validator(
            "target_information", "target_information", True, _TARGET,
            "the sum of its predictions and of their entropies: classes + 1 numbers", "Bridle et al. 1991",
        ),
        Validator(
            "target_entropy", "target_entropy", False, _TARGET, "the sum of its predictions' entropies: 1 number",
            "Morerio et al. 2018",
        ),
        Validator(
            "target_bnm", "target_bnm", True, f"{_TARGET}, at most 256 classes",
            "the sum of p p^T over its predictions p: classes x classes numbers", "Cui et al. 2020",
        ),
        Validator(
            "target_snd", "target_snd", True, _TARGET,
            "the sum of its neighbourhoods' entropies and their count: 2 numbers", "Saito et al. 2021",
        ),
        Validator("source_risk", "source_risk", False, _ASIDE, "the sum of its losses: 1 number", "cross entropy"),
        Validator(
            "dev_risk", "dev_risk", False, f"{_ASIDE} and {_PSI}", "five sums of weights and losses",
            "You et al. 2019",
        ),
        Validator(
            "validation_auroc", "validation_auroc", True, f"{_ASIDE}, and two classes", _COUNTS, "area under ROC",
        ),
        Validator(
            "validation_average_precision", "validation_average_precision", True, f"{_ASIDE}, and two classes", _COUNTS,
            "average precision",
        ),
        Validator(
            "validation_accuracy", "validation_accuracy", True, f"{_ASIDE}, and no target",
            "the count of its hits: 1 number", "accuracy",
        ),
        Validator(
            "validation_worst_accuracy", "validation_worst_accuracy", True,
            f"{_ASIDE} with a known site for each, and no target",
            "the counts of its hits and of its rows: 2 numbers", "accuracy of the worst-off site",
        ),
        Validator(
            "source_accuracy", "source_accuracy", True, "labelled source test rows", "the count of its hits: 1 number",
            "accuracy",
        ),
        Validator(
            "domain_accuracy", "domain_accuracy", False, f"{_TARGET} and {_PSI}",
            "the count of rows whose domain is predicted correctly: 1 number", "balanced accuracy",
        ),
        Validator(
            "proxy_a_distance", "proxy_a_distance", False, f"{_TARGET} and {_PSI}",
            "the count of rows whose domain is predicted correctly: 1 number", "Ben-David et al. 2006",
        ),
        Validator(
            f"{ORACLE}target_accuracy", "target_accuracy", True, "labelled target rows",
            "the count of its hits: 1 number", "accuracy", oracle=True,
        ),
        Validator(
            f"{ORACLE}target_auroc", "target_auroc", True, "labelled target rows, and two classes", _COUNTS,
            "area under ROC", oracle=True,
        ),
    )
}  # fmt: skip


METRICS: dict[str, tuple[str, ...]] = {
    "accuracy": ("validation_accuracy", "source_risk"),
    "auc": ("validation_auroc", "validation_average_precision"),
    "worst_site": ("validation_worst_accuracy", "validation_accuracy", "source_risk"),
}
"""For models of labelled rows only: by metric, the validators that measure it, each next one to break ties."""


def metric_trained_for(objective: str, best_by: str, *, weighs_clients: bool) -> str:
    """Return which of ``METRICS`` a model without a target is trained for or, if that does not say, chosen by."""
    if objective == "auc":
        return "auc"
    if weighs_clients:
        return "worst_site"
    return next((metric for metric, signals in METRICS.items() if best_by in signals), "accuracy")


def validator(name: str, option: str) -> Validator:
    """Return the validator of that name for an option such as ``best_by``; one that uses target labels must say so."""
    if name in VALIDATORS:
        return VALIDATORS[name]
    oracle = next(
        (validator for validator in VALIDATORS.values() if validator.oracle and validator.column == name), None
    )
    if oracle is not None:
        raise FedmmError(
            f"{option} = {name!r} would choose with target labels; set {option} = {oracle.name!r} if that is meant"
        )
    if name in METRICS:
        raise FedmmError(
            f"{option} = {name!r} is a metric, measured by a validator: set {option} = {METRICS[name][0]!r}"
        )
    raise unknown(option, name, VALIDATORS)


BELIEVED = ("target_information", "target_bnm")
"""Label-free validators that were at least weakly able to tell the better of two settings: docs/choosing.md."""
FEWEST_SEEDS = 3
"""The number of seeds of each method below which a difference is not judged."""
SUPPORTED = "the evidence supports adapting"
NOT_SUPPORTED = "the evidence does not support adapting"
CANNOT_JUDGE = "whether adapting helps cannot be judged"
ALONE = "this run alone cannot tell whether adapting helped over source only"
"""In place of a verdict, if there is nothing to compare with."""
RULE = (
    "take source only unless the evidence supports adapting: a label shift that is estimated to be small, a source "
    f"risk that is no worse, and a higher {' and '.join(BELIEVED)} in {FEWEST_SEEDS} seeds or more"
)
"""The rule in words, the same wherever it is shown."""
_RISK_SLACK = 0.1
"""The relative increase of a source risk that still counts as no worse."""


@dataclass(frozen=True)
class Signals:
    """What is known about a method without target labels.

    validators: by name (a key of ``VALIDATORS``), the value of every seed's model.
    source_risk: the same of the mean loss on labelled source rows set aside; empty if there are none.
    """

    validators: Mapping[str, Sequence[float]]
    source_risk: Sequence[float] = ()


@dataclass(frozen=True)
class Verdict:
    """supported: whether the evidence supports adapting, None if it cannot be judged; sentence: that, with reasons."""

    supported: bool | None
    sentence: str


def judge_adaptation(source_only: Signals, adapted: Signals, shift: LabelShift | None) -> Verdict:
    """Judge by the rule whether an adapted model may be trusted to be better than the source-only one.

    shift: as estimated with a source-only model, since an adapted one was trained to see the source's class mix; None
    if it was not estimated.

    One reason against is enough for "not supported", and "supported" needs everything that the rule asks for. If some
    of that is missing, or a label shift that is not small can only be estimated roughly, it cannot be judged.
    """
    against, missing = [], []
    if shift is None:
        missing.append("the target's class mix was not estimated")
    elif not shift.small:
        what = "is estimated to differ" if shift.reliable and shift.notable else "may differ"
        mixes = (
            f"the target's class mix {what} from the source's (in {shift.distance:.0%} of the rows, 90 % interval "
            f"{shift.low:.0%} to {shift.high:.0%}), and then the validators cannot be believed"
        )
        if shift.reliable:
            against.append(mixes)
        else:
            missing.append(f"{mixes}; a rough estimate, which labels of a few dozen target rows would settle")
    before, after = source_only.source_risk, adapted.source_risk
    if not before or not after:
        missing.append("no labelled source rows are set aside, so there is no source_risk")
    elif not fmean(after) <= fmean(before) * (1.0 + _RISK_SLACK):
        against.append(f"source_risk rose from {fmean(before):.3g} to {fmean(after):.3g}")
    for name in BELIEVED:
        old, new = source_only.validators.get(name, ()), adapted.validators.get(name, ())
        if not old or not new:
            missing.append(f"{name} was not measured")
        elif not min(new) > max(old):
            against.append(f"{name} is not higher in every seed ({_range(old)} source only, {_range(new)} adapted)")
    seeds = min((len(values) for group in (source_only, adapted) for values in group.validators.values()), default=0)
    if seeds < FEWEST_SEEDS:
        missing.append(f"{FEWEST_SEEDS} seeds of each method are needed, not {seeds}")
    if against:
        return Verdict(False, f"{NOT_SUPPORTED}: {'; '.join(against)}")
    if missing:
        return Verdict(None, f"{CANNOT_JUDGE}: {'; '.join(missing)}")
    assert shift is not None
    return Verdict(
        True,
        f"{SUPPORTED}: {' and '.join(BELIEVED)} are higher in every seed, source_risk is no worse, and the class "
        f"mixes are estimated to differ in {shift.distance:.0%} of the rows ({shift.high:.0%} at most); labels of some "
        "target rows would still be the better judge",
    )


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"
