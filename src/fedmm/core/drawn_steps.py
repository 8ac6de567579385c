"""A number of local steps that is drawn anew for every round, the same at all clients."""

from __future__ import annotations

from dataclasses import dataclass

from fedmm.core.seeding import key

_MOST = 10


@dataclass(frozen=True)
class GeometricSteps:
    """1, 2, ... steps, each followed by another one with probability 1 - 1 / mean.

    The number follows from the run's seed and the round, so that server and clients agree without a message. It is at
    most 10 times the mean, which 5 rounds of 100,000 would exceed.
    """

    mean: int

    @property
    def most(self) -> int:
        """The most steps of a round."""
        return _MOST * self.mean

    def draw(self, seed: int, t: int) -> int:
        """The number of steps in round t (from 0)."""
        chance = key(seed, "local steps", t) / (1 << 63)
        again = left = 1.0 - 1.0 / self.mean
        steps = 1
        while chance < left and steps < self.most:  # products alone, which every machine rounds alike
            steps += 1
            left *= again
        return steps
