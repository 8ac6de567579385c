"""A bound on the length of updates that needs no tuning: what is usual among the other clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.problem import Statistics

TIMES = 10.0
"""How many times as long as usual an update may be; chosen by benchmarks/norm_bound.py."""

Norms = dict[str, float]
"""The lengths of what one client sends: of each vector of its upload, and of the change of its running statistics."""


@dataclass(frozen=True)
class UsualNorms:
    """Refuses an update that is more than ``times`` as long as the median of the *other* clients' updates.

    Its own length is never part of what it is compared with, so one client among two or three cannot raise its own
    bound. known: by client, the lengths of its last update that was counted, which stand for those who send nothing in
    this round. harmless: lengths that are never refused, so that a client that sends nearly nothing cannot have the
    others refused. A client that is compared with nobody may send ``times`` as much as that. steps: by client, how many
    local steps it takes in a round: who takes n times as many as another may go n times as far.
    """

    harmless: Norms
    known: Mapping[str, Norms] = field(default_factory=dict)
    times: float = TIMES
    steps: Mapping[str, int] = field(default_factory=dict)

    def refusals(self, norms: Mapping[str, Norms]) -> dict[str, str]:
        """By client, why its update is left out of the round in which these arrived, in words that follow its name."""
        compared = {**self.known, **norms}
        found = {}
        for client, own in norms.items():
            for part, norm in own.items():
                others = self.others(client, part, compared)
                limit = self.limit(part, others)
                if not norm <= limit:
                    found[client] = f"its {_word(part)} has norm {norm:.4g}, above {limit:.4g}, {self._told(others)}"
                    break
        return found

    def others(self, client: str, part: str, compared: Mapping[str, Norms]) -> list[float]:
        """The lengths of the other clients' parts in order, as if they took no fewer local steps than this client."""
        return sorted(
            norms[part] * max(1.0, self.steps.get(client, 1) / self.steps.get(other, 1))
            for other, norms in compared.items()
            if other != client and part in norms
        )

    def _told(self, others: list[float]) -> str:
        if not others:
            return f"{self.times:g} times the first model's own; {_ADVICE}"
        usual = f"{self.times:g} times what is usual among the other clients ({others[len(others) // 2]:.4g})"
        return f"the larger of {usual} and the first model's own; {_ADVICE}"

    def limit(self, part: str, others: list[float]) -> float:
        """How long a part of an update may be. others: the lengths of the other clients', in order."""
        harmless = self.harmless.get(part, 0.0)
        return max(harmless, self.times * others[len(others) // 2]) if others else self.times * harmless


def update_norms(vectors: State, statistics: Statistics, sent: State, shared: Statistics) -> Norms:
    """The lengths of what a client sends. sent, shared: the point and the running statistics that it was sent."""
    norms = {name: _norm(vector - sent["z"] if name == "z" else vector) for name, vector in vectors.items()}
    changes = [own.double() - shared[name].double() for name, own in statistics.items() if own.is_floating_point()]
    if changes:
        norms[_STATISTICS] = math.hypot(*map(_norm, changes))
    return norms


def harmless_norms(algorithm: Algorithm, layout: Layout, start: Tensor, statistics: Statistics, steps: int) -> Norms:
    """What a client sends that goes as far in a round as the first model is long; statistics as long as the first."""
    c = Coefficients(algorithm.coefficients(layout, 0, 1), steps=layout.scalar(steps))
    sent = algorithm.broadcast(algorithm.init_server(start))
    upload, _ = algorithm.finish(2 * start, sent, algorithm.init_client(start), c)
    began = {name: torch.zeros_like(each) for name, each in statistics.items()}
    return update_norms(upload, statistics, sent, began)


_ADVICE = (
    "a run that diverges looks so too: lower its step sizes, or set max_update_norm in [run] to a bound of your own"
)
_STATISTICS = "running statistics"


def _norm(vector: Tensor) -> float:
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))


def _word(part: str) -> str:
    return {"z": "update"}.get(part, part if part == _STATISTICS else f"{part!r}")
