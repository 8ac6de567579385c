"""How well scores rank one class above another, from histograms of them: what is counted at sites adds up."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.metrics import Seen, uncountable

_BINS = 8192
_NEAREST, _FARTHEST = 0.01, 1e4


class Ranking:
    """AUROC, average precision and balanced accuracy of two classes, from counts by class and bin of the score.

    The score of a row is s = logit_1 - logit_0, the log odds of class 1. Bins are equally wide in sign(s) log(1 + |s| /
    0.01): about |s| / 300 at s, and 3e-5 at 0; scores beyond 10,000 are in the outermost. The rows of one bin are taken
    as evenly mixed: a pair of them counts half for AUROC, as a tie does, and average precision takes the positives
    among them at equal distances. ``auroc_error`` is by how much AUROC can be wrong for it, half of the pairs that
    share a bin, and ``average_precision_error`` the same of average precision, whatever the order of the rows in a bin
    and their ties. Balanced accuracy, at s > 0, is exact.

    The sums are the counts of class 0 and then of class 1. Without rows of both, all values are NaN.

    bins: how many, an even number.
    """

    parts: ClassVar[tuple[str, ...]] = (
        "auroc", "auroc_error", "average_precision", "average_precision_error", "balanced_accuracy",
    )  # fmt: skip

    def __init__(self, bins: int = _BINS) -> None:
        self.bins = bins

    def sums(self, seen: Seen) -> Tensor:
        s = (seen.logits[..., 1] - seen.logits[..., 0]).double()
        counts = torch.zeros(*s.shape[:-1], 2 * self.bins, dtype=torch.float64, device=s.device)
        counts.scatter_add_(-1, self._places(s) + seen.y * self.bins, torch.ones_like(s))
        return torch.where(s.isnan().any(dim=-1, keepdim=True), torch.nan, counts)

    def _places(self, s: Tensor) -> Tensor:
        """The bin of each score, int64; those above 0 are in the upper half."""
        half = self.bins // 2
        reach = (s.abs() / _NEAREST).log1p() * (half / math.log1p(_FARTHEST / _NEAREST))
        steps = reach.nan_to_num().clamp(max=half - 1).long()
        return torch.where(s > 0, half + steps, half - 1 - steps)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """The parts, ``[..., 5]``."""
        negative, positive = sums.view(*sums.shape[:-1], 2, self.bins).unbind(dim=-2)
        negatives, positives = negative.sum(dim=-1), positive.sum(dim=-1)
        pairs = negatives * positives
        below = negative.cumsum(dim=-1) - negative
        auroc = (positive * (below + negative / 2)).sum(dim=-1) / pairs
        error = (positive * negative).sum(dim=-1) / (2 * pairs)
        average, average_error = _average_precision(positive, negative)
        half = self.bins // 2
        recalls = negative[..., :half].sum(dim=-1) / negatives + positive[..., half:].sum(dim=-1) / positives
        found = torch.stack([auroc, error, average, average_error, recalls / 2], dim=-1)
        return torch.where((pairs > 0).unsqueeze(-1), found, torch.nan)

    def count(self, classes: int) -> int:
        return 2 * self.bins

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        flaw = uncountable(sums, rows, 1.0)
        return flaw or ("" if float(sums.sum()) == rows else "a row is in no bin, or in two")

    def withheld(self, sums: Tensor, least: int) -> Tensor:
        """The sums without a class that has fewer rows than so many."""
        by_class = sums.view(*sums.shape[:-1], 2, self.bins)
        enough = by_class.sum(dim=-1, keepdim=True) >= least
        return torch.where(enough, by_class, 0.0).flatten(-2)


def _average_precision(positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision from counts ``[..., bins]``, and by how much it can be wrong.

    With A positives and B rows above a bin, and its n negatives evenly among its p positives, the precision at the k-th
    of them is (A + k) / (B + r k) with r = 1 + n / (p + 1). It is least, (A + k) / (B + n + k), with all n before them,
    and most, (A + p) / (B + p), where the positives are first and tied. Sums over k are differences of digammas.
    """
    A, B = (each.flip(-1).cumsum(dim=-1).flip(-1) - each for each in (positive, positive + negative))
    r = 1.0 + negative / (positive + 1.0)

    def summed(first: Tensor, step: Tensor | float) -> Tensor:
        """The sum over k of (A + k) / (first + step k)."""
        harmonic = torch.digamma(first / step + positive + 1.0) - torch.digamma(first / step + 1.0)
        several = positive / step + (A - first / step) / step * harmonic
        return torch.where(positive > 1, several, positive * (A + 1.0) / (first + step))

    most = torch.where(positive > 0, positive * (A + positive) / (B + positive), 0.0)
    low, mean, high = (
        each.sum(dim=-1) / positive.sum(dim=-1) for each in (summed(B + negative, 1.0), summed(B, r), most)
    )
    return mean, torch.maximum(high - mean, mean - low)
