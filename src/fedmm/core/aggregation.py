"""Aggregation of the clients' uploads at the server: their mean, or a centre that a few hostile clients cannot move.

A centre is taken within each group of clients that hold the same domains: honest clients of different groups are each
other's outliers. The groups' centres are averaged, weighted by their numbers of clients. All functions act on the last
axes, ``[..., clients, size]``, allow any leading ones, and are plain arithmetic that a CUDA graph can capture.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedmm.core.algorithm import Aggregated, State
from fedmm.core.errors import require
from fedmm.core.validation import at_least, within


@dataclass(frozen=True)
class Aggregation(ABC):
    """A translation-equivariant centre of vectors."""

    name: ClassVar[str]
    summary: ClassVar[str]
    robust: ClassVar[bool] = True
    """Whether it differs from the mean, so that the server must keep each client's summed updates for their centre."""

    @abstractmethod
    def centre(self, vectors: Tensor, counted: Tensor | None = None) -> Tensor:
        """Return the centre ``[..., size]`` of vectors ``[..., clients, size]``.

        counted: bool ``[..., clients]``, which vectors to use; all by default. The others may hold anything. If none is
        used the result is undefined.
        """


@dataclass(frozen=True)
class Mean(Aggregation):
    """The mean, as the algorithms themselves specify; a single hostile client can move it anywhere."""

    name: ClassVar[str] = "mean"
    summary: ClassVar[str] = "the mean, which one hostile client can move anywhere"
    robust: ClassVar[bool] = False

    def centre(self, vectors: Tensor, counted: Tensor | None = None) -> Tensor:
        if counted is None:
            return vectors.mean(dim=-2)
        return _select_counted(counted, vectors).sum(dim=-2) / _number(counted, vectors)


