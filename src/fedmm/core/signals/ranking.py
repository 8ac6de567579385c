"""How well scores rank one class above another, from histograms of them: what is counted at sites adds up."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.metrics import Seen, uncountable

_BINS = 8192
_NEAREST, _FARTHEST = 0.01, 1e4
_HISTOGRAMS, _FINER = 6, 8
"""How many there are, and into how many parts each divides the bins of the one before."""
_SMALLEST = _FINER ** (_HISTOGRAMS - 1)
_GROUPS = _BINS // _FINER
"""Of the parts of one bin, in every histogram but the first."""


class Ranking:
    """AUROC, average precision and balanced accuracy of two classes, from counts by class and bin of the score.

    The score of a row is s = logit_1 - logit_0, the log odds of class 1. Bins are equally wide in sign(s) log(1 + |s| /
    0.01): about |s| / 300 at s, and 3e-5 at 0; scores beyond 10,000 are in the outermost. Five further histograms each
    divide the bins of the one before into eight parts. They have 8,192 bins too, so that they go round: groups of eight
    stand for several bins each. If one bin alone of those has rows, it is replaced by its parts. So scores that lie
    close together, wherever that is, are told apart to |s| / 10,000,000, nearly as by float32.

    The rows of one bin are taken as evenly mixed: a pair of them counts half for AUROC, as a tie does, and average
    precision takes the positives among them at equal distances, or as tied in the smallest parts. ``auroc_error`` is by
    how much AUROC can be wrong for it, half of the pairs that share a bin, and ``average_precision_error`` the same of
    average precision, whatever the order of the rows in a bin and their ties. Balanced accuracy, at s > 0, is exact.

    The sums are the counts of class 0, histogram by histogram, and then of class 1. Without rows of both, all values
    are NaN.
    """

    parts: ClassVar[tuple[str, ...]] = (
        "auroc", "auroc_error", "average_precision", "average_precision_error", "balanced_accuracy",
    )  # fmt: skip

    def sums(self, seen: Seen) -> Tensor:
        s = (seen.logits[..., 1] - seen.logits[..., 0]).double()
        place = self._places(s)
        counts = torch.zeros(*s.shape[:-1], self.count(2), dtype=torch.float64, device=s.device)
        for number in range(_HISTOGRAMS):
            within = place // (_SMALLEST // _FINER**number) % _BINS
            counts.scatter_add_(-1, (seen.y * _HISTOGRAMS + number) * _BINS + within, torch.ones_like(s))
        return counts.masked_fill_(s.isnan().any(dim=-1, keepdim=True), torch.nan)

    def _places(self, s: Tensor) -> Tensor:
        """Which of the smallest parts each score is in, int64; those above 0 are in the upper half."""
        half = _BINS // 2 * _SMALLEST
        reach = (s.abs() / _NEAREST).log1p() * (half / math.log1p(_FARTHEST / _NEAREST))
        steps = reach.nan_to_num().clamp(max=half - 1).long()
        return torch.where(s > 0, half + steps, half - 1 - steps)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """The parts, ``[..., 5]``."""
        counts = _split(sums, 2, _HISTOGRAMS, _BINS)
        negatives, positives = counts[..., 0, :].sum(dim=-1).unbind(dim=-1)
        pairs = negatives * positives
        ordered, tied = _in_order(counts, rows)
        negative, positive = ordered.unbind(dim=-2)
        below = negative.cumsum(dim=-1) - negative
        auroc = (positive * (below + negative / 2)).sum(dim=-1) / pairs
        error = (positive * negative).sum(dim=-1) / (2 * pairs)
        average, average_error = _average_precision(positive, negative, tied)
        low, high = _split(counts[..., 0, :], 2, _BINS // 2).sum(dim=-1).unbind(dim=-1)
        recalls = low[..., 0] / negatives + high[..., 1] / positives
        found = torch.stack([auroc, error, average, average_error, recalls / 2], dim=-1)
        return torch.where((pairs > 0).unsqueeze(-1), found, torch.nan)

    def count(self, classes: int) -> int:
        return 2 * _HISTOGRAMS * _BINS

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        flaw = uncountable(sums, rows, 1.0)
        if flaw:
            return flaw
        counts = _split(sums, 2, _HISTOGRAMS, _BINS)
        if float(counts[..., 0, :].sum()) != rows:
            return "a row is in no bin, or in two"
        whole, parts = _split(counts[:, :-1], _FINER, _GROUPS), _split(counts[:, 1:], _GROUPS, _FINER)
        same = torch.equal(whole.sum(dim=-2), parts.sum(dim=-1))
        return "" if same else "its histograms are not of the same rows"

    def withheld(self, sums: Tensor, least: int) -> Tensor:
        """The sums without a class that has fewer rows than so many."""
        counts = _split(sums, 2, _HISTOGRAMS, _BINS)
        enough = counts[..., 0, :].sum(dim=-1) >= least
        return torch.where(enough[..., None, None], counts, 0.0).flatten(-3)

    def rows_by_class(self, sums: Tensor) -> tuple[int, int]:
        """How many rows of class 0 and of class 1 are in sums ``[k]``."""
        negatives, positives = _split(sums, 2, _HISTOGRAMS, _BINS)[:, 0].sum(dim=-1).nan_to_num().int().tolist()
        return negatives, positives


def _in_order(counts: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Counts ``[..., 2, histograms, bins]`` in the order of scores, ``[..., 2, k]``: rows in the smallest bin known.

    And whether that is one of the smallest parts, ``[..., k]``. rows: how many there are at most; k is at most that, or
    1. Below, places and widths of bins are counted in smallest parts.
    """
    held = counts[..., 0, :]
    place = torch.arange(_BINS, device=counts.device).expand(held[..., 0, :].shape) * _SMALLEST
    width = torch.full_like(place, _SMALLEST)
    for number in range(1, _HISTOGRAMS):
        part = _SMALLEST // _FINER**number
        group = part * _FINER
        filled = (held.sum(dim=-2) > 0).long()
        span = width // group
        first = place // group % _GROUPS
        behind = (first + span).clamp(max=_GROUPS)
        ends = torch.cat([first, behind], dim=-1)
        # By group, how many bins with rows it stands for, and the sum of their numbers: of one alone, its number.
        number_of = torch.arange(filled.shape[-1], device=counts.device) * filled
        sharing, owner = (_running(ends, torch.cat([each, -each], dim=-1)) for each in (filled, number_of))
        contested = torch.nn.functional.pad((sharing != 1).long().cumsum(dim=-1), (1, 0))
        alone = contested.gather(-1, behind) == contested.gather(-1, first)
        divided = alone & (filled > 0) & (span <= _GROUPS)
        owner = owner.where(sharing == 1, 0)
        known = (sharing == 1) & divided.gather(-1, owner)
        offset = torch.arange(_GROUPS, device=counts.device) - first.gather(-1, owner)
        begin = place.gather(-1, owner) + offset * group
        parts = _split(counts[..., number, :], _GROUPS, _FINER) * known[..., None, :, None]
        places = begin.unsqueeze(-1) + torch.arange(_FINER, device=counts.device) * part
        held = torch.cat([held.masked_fill(divided.unsqueeze(-2), 0.0), parts.flatten(-2)], dim=-1)
        place = torch.cat([place, places.flatten(-2)], dim=-1)
        width = torch.cat([width, torch.full_like(places.flatten(-2), part)], dim=-1)
        empty = held.sum(dim=-2) == 0
        order = place.masked_fill(empty, _BINS * _SMALLEST).argsort(dim=-1, stable=True)[..., : max(rows, 1)]
        place, width = place.gather(-1, order), width.gather(-1, order)
        held = held.gather(-1, order.unsqueeze(-2).expand(*held.shape[:-1], order.shape[-1]))
    return held, width == 1


