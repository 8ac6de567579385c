"""Stateless random numbers: every draw is a hash of its purpose, not the next value of a stream.

A key is derived from (seed, purpose, client name, round, ...) and a draw from (key, position). A draw is therefore the
same on every engine and device and in any order, and a resumed run makes the same draws as an uninterrupted one. The
hash is SplitMix64's finaliser, in wrapping 64-bit integer arithmetic.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FIRST = 0xBF58476D1CE4E5B9
_SECOND = 0x94D049BB133111EB


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def key(*parts: int | str) -> int:
    """Derive a 63-bit key from integers and strings; distinct parts give unrelated keys."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def hashed(key: int | Tensor, position: Tensor) -> Tensor:
    """Return 63 random bits per position: int64 in [0, 2^63). ``key`` broadcasts against ``position`` (int64)."""
    start = key if isinstance(key, Tensor) else torch.tensor(key, dtype=torch.int64, device=position.device)
    x = start + position * _signed(_GOLDEN)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    x = x ^ _shift(x, 31)
    return x & 0x7FFFFFFFFFFFFFFF


def _shift(x: Tensor, bits: int) -> Tensor:
    """Shift right logically; int64's own shift copies the sign."""
    return (x >> bits) & (_MASK >> bits)


def uniform(key: int | Tensor, position: Tensor) -> Tensor:
    """Return uniform float32 numbers in [0, 1), one per position."""
    return (hashed(key, position) >> 39).to(torch.float32) * (1.0 / (1 << 24))


def normal(key: int | Tensor, position: Tensor) -> Tensor:
    """Return standard normal float64 numbers, one per position, by the Box-Muller transform."""
    first, second = (((hashed(key, 2 * position + half) >> 10).double() + 0.5) / (1 << 53) for half in (0, 1))
    return (-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()


def permutation(key: int | Tensor, size: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a random permutation of 0 .. size-1 (int64 ``[size]``); keys ``[k, 1]`` give one each: ``[k, size]``."""
    return torch.argsort(hashed(key, torch.arange(size, device=device)), dim=-1, stable=True)


def epoch_key(key_parts: tuple[int | str, ...], epoch: int) -> int:
    """Return the key of the order in which :func:`rows` visits the rows in one epoch."""
    return key(*key_parts, "epoch", epoch)


def rows(key_parts: tuple[int | str, ...], size: int, first: int, count: int, device: torch.device | str) -> Tensor:
    """Return places ``first`` .. ``first + count - 1`` of an endless pass over 0 .. size-1, reshuffled every epoch."""
    chunks = []
    place, left = first, count
    while left > 0:
        epoch, offset = divmod(place, size)
        order = permutation(epoch_key(key_parts, epoch), size, device)
        chunk = order[offset : offset + left]
        chunks.append(chunk)
        place += len(chunk)
        left -= len(chunk)
    return torch.cat(chunks)
