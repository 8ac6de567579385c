"""95 % confidence intervals of proportions, their means, and areas under curves, from counts; does not need torch."""

from __future__ import annotations

import math
from collections.abc import Sequence

Interval = tuple[float, float]
_Z = 1.959963984540054


def wilson(hits: int, rows: int) -> Interval:
    """Return the 95 % interval of a proportion by the score test (Wilson 1927)."""
    share, slack = hits / rows, _Z * _Z / rows
    middle = (share + slack / 2) / (1 + slack)
    half = (slack * share * (1 - share) + slack * slack / 4) ** 0.5 / (1 + slack)
    return (0.0 if not hits else middle - half), (1.0 if hits == rows else middle + half)


def mean_interval(counts: Sequence[tuple[int, int]]) -> Interval:
    """Return the 95 % interval of a mean of independent proportions, from Wilson's of each (Zou and Donner 2008)."""
    shares = [hits / rows for hits, rows in counts]
    single = [wilson(hits, rows) for hits, rows in counts]
    mean, classes = sum(shares) / len(shares), len(shares)
    below = sum((share - low) ** 2 for share, (low, _) in zip(shares, single, strict=True)) ** 0.5 / classes
    above = sum((high - share) ** 2 for share, (_, high) in zip(shares, single, strict=True)) ** 0.5 / classes
    return max(0.0, mean - below), min(1.0, mean + above)


def auroc_interval(auroc: float, positive: int, negative: int) -> Interval:
    """Return the 95 % interval of an area under the ROC curve by the score test (Newcombe 2006, method 5).

    Unlike DeLong's or the bootstrap's, it has a nonzero width at 0 and 1.
    """
    extra = (positive + negative) / 2 - 1

    def inside(value: float) -> bool:
        shape = 1 + extra * (1 - value) / (2 - value) + extra * value / (1 + value)
        return (auroc - value) ** 2 <= _Z * _Z * value * (1 - value) * shape / (positive * negative)

    def bound(within: float, outside: float) -> float:
        for _ in range(60):
            middle = (within + outside) / 2
            within, outside = (middle, outside) if inside(middle) else (within, middle)
        return within

    return (0.0 if auroc == 0 else bound(auroc, 0.0)), (1.0 if auroc == 1 else bound(auroc, 1.0))


def average_precision_interval(average: float, positive: int) -> Interval:
    """Return the 95 % interval of an average precision, on the scale of log odds (Boyd, Eng and Page 2013).

    At 1, where that is undefined, it is Wilson's interval with every positive a hit.
    """
    if average >= 1.0:
        return wilson(positive, positive)
    middle, half = math.log(average / (1 - average)), _Z / (positive * average * (1 - average)) ** 0.5
    low, high = (0.5 * (1.0 + math.tanh(end / 2)) for end in (middle - half, middle + half))
    return low, high
