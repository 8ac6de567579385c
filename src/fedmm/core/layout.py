"""One flat vector z = (omega, psi) of all parameters, and the position of each named tensor in it.

Every algorithm is arithmetic on z. Only ``Layout`` knows which coordinates belong to the minimising side omega and
which to the maximising side psi, and under which names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require

Side = Literal["min", "max"]
Point = Tensor | Mapping[str, Tensor]
"""A point on one side: a tensor, or named tensors."""

PerGroup = float | Mapping[str, float]
"""One number, or one per parameter group: a group is a parameter's name or a dotted prefix of it; ``*`` is the rest."""


@dataclass(frozen=True)
class Block:
    """One named tensor inside the flat vector."""

    name: str
    shape: tuple[int, ...]
    side: Side

    @property
    def size(self) -> int:
        return int(torch.Size(self.shape).numel())


class Layout:
    """The positions of the named tensors of omega and psi in z, which has shape ``[..., size]``; omega comes first."""

    def __init__(
        self,
        omega: Mapping[str, tuple[int, ...]],
        psi: Mapping[str, tuple[int, ...]],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        bare: tuple[bool, bool] = (False, False),
    ) -> None:
        self.blocks = tuple(Block(n, tuple(s), "min") for n, s in omega.items()) + tuple(
            Block(n, tuple(s), "max") for n, s in psi.items()
        )
        self.dtype = dtype
        self.device = torch.device(device)
        self._bare = bare
        self._sizes = [block.size for block in self.blocks]
        self.min_size = sum(block.size for block in self.blocks if block.side == "min")
        self.size = sum(self._sizes)
        self._joined: dict[str, Tensor] = {}

    @classmethod
    def of(cls, omega: Point, psi: Point) -> Layout:
        """Return the layout of a starting point; a bare tensor is called ``omega`` or ``psi``."""
        named_omega, named_psi = _name_tensors(omega, "omega"), _name_tensors(psi, "psi")
        tensors = [*named_omega.values(), *named_psi.values()]
        both = sorted(named_omega.keys() & named_psi.keys())
        require(
            not both,
            f"omega and psi both hold a tensor called {both[0]!r}; give every tensor its own name" if both else "",
        )
        require(bool(tensors), "the start must hold at least one tensor")
        first = tensors[0]
        for name, tensor in [*named_omega.items(), *named_psi.items()]:
            require(tensor.is_floating_point(), f"start {name!r} has dtype {tensor.dtype}; a float dtype is needed")
            require(
                tensor.dtype == first.dtype and tensor.device == first.device,
                f"start {name!r} is {tensor.dtype} on {tensor.device}, others are {first.dtype} on {first.device}; "
                "give all of omega and psi the same dtype and device",
            )
        return cls(
            {n: tuple(t.shape) for n, t in named_omega.items()},
            {n: tuple(t.shape) for n, t in named_psi.items()},
            dtype=first.dtype,
            device=first.device,
            bare=(isinstance(omega, Tensor), isinstance(psi, Tensor)),
        )

    def pack(self, omega: Point, psi: Point) -> Tensor:
        """Return a point as a flat vector ``[size]``, copied."""
        tensors = {**_name_tensors(omega, "omega"), **_name_tensors(psi, "psi")}
        return torch.cat([tensors[block.name].detach().reshape(-1) for block in self.blocks])

    def tensors(self, z: Tensor) -> Iterator[tuple[Block, Tensor]]:
        """Yield each block with its part of z, as a view of shape ``[..., *block.shape]``."""
        lead = z.shape[:-1]
        for block, part in zip(self.blocks, torch.split(z, self._sizes, dim=-1), strict=True):
            yield block, part.reshape(lead + block.shape)

    def unpack(self, z: Tensor) -> tuple[Point, Point]:
        """Return omega and psi of a flat vector, in the form in which they were given."""
        return self.as_given({block.name: tensor for block, tensor in self.tensors(z)})

    def as_given(self, tensors: Mapping[str, Tensor]) -> tuple[Point, Point]:
        """Return named tensors as (omega, psi), each a tensor or a dict as in the start."""
        omega = {block.name: tensors[block.name] for block in self.blocks if block.side == "min"}
        psi = {block.name: tensors[block.name] for block in self.blocks if block.side == "max"}
        return omega["omega"] if self._bare[0] else omega, psi["psi"] if self._bare[1] else psi

    def signed(self, gradients: list[Tensor]) -> Tensor:
        """Return the signed field (df/d omega, -df/d psi) as a flat vector, from df/d block for each block in order."""
        parts = [
            gradient.reshape(-1) if block.side == "min" else -gradient.reshape(-1)
            for block, gradient in zip(self.blocks, gradients, strict=True)
        ]
        return torch.cat(parts)

    def signs(self) -> Tensor:
        """Return 1 for every coordinate of omega and -1 for psi's, ``[size]``: times a gradient, the signed field."""
        return torch.cat(
            [
                torch.ones(self.min_size, dtype=self.dtype, device=self.device),
                -torch.ones(self.size - self.min_size, dtype=self.dtype, device=self.device),
            ]
        )

    def scalar(self, value: float) -> Tensor:
        """Return a 0-dim tensor of this layout's dtype and device."""
        return torch.tensor(value, dtype=self.dtype, device=self.device)

    def join(self, min_value: PerGroup, max_value: PerGroup) -> Tensor:
        """Return a coefficient for every coordinate: a 0-dim tensor if all are equal, else a vector ``[size]``."""
        key = f"{min_value!r}|{max_value!r}"
        if key not in self._joined:
            self._joined[key] = self._join(min_value, max_value)
        return self._joined[key]

    def _join(self, min_value: PerGroup, max_value: PerGroup) -> Tensor:
        by_side = {"min": self._per_block("min", min_value), "max": self._per_block("max", max_value)}
        values = [by_side[block.side][block.name] for block in self.blocks]
        if len(set(values)) == 1:
            return self.scalar(values[0])
        return torch.cat(
            [
                torch.full((block.size,), value, dtype=self.dtype, device=self.device)
                for block, value in zip(self.blocks, values, strict=True)
            ]
        )

    def join_all(self, value: PerGroup) -> Tensor:
        """Like :meth:`join`, with the groups of both sides in one mapping."""
        if not isinstance(value, Mapping):
            return self.join(value, value)
        matched = match_groups([block.name for block in self.blocks], value)
        return self.join(
            {b.name: matched[b.name] for b in self.blocks if b.side == "min"},
            {b.name: matched[b.name] for b in self.blocks if b.side == "max"},
        )

    def _per_block(self, side: Side, value: PerGroup) -> dict[str, float]:
        names = [block.name for block in self.blocks if block.side == side]
        if not isinstance(value, Mapping):
            return dict.fromkeys(names, float(value))
        if not names:
            return {}
        return match_groups(names, value)


