"""Convex sets that constrain parameters, and their projections in closed form.

A projection is plain arithmetic over the last axis, so it works on one client, on a stack with leading axes, and inside
a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.layout import Layout
from fedmm.core.validation import instance, not_negative, positive


class ConvexSet(ABC):
    """A nonempty closed convex set of vectors."""

    @abstractmethod
    def project(self, x: Tensor) -> Tensor:
        """Return the point of the set nearest to each vector of x ``[..., n]``."""


@dataclass(frozen=True)
class Simplex(ConvexSet):
    """Nonnegative vectors with sum ``total``: weights of clients, or of groups of rows.

    The projection subtracts one number from all coordinates and clips at 0 (Held, Wolfe and Crowder, 1974).
    """

    total: float = 1.0

    def __post_init__(self) -> None:
        positive("total", self.total)

    def project(self, x: Tensor) -> Tensor:
        x = x - x.amax(dim=-1, keepdim=True)  # a shift changes nothing, and large numbers no longer swamp the total
        ordered = x.sort(dim=-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1, dtype=x.dtype, device=x.device)
        excess = (ordered.cumsum(dim=-1) - self.total) / count
        left = (ordered > excess).sum(dim=-1, keepdim=True) - 1
        return (x - excess.gather(-1, left.clamp_min(0))).clamp_min(0.0)


@dataclass(frozen=True)
class Box(ConvexSet):
    """Vectors with coordinates between ``low`` and ``high``, either of which may be infinite."""

    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        for name, value in (("low", self.low), ("high", self.high)):
            number = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
            require(number, f"{name} must be a number, not {value!r}")
        require(
            self.low <= self.high and self.low < math.inf and self.high > -math.inf,
            f"the box from {self.low!r} to {self.high!r} is empty: low must not be above high",
        )

    def project(self, x: Tensor) -> Tensor:
        return x.clamp(self.low, self.high)


@dataclass(frozen=True)
class HalfLine(ConvexSet):
    """Vectors with coordinates of at least ``low``, such as multipliers, which must not be negative."""

    low: float = 0.0

    def __post_init__(self) -> None:
        Box(self.low)

    def project(self, x: Tensor) -> Tensor:
        return x.clamp_min(self.low)


@dataclass(frozen=True)
class Ball(ConvexSet):
    """Vectors with a Euclidean norm of at most ``radius``."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        not_negative("radius", self.radius)

    def project(self, x: Tensor) -> Tensor:
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.where(norm > self.radius, x * (self.radius / norm), x)


class Projection:
    """Projects groups of parameters onto their sets, each group as one vector; other parameters are unconstrained.

    sets: by group (a parameter's name or a dotted prefix of it, or ``*`` for the rest); the longest match counts.
    """

    def __init__(self, layout: Layout, sets: Mapping[str, ConvexSet]) -> None:
        places: dict[str, list[Tensor]] = {group: [] for group in sets}
        first = 0
        for block in layout.blocks:
            groups = [group for group in sets if group in ("*", block.name) or block.name.startswith(group + ".")]
            if groups:
                group = max(groups, key=lambda key: -1 if key == "*" else len(key))
                places[group].append(torch.arange(first, first + block.size, device=layout.device))
            first += block.size
        known = ", ".join(sorted({block.name.split(".")[0] for block in layout.blocks}))
        for group, place in places.items():
            instance(f"the set of group {group!r}", sets[group], ConvexSet)
            if not place:
                raise FedmmError(f"no parameter belongs to group {group!r}; the groups are {known}")
        self._parts = [(torch.cat(place), sets[group]) for group, place in places.items()]

    def __call__(self, z: Tensor) -> Tensor:
        """Return the nearest point to each z ``[..., size]``."""
        for places, each in self._parts:
            z = z.index_copy(-1, places, each.project(z.index_select(-1, places)))
        return z

    def of_server(self, server: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return a server's state with the points in it, z and an ``average`` for prediction, projected."""
        return {name: self(vector) if name in ("z", "average") else vector for name, vector in server.items()}
