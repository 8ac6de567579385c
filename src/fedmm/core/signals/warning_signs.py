"""Warning signs in a run's own history, without a second run and without target labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

NEAR_ZERO = 0.05
"""The share of the maximum of target_information, log(classes), below which it is near 0."""
FALLEN = 0.5
"""The share of its best value below which target_information has collapsed."""
_RISEN, _RISEN_BY = 2.0, 0.1
"""By what factor and by how many nats source_risk must exceed its best value to be a warning sign."""

Measured = Sequence[tuple[int, float]]
"""(round, value) pairs in order."""


def find_warning_signs(history: Mapping[str, Measured], classes: int, shift: Mapping[str, object] | None) -> list[str]:
    """Return signs that a run went wrong, each a part of a sentence; none is no proof that it went well.

    history: values by column. shift: the label shift estimate in the run's summary.
    """
    return [
        *_information(history.get("target_information", ()), classes),
        *_risk(history.get("source_risk", ())),
        *_label_shift(shift or {}),
    ]


def _information(values: Measured, classes: int) -> list[str]:
    if not values:
        return []
    last = values[-1][1]
    best_round, best = max(values, key=lambda pair: pair[1])
    if last < NEAR_ZERO * math.log(max(classes, 2)):
        return [f"target_information is {last:.3g} nats, near 0: it collapsed, or has not learned yet"]
    if last < FALLEN * best:
        return [f"target_information fell from {best:.3g} in round {best_round} to {last:.3g}: a collapse"]
    return []


def _risk(values: Measured) -> list[str]:
    if not values:
        return []
    last = values[-1][1]
    best_round, best = min(values, key=lambda pair: pair[1])
    if last > _RISEN * best and last - best > _RISEN_BY:
        return [f"source_risk rose from {best:.3g} in round {best_round} to {last:.3g}"]
    return []


def _label_shift(shift: Mapping[str, object]) -> list[str]:
    distance = shift.get("distance")
    if not shift.get("notable") or not isinstance(distance, float):
        return []
    rough = "" if shift.get("reliable") else ", roughly"
    return [f"the class mixes of source and target are estimated to differ in {distance:.0%} of the rows{rough}"]