def match_groups(names: list[str], values: Mapping[str, float]) -> dict[str, float]:
    """Return the value of the longest matching group for each name; refuse unmatched names and groups, except ``*``."""
    matched: dict[str, float] = {}
    used: set[str] = set()
    for name in names:
        groups = [g for g in values if g in ("*", name) or name.startswith(g + ".")]
        if not groups:
            raise FedmmError(f"no value is given for parameter {name!r}; add its group or '*' for the rest")
        group = max(groups, key=lambda g: -1 if g == "*" else len(g))
        used.add(group)
        matched[name] = float(values[group])
    known = ", ".join(sorted({name.split(".")[0] for name in names}))
    for group in values:
        require(group in used or group == "*", f"no parameter belongs to group {group!r}; the groups are {known}")
    return matched


def _name_tensors(point: Point, name: str) -> Mapping[str, Tensor]:
    named = {name: point} if isinstance(point, Tensor) else point
    for part, value in named.items() if isinstance(named, Mapping) else [(name, named)]:
        require(isinstance(part, str), f"{name} is a dict of tensors by name, but {part!r:.40} is not a string")
        require(
            isinstance(value, Tensor),
            f"start {part!r} is {type(value).__name__}; give {name} as a torch tensor (torch.as_tensor makes one) or a "
            "dict of tensors by name",
        )
    return named
