"""Rows that stand in two parts of the data, by which labels leak."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from torch import Tensor


def fingerprints(x: Tensor) -> list[bytes]:
    """128 bits for each row: rows that are the same, and hardly others, share them."""
    rows = x.contiguous().flatten(1) if x.dim() > 1 else x.contiguous().unsqueeze(1)
    if rows.is_floating_point():
        rows = rows + 0.0  # -0 and 0 are the same
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows.numpy()]


def count_shared(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """How many rows of ``other`` stand in ``one`` too."""
    known = set(one)
    return sum(row in known for row in other)


def distinct_share(rows: Sequence[bytes]) -> float:
    """The share of rows that are left when each stands once."""
    return len(set(rows)) / max(len(rows), 1)
