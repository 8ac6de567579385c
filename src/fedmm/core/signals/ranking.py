"""How well scores rank one class above another, from histograms of them: what is counted at sites adds up."""

from __future__ import annotations

from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.metrics import Seen, uncountable

EXACT = 1e-3
"""By how much AUROC and average precision may be wrong before rows are counted again in finer bins."""
MOST_EDGES = 1 << 17
_PARTS = 1 << 14
"""Into so many more the bins are divided at a time, in proportion to their errors."""
_INFINITY = 0x7F800000
"""Its key, the largest."""


class Ranking:
    """AUROC, average precision and balanced accuracy of two classes, from counts by class and bin of the score.

    The score of a row is s = logit_1 - logit_0, the log odds of class 1, as the nearest float32 on its side of 0: rows
    that float32 does not tell apart count as tied. Bins lie between edges, (a, b] of two in a row. Edges are keys,
    integers in the order of float32: a key is the number of steps from 0 to a score through all float32 between, below
    0 for scores below 0.

    A pair of rows in one bin counts half for AUROC, and average precision takes the positives of a bin at equal
    distances among its rows. ``auroc_error`` is half of these pairs, and ``average_precision_error`` by how much
    average precision can be wrong, whatever the order of the rows in a bin and their ties. Rows of a bin that is one
    key wide are tied, so that nothing is wrong there. Where an error is above 0.001, :meth:`refined` has edges for
    another count of the same rows. Balanced accuracy, at s > 0, is exact: 0 is always an edge.

    The sums are the counts of class 0, bin by bin, and then of class 1. Without rows of both, all values are NaN.

    edges: int64 ``[k]``, of k + 1 bins. By default about 25,000 bins: scores up to 1/16 in 1,024 equal ones, and each
        factor of 2 from there to 128 in 1,024, on both sides of 0.
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
        """How many there are."""
        return len(self.edges) + 1

    def with_edges(self, edges: Tensor) -> Ranking:
        """The same measure from bins between other edges, int32 ``[k]``."""
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
        """The parts, ``[..., 5]``."""
        negative, positive = self._by_class(sums)
        negatives, positives = negative.sum(dim=-1), positive.sum(dim=-1)
        above_0 = self._below_bins(sums.device) >= 0
        recalls = (negative * ~above_0).sum(dim=-1) / negatives + (positive * above_0).sum(dim=-1) / positives
        ranked = [by_bin.sum(dim=-1) for by_bin in self._by_bin(negative, positive)]
        found = torch.stack([*ranked, recalls / 2], dim=-1)
        return torch.where((negatives * positives > 0).unsqueeze(-1), found, torch.nan)

    def is_coarse(self, value: Tensor) -> Tensor:
        """Whether an error of a value ``[..., 5]`` is above 0.001, bool ``[...]``."""
        return (value[..., 1:4:2] > EXACT).any(dim=-1)

    def refined(self, sums: Tensor, rows: int) -> Ranking | None:
        """The same measure from finer bins where sums ``[k]`` leave errors; None if they are at most 0.001.

        16,384 parts go to the bins in proportion to their errors, half of them by each error that is above 0.001.
        Parts of a bin have equally many keys. Edges between bins without rows of class 1 tell nothing and are left out.
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
        """The sums without a class that has fewer rows than so many."""
        return torch.cat(
            [torch.where(own.sum(dim=-1, keepdim=True) >= least, own, 0.0) for own in self._by_class(sums)], dim=-1
        )

    def rows_by_class(self, sums: Tensor) -> tuple[int, int]:
        """How many rows of class 0 and of class 1 are in sums ``[k]``."""
        negatives, positives = (int(own.sum().nan_to_num()) for own in self._by_class(sums))
        return negatives, positives

    def _by_class(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        """Counts of class 0 and of class 1, ``[..., bins]``."""
        return sums[..., : self.bins], sums[..., self.bins :]

    def _edges_on(self, device: torch.device) -> Tensor:
        return _first_edges(device) if self._edges is None else self._edges.to(device)

    def _below_bins(self, device: torch.device) -> Tensor:
        """The edge below each bin, ``[bins]``."""
        return torch.nn.functional.pad(self._edges_on(device), (1, 0), value=-_INFINITY - 1)

    def _widths(self, device: torch.device) -> Tensor:
        """How many keys are in each bin, ``[bins]``."""
        return torch.nn.functional.pad(self._edges_on(device), (0, 1), value=_INFINITY) - self._below_bins(device)

    def _by_bin(self, negative: Tensor, positive: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """AUROC and average precision from counts ``[..., bins]``, each with its error, as sums over bins."""
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
    """The keys of scores, float64, as int64; that of NaN is beyond the others."""
    bits = s.float().view(torch.int32).long()
    keys = torch.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return torch.where(keys == 0, s.sign().long(), keys)


def _average_precision(positive: Tensor, negative: Tensor, tied: Tensor) -> tuple[Tensor, Tensor]:
    """Average precision from counts ``[..., bins]``, and by how much it can be wrong, both as sums over bins.

    tied: ``[bins]``, in which all rows are.

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
    mean, least = summed(B, r), summed(B + negative, 1.0)
    error = torch.where(tied, 0.0, torch.maximum(most - mean, mean - least))
    positives = positive.sum(dim=-1, keepdim=True)
    return torch.where(tied, even, mean) / positives, error / positives
