"""The one rule on whether an adapted model may be believed to be better than the source-only one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedmm.core.label_shift import LabelShift

BELIEVED = ("target_information", "target_bnm")
"""Validators without target labels that told the better of two settings at least weakly: docs/choosing.md."""
FEWEST_SEEDS = 3
"""Of each method, below which a difference is not judged."""
SUPPORTED = "the evidence supports adapting"
NOT_SUPPORTED = "the evidence does not support adapting"
CANNOT_JUDGE = "whether adapting helps cannot be judged"
RULE = (
    "take source only unless the evidence supports adapting: a label shift that is estimated to be small, a source "
    f"risk that is no worse, and a higher {' and '.join(BELIEVED)} in {FEWEST_SEEDS} seeds or more"
)
"""The rule in words, the same wherever it is told."""
_RISK_SLACK = 0.1
"""By which share of itself a source risk may be higher and still be called no worse."""


@dataclass(frozen=True)
class Signals:
    """What is known of a method without labels of the target.

    validators: by name (a key of ``VALIDATORS``), the value of every seed's model.
    source_risk: the same of the mean loss on labelled source rows set aside; empty where there are none.
    """

    validators: Mapping[str, Sequence[float]]
    source_risk: Sequence[float] = ()


@dataclass(frozen=True)
class Verdict:
    """supported: whether the evidence supports adapting; None where it cannot be judged. sentence: that, and why."""

    supported: bool | None
    sentence: str


def judge_adaptation(source_only: Signals, adapted: Signals, shift: LabelShift | None) -> Verdict:
    """Judge by the rule whether an adapted model may be believed to be better than the source-only one.

    shift: as estimated with a source-only model, since an adapted one was trained to see the source's class mix; None
    where it was not estimated.

    One reason against is enough for "not supported"; "supported" needs everything that the rule asks for; and where
    something of that is missing, or the class mix can only be estimated roughly, it cannot be judged.
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
        missing.append("no labelled source rows are set aside, so that there is no source_risk")
    elif not fmean(after) <= fmean(before) * (1.0 + _RISK_SLACK):
        against.append(f"source_risk rose from {fmean(before):.3g} to {fmean(after):.3g}")
    for name in BELIEVED:
        old, new = source_only.validators.get(name, ()), adapted.validators.get(name, ())
        if not old or not new:
            missing.append(f"{name} was not measured")
        elif not min(new) > max(old):
            against.append(f"{name} is not higher in every seed ({_range(old)} source only, {_range(new)} adapted)")
    seeds = min((len(values) for each in (source_only, adapted) for values in each.validators.values()), default=0)
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
