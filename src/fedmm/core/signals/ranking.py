"""How well scores rank one class above another, from histograms of the scores, whose counts add up over sites."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.metrics import Seen, uncountable

EXACT = 1e-3
"""The largest error of AUROC and average precision that does not require counting again in finer bins."""
MOST_EDGES = 1 << 17
_PARTS = 1 << 14
"""About how many bins are added at a time, in proportion to the bins' errors."""
_INFINITY = 0x7F800000
"""The key of infinity, which is the largest."""


class Ranking:
    """AUROC, average precision and balanced accuracy of two classes, from counts by class and bin of the score.

    The score of a row is s = logit_1 - logit_0, the log odds of class 1, rounded to float32 without crossing 0: rows
    with the same float32 score count as tied. Bins are intervals (a, b] between consecutive edges. Edges are keys,
    integers in the order of float32: a key is the number of float32 steps from 0 to a score, negative below 0.

    A pair of rows in one bin counts half for AUROC, and average precision takes the positives of a bin to be evenly
    spaced among its rows. ``auroc_error`` is half of these pairs, and ``average_precision_error`` is how far average
    precision can be off, whatever the order of the rows in a bin and their ties. Rows of a bin that is one key wide are
    tied, so such a bin has no error. If an error is above 0.001, :meth:`refined` gives edges for another count of the
    same rows. Balanced accuracy, at s > 0, is exact: 0 is always an edge.

    The sums are the counts of class 0, bin by bin, and then those of class 1. Without rows of both, all values are NaN.

    edges: int64 ``[k]``, of k + 1 bins. By default about 25,000: on both sides of 0, 1,024 equal bins up to 1/16 and
        1,024 for each factor of 2 from there to 128.
    """

    parts: ClassVar[tuple[str, ...]] = (
        "auroc", "auroc_error", "average_precision", "average_precision_error", "balanced_accuracy",
    )  # fmt: skip

    def __init__(self, edges: Tensor | None = None) -> None:
        self._edges = edges

    @property
    def edges(self) -> Tensor:
        return _first_edges(torch.device("cpu")) if self._edges is None else self._edges

    @property
    def bins(self) -> int:
        """The number of bins."""
        return len(self.edges) + 1

    def with_edges(self, edges: Tensor) -> Ranking:
        """Return the same metric with other edges, int32 ``[k]``."""
        require(
            edges.dtype == torch.int32 and edges.ndim == 1 and 0 < len(edges) <= MOST_EDGES,
            f"edges must be int32, from 1 to {MOST_EDGES} of them, not {edges.dtype} of shape {tuple(edges.shape)}",
        )
        wide = edges.long()
        require(
            bool((wide.diff() > 0).all() and (wide.abs() <= _INFINITY).all() and (wide == 0).any()),
            "edges must be in ascending order, no two alike, keys of float32, and 0 among them",
        )
        return Ranking(wide)

    def sums(self, seen: Seen) -> Tensor:
        s = seen.logits[..., 1].double() - seen.logits[..., 0].double()
        bins = torch.searchsorted(self._edges_on(s.device), _keys(s))
        counts = torch.zeros(*s.shape[:-1], self.count(2), dtype=torch.float64, device=s.device)
        counts.scatter_add_(-1, seen.y * self.bins + bins, torch.ones_like(s))
        return counts.masked_fill_(s.isnan().any(dim=-1, keepdim=True), torch.nan)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """Return the parts, ``[..., 5]``."""
        negative, positive = self._by_class(sums)
        negatives, positives = negative.sum(dim=-1), positive.sum(dim=-1)
        above_0 = self._below_bins(sums.device) >= 0
        recalls = (negative * ~above_0).sum(dim=-1) / negatives + (positive * above_0).sum(dim=-1) / positives
        ranked = [by_bin.sum(dim=-1) for by_bin in self._by_bin(negative, positive)]
        found = torch.stack([*ranked, recalls / 2], dim=-1)
        return torch.where((negatives * positives > 0).unsqueeze(-1), found, torch.nan)

    def is_coarse(self, value: Tensor) -> Tensor:
        """Return whether an error of a value ``[..., 5]`` is above 0.001, bool ``[...]``."""
        return (value[..., 1:4:2] > EXACT).any(dim=-1)

    def refined(self, sums: Tensor, rows: int) -> Ranking | None:
        """Return the metric with finer bins where sums ``[k]`` leave errors above 0.001, or None.

        None means that the errors are small enough, or that there would be too many edges. About 16,384 bins are added
        in proportion to the bins' errors, half of them by each error that is above 0.001. Parts of a bin have equally
        many keys. Edges between bins without rows of class 1 carry no information and are dropped.
        """
        negative, positive = self._by_class(sums)
        _, auroc_error, _, average_error = self._by_bin(negative, positive)
        errors = torch.stack([auroc_error, average_error])
        errors = errors[errors.sum(dim=-1) > EXACT]
        if not len(errors):
            return None
        share = (errors / errors.sum(dim=-1, keepdim=True)).mean(dim=0)
        width = self._widths(sums.device)
        parts = torch.minimum(1 + (share * _PARTS).ceil().long(), width)
        bin_of = torch.repeat_interleave(parts)
        part = torch.arange(len(bin_of), device=sums.device) - (parts.cumsum(dim=0) - parts)[bin_of]
        below = self._below_bins(sums.device)
        edges = below[bin_of] + width[bin_of] * part // parts[bin_of]
        told_apart = (positive[1:] > 0) | (positive[:-1] > 0) | (below[1:] == 0)
        edges = edges[(part > 0) | torch.nn.functional.pad(told_apart, (1, 0))[bin_of]]
        return Ranking(edges) if len(edges) <= MOST_EDGES else None

    def count(self, classes: int) -> int:
        return 2 * self.bins

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        flaw = uncountable(sums, rows, 1.0)
        return flaw or ("" if float(sums.sum()) == rows else "a row is in no bin, or in two")

    def withheld(self, sums: Tensor, least: int) -> Tensor:
        """Return the sums without those classes that have fewer than ``least`` rows."""
        return torch.cat(
            [torch.where(own.sum(dim=-1, keepdim=True) >= least, own, 0.0) for own in self._by_class(sums)], dim=-1
        )

    def rows_by_class(self, sums: Tensor) -> tuple[int, int]:
        """Return the numbers of rows of class 0 and of class 1 in sums ``[k]``."""
        negatives, positives = (int(own.sum().nan_to_num()) for own in self._by_class(sums))
        return negatives, positives

    def _by_class(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Return the counts of class 0 and of class 1, ``[..., bins]``."""
        return sums[..., : self.bins], sums[..., self.bins :]

    def _edges_on(self, device: torch.device) -> Tensor:
        return _first_edges(device) if self._edges is None else self._edges.to(device)

    def _below_bins(self, device: torch.device) -> Tensor:
        """Return the edge below each bin, ``[bins]``."""
        return torch.nn.functional.pad(self._edges_on(device), (1, 0), value=-_INFINITY - 1)

    def _widths(self, device: torch.device) -> Tensor:
        """Return the number of keys in each bin, ``[bins]``."""
        return torch.nn.functional.pad(self._edges_on(device), (0, 1), value=_INFINITY) - self._below_bins(device)

    def _by_bin(self, negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return AUROC and average precision, each with its error, from counts ``[..., bins]``, as terms to sum."""
        pairs = negative.sum(dim=-1, keepdim=True) * positive.sum(dim=-1, keepdim=True)
        tied = self._widths(negative.device) == 1
        below = negative.cumsum(dim=-1) - negative
        auroc = positive * (below + negative / 2) / pairs
        auroc_error = torch.where(tied, 0.0, positive * negative) / (2 * pairs)
        return auroc, auroc_error, *_average_precision(positive, negative, tied)


@cache
def _first_edges(device: torch.device) -> Tensor:
    near = _keys(torch.arange(1, 1025).double() / (16 * 1024))
    far = near[-1] + torch.arange(1, 11 * 1024 + 1) * (1 << 13)
    above = torch.cat([near, far])
    return torch.cat([-above.flip(0), torch.zeros(1, dtype=torch.int64), above]).to(device)


def _keys(s: Tensor) -> Tensor:
    """Return the keys of scores, float64, as int64; that of NaN is beyond all others."""
    bits = s.float().view(torch.int32).long()
    keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return torch.where(keys == 0, s.sign().long(), keys)


def _average_precision(positive: Tensor, negative: Tensor, tied: Tensor) -> tuple[Tensor, Tensor]:
    """Return average precision and how far it can be off, from counts ``[..., bins]``, as terms to be summed over bins.

    tied: ``[bins]``, whether all rows of a bin are tied.

    With A positives and B rows above a bin, and its n negatives spread evenly among its p positives, the precision at
    the k-th positive is (A + k) / (B + r k) with r = 1 + n / (p + 1). It is lowest, (A + k) / (B + n + k), if all
    negatives come first, and highest, (A + p) / (B + p), if the positives come first and are tied. If all rows are
    tied, it is (A + p) / (B + p + n) for each. Sums over k are differences of digamma functions.
    """
    A, B = (each.flip(-1).cumsum(dim=-1).flip(-1) - each for each in (positive, positive + negative))
    r = 1.0 + negative / (positive + 1.0)

    def summed(first: Tensor, step: Tensor | float) -> Tensor:
        """Return the sum over k of (A + k) / (first + step k)."""
        harmonic = torch.digamma(first / step + positive + 1.0) - torch.digamma(first / step + 1.0)
        several = positive / step + (A - first / step) / step * harmonic
        return torch.where(positive > 1, several, positive * (A + 1.0) / (first + step))

    most, even = (
        torch.where(positive > 0, positive * (A + positive) / (B + positive + before), 0.0)
        for before in (0.0, negative)
    )
    mean, least = summed(B, r), summed(B + negative, 1.0)
    error = torch.where(tied, 0.0, torch.maximum(most - mean, mean - least))
    positives = positive.sum(dim=-1, keepdim=True)
    return torch.where(tied, even, mean) / positives, error / positives