def _split(sums: Tensor, *sizes: int) -> Tensor:
    """``[..., k]`` as ``[..., *sizes]``."""
    return sums.reshape(*sums.shape[:-1], *sizes)


def _running(ends: Tensor, changes: Tensor) -> Tensor:
    """By group ``[..., groups]``, the sum of the changes ``[..., k]`` at or before it."""
    at = torch.zeros(*ends.shape[:-1], _GROUPS + 1, dtype=changes.dtype, device=ends.device)
    return at.scatter_add_(-1, ends, changes).cumsum(dim=-1)[..., :-1]


def _average_precision(positive: Tensor, negative: Tensor, tied: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision from counts ``[..., bins]``, and by how much it can be wrong; tied: in which bins all rows are.

    With A positives and B rows above a bin, and its n negatives evenly among its p positives, the precision at the k-th
    of them is (A + k) / (B + r k) with r = 1 + n / (p + 1). It is least, (A + k) / (B + n + k), with all n before them,
    and most, (A + p) / (B + p), where the positives are first and tied. It is (A + p) / (B + p + n) of each if all rows
    are tied. Sums over k are differences of digammas.
    """
    A, B = (each.flip(-1).cumsum(dim=-1).flip(-1) - each for each in (positive, positive + negative))
    r = 1.0 + negative / (positive + 1.0)

    def summed(first: Tensor, step: Tensor | float) -> Tensor:
        """The sum over k of (A + k) / (first + step k)."""
        harmonic = torch.digamma(first / step + positive + 1.0) - torch.digamma(first / step + 1.0)
        several = positive / step + (A - first / step) / step * harmonic
        return torch.where(positive > 1, several, positive * (A + 1.0) / (first + step))

    most, even = (
        torch.where(positive > 0, positive * (A + positive) / (B + positive + before), 0.0)
        for before in (0.0, negative)
    )
    likely = torch.where(tied, even, summed(B, r))
    low, mean, high = (each.sum(dim=-1) / positive.sum(dim=-1) for each in (summed(B + negative, 1.0), likely, most))
    return mean, torch.maximum(high - mean, mean - low)