@dataclass(frozen=True)
class CoordinateMedian(Aggregation):
    """The coordinate-wise median; the mean of the middle two for an even number of clients.

    It withstands hostile clients as long as they are fewer than half of a group.
    """

    name: ClassVar[str] = "median"
    summary: ClassVar[str] = "the median of every coordinate: withstands fewer than half of a group"

    def centre(self, vectors: Tensor, counted: Tensor | None = None) -> Tensor:
        ordered, number = _sort_counted(vectors, counted)
        middle = torch.cat([(number - 1) // 2, number // 2], dim=-1).clamp(0, vectors.shape[-2] - 1)
        places = middle.unsqueeze(-1).expand(*middle.shape, vectors.shape[-1])
        return ordered.gather(-2, places).mean(dim=-2)


@dataclass(frozen=True)
class TrimmedMean(Aggregation):
    """The coordinate-wise mean without the largest and smallest values.

    trim: the share of a group that is cut off at each end, below 0.5, rounded up; at least one value is left. It
        withstands up to this share of hostile clients.
    """

    name: ClassVar[str] = "trimmed_mean"
    summary: ClassVar[str] = "the mean of every coordinate without its extremes: withstands that share of a group"

    trim: float = 0.2

    def __post_init__(self) -> None:
        within("trim", self.trim, 0.0, 0.5)
        require(self.trim < 0.5, f"trim must be below 0.5, not {self.trim!r}")

    def centre(self, vectors: Tensor, counted: Tensor | None = None) -> Tensor:
        ordered, number = _sort_counted(vectors, counted)
        cut = torch.minimum((number * self.trim - _ROUNDING).ceil().long(), (number - 1) // 2)
        place = torch.arange(vectors.shape[-2], device=vectors.device)
        return Mean().centre(ordered, (place >= cut) & (place < number - cut))


@dataclass(frozen=True)
class GeometricMedian(Aggregation):
    """The point with the smallest sum of distances to all vectors, by Weiszfeld's iteration.

    iterations: their number, starting at the coordinate-wise median. It withstands fewer than half of a group and,
    unlike the other robust centres, does not depend on the axes.
    """

    name: ClassVar[str] = "geometric_median"
    summary: ClassVar[str] = "the point with the smallest sum of distances: withstands fewer than half of a group"

    iterations: int = 20

    def __post_init__(self) -> None:
        at_least("iterations", self.iterations, 1)

    def centre(self, vectors: Tensor, counted: Tensor | None = None) -> Tensor:
        centre = CoordinateMedian().centre(vectors, counted)
        if counted is None:
            counted = torch.ones(vectors.shape[:-1], dtype=torch.bool, device=vectors.device)
        vectors = _select_counted(counted, vectors)
        scale = CoordinateMedian().centre(_distances(vectors, centre), counted).unsqueeze(-2)
        apart = scale.squeeze(-1) > 0  # otherwise more than half lie at the centre
        for _ in range(self.iterations):
            # A vector at the centre itself would have infinite weight.
            distance = torch.maximum(_distances(vectors, centre), _NEAREST * scale)
            weight = _select_counted(counted, scale / distance)
            centre = torch.where(apart, (weight * vectors).sum(dim=-2) / weight.sum(dim=-2), centre)
        return centre


_ROUNDING = 1e-4
_NEAREST = 1e-6

AGGREGATIONS: dict[str, type[Aggregation]] = {
    each.name: each for each in (Mean, CoordinateMedian, TrimmedMean, GeometricMedian)
}


class Groups(NamedTuple):
    """Groups of clients with the same domains; of: each client's group, int64 ``[..., clients]``, below ``most``."""

    of: Tensor
    most: int


def groups_of(names: Sequence[str], labels: Mapping[str, str], device: torch.device) -> Groups:
    """Return the groups of clients with equal labels; clients without a label form one group."""
    known = sorted({labels.get(name, "") for name in names})
    return Groups(torch.tensor([known.index(labels.get(name, "")) for name in names], device=device), len(known))


def group_centre(aggregation: Aggregation, vectors: Tensor, groups: Groups, counted: Tensor | None = None) -> Tensor:
    """Return the mean of the groups' centres, weighted by their numbers of counted clients; 0 if nobody is counted.

    vectors: ``[..., clients, size]``; counted: bool ``[..., clients]``, all by default.
    """
    if not aggregation.robust or groups.most == 1:
        centre = aggregation.centre(vectors, counted)
        return centre if counted is None else torch.where(counted.any(dim=-1, keepdim=True), centre, 0.0)
    total = torch.zeros_like(vectors[..., 0, :])
    number = torch.zeros_like(total[..., :1])
    for group in range(groups.most):
        members = (groups.of == group) if counted is None else (groups.of == group) & counted
        share = members.sum(dim=-1, keepdim=True)
        total = total + torch.where(share > 0, share * aggregation.centre(vectors, members), 0.0)
        number = number + share
    return total / number.clamp_min(1)


def updates_of(uploads: State, sent: State) -> State:
    """Return uploads ``[..., clients, size]`` minus what was sent under their names, ``[..., size]``."""
    return {name: vectors - sent[name].unsqueeze(-2) if name in sent else vectors for name, vectors in uploads.items()}


class Sums(NamedTuple):
    """Each client's summed updates ``[..., clients, size]`` before and after a round, and the clients' groups."""

    before: State
    after: State
    groups: Groups


def aggregate(
    aggregation: Aggregation,
    uploads: State,
    sent: State,
    groups: Groups,
    share: float | Tensor,
    accumulates: Sequence[str],
    *,
    counted: Tensor | None = None,
    sums: Sums | None = None,
    weights: Tensor | None = None,
) -> Aggregated:
    """Aggregate a round's uploads ``[..., clients, size]``.

    weights: the factors on z_i - z_0, ``[..., clients]``.
    share: the share of all clients that is counted, a number or ``[..., 1]``. sums: needed for a robust aggregation,
        whose gain is the change of the sums' centre. Adding up the centres of single rounds would not do: centre and
        mean differ a little in every round, so over many rounds the server's sum would drift away from the clients'.
    """
    if weights is not None:
        z_0 = sent["z"].unsqueeze(-2)
        uploads = {**uploads, "z": z_0 + weights.unsqueeze(-1) * (uploads["z"] - z_0)}
    mean = {name: group_centre(aggregation, vectors, groups, counted) for name, vectors in uploads.items()}
    if aggregation.robust and sums is not None:
        before, after = (
            {name: group_centre(aggregation, states[name], sums.groups) for name in accumulates}
            for states in (sums.before, sums.after)
        )
        return Aggregated(mean, {name: after[name] - before[name] for name in accumulates})
    gain = {name: share * (mean[name] - sent[name] if name in sent else mean[name]) for name in accumulates}
    return Aggregated(mean, gain)


def times(weights: Tensor | None, others: Tensor | None) -> Tensor | None:
    """Return the product of two sets of weights; None stands for no weights."""
    return others if weights is None else weights if others is None else weights * others


def _select_counted(counted: Tensor, vectors: Tensor) -> Tensor:
    """Return vectors with 0 in place of those that are not counted, whatever they hold."""
    return torch.where(counted.unsqueeze(-1), vectors, 0.0)


def _distances(vectors: Tensor, centre: Tensor) -> Tensor:
    """Return the distances to the centre, ``[..., clients, 1]``."""
    distances: Tensor = torch.linalg.vector_norm(vectors - centre.unsqueeze(-2), dim=-1, keepdim=True)
    return distances


def _number(counted: Tensor, vectors: Tensor) -> Tensor:
    """Return how many are counted, at least 1, ``[..., 1]``."""
    return counted.sum(dim=-1, keepdim=True).clamp_min(1).to(vectors.dtype)


def _sort_counted(vectors: Tensor, counted: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each coordinate's values in order, uncounted ones last, and the number of counted ones, ``[..., 1]``."""
    if counted is None:
        number = torch.full((*vectors.shape[:-2], 1), vectors.shape[-2], device=vectors.device)
        return vectors.sort(dim=-2).values, number
    present = torch.where(counted.unsqueeze(-1), vectors, torch.inf)
    return present.sort(dim=-2).values, counted.sum(dim=-1, keepdim=True)
