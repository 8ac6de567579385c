"""Randomness as a function, not a stream: every draw is a hash of what it is for.

A key is made from (seed, purpose, client name, round, ...) and a draw from (key, position). The same draw is the same
number on every engine and device, in any order, and a run that was interrupted continues with the same draws.
The hash is SplitMix64's finaliser, in wrapping 64-bit integer arithmetic.
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
    """A 63-bit key from integers and words; distinct parts give unrelated keys."""
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def hashed(key: int | Tensor, position: Tensor) -> Tensor:
    """63 random bits for each position: int64 in [0, 2^63). ``key`` broadcasts against ``position`` (int64)."""
    start = key if isinstance(key, Tensor) else torch.tensor(key, dtype=torch.int64, device=position.device)
    x = start + position * _signed(_GOLDEN)
    x = (x ^ _shift(x, 30)) * _signed(_FIRST)
    x = (x ^ _shift(x, 27)) * _signed(_SECOND)
    x = x ^ _shift(x, 31)
    return x & 0x7FFFFFFFFFFFFFFF


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift: int64's own shift copies the sign."""
    return (x >> bits) & (_MASK >> bits)


def uniform(key: int | Tensor, position: Tensor) -> Tensor:
    """Uniform float32 numbers in [0, 1), one for each position."""
    return (hashed(key, position) >> 39).to(torch.float32) * (1.0 / (1 << 24))


def normal(key: int | Tensor, position: Tensor) -> Tensor:
    """Standard normal float64 numbers, one for each position, by Box and Muller's formula."""
    first, second = (((hashed(key, 2 * position + half) >> 10).double() + 0.5) / (1 << 53) for half in (0, 1))
    return (-2.0 * first.log()).sqrt() * (2.0 * math.pi * second).cos()


def permutation(key: int | Tensor, size: int, device: torch.device | str = "cpu") -> Tensor:
    """A random order of 0 .. size-1 (int64 ``[size]``); for keys ``[k, 1]``, one for each: ``[k, size]``."""
    return torch.argsort(hashed(key, torch.arange(size, device=device)), dim=-1, stable=True)


def epoch_key(key_parts: tuple[int | str, ...], epoch: int) -> int:
    """The key of the order in which :func:`rows` goes over the rows in one epoch."""
    return key(*key_parts, "epoch", epoch)


def rows(key_parts: tuple[int | str, ...], size: int, first: int, count: int, device: torch.device | str) -> Tensor:
    """Places ``first`` .. ``first + count - 1`` of an endless pass over 0 .. size-1, shuffled anew in each epoch."""
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
