"""Who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence

from fedmm.core.seeding import key


def head_count(clients: int, share: float) -> int:
    """How many of so many clients take part in a round: their share, rounded, at least one."""
    return max(1, int(share * clients + 0.5))


def taking_part(names: Sequence[str], share: float, seed: int, t: int) -> list[str]:
    """Who takes part in round t, in order of the names: a function of seed, round and names alone."""
    if share >= 1.0:
        return sorted(names)
    drawn = sorted(names, key=lambda name: (key(seed, "participation", t, name), name))
    return sorted(drawn[: head_count(len(names), share)])
