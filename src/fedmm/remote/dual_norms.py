"""How long the sites' duals are, as far as the server knows it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.engines.server import Server, dual_norms


@dataclass
class DualNorms:
    """||dual_i|| by site: what each tells of its own, or what the sum of its updates tells.

    A site does not tell it where its updates carry noise, and has not told it yet where the server was restarted since:
    there the sums know it, where the server keeps them.
    """

    server: Server
    known: dict[str, float] = field(default_factory=dict)

    def recorded(
        self, record: RoundRecord, told: Mapping[str, object], before: FederatedState, after: FederatedState
    ) -> RoundRecord:
        """The record of a round with these norms. told: what the sites said in it, by name, if they said it."""
        self.known |= {name: norm for name, norm in told.items() if isinstance(norm, float) and math.isfinite(norm)}
        self.known |= self._summed(before, after)
        by_client = record.by_client
        if "dual_norm" in by_client:
            first = {name: norm for name, norm in by_client["dual_norm"].items() if name not in after.counted}
            by_client = {**by_client, "dual_norm": {**first, **self.known}}
        mean = (sum(norm**2 for norm in self.known.values()) / len(after.clients)) ** 0.5
        return replace(record, dual_norm=float(mean), by_client=by_client)

    def _summed(self, before: FederatedState, after: FederatedState) -> dict[str, float]:
        algorithm, private = self.server.algorithm, self.server.terms.transmission.private
        wanted = [name for name in after.totals if private or name not in self.known]
        if not wanted:
            return {}
        c = algorithm.coefficients(self.server.problem.layout, before.round, self.server.rounds)
        return dual_norms({name: algorithm.restored_client({"z": after.z}, after.totals[name], c) for name in wanted})
