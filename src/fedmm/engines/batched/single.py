"""An ordinary engine that runs on a stack of one replica."""

from __future__ import annotations

import math
import time

from fedmm.core.engine import FederatedState, Refusal, RoundRecord
from fedmm.core.errors import Diverged
from fedmm.engines.batched.engine import Batched
from fedmm.engines.batched.tensors import METRICS


class BatchedEngine:
    """Engine that takes and returns states, and computes rounds on a stack of one replica."""

    def __init__(self, stack: Batched) -> None:
        self.stack = stack
        self._first = stack.state(0)
        self._last: FederatedState | None = None

    def start(self) -> FederatedState:
        return self._first

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        if state is not self._last:
            self.stack.load([state])
        measures = dict(zip(METRICS, self.stack.advance()[0].tolist(), strict=True))
        after = self.stack.state(0)
        if after.round == state.round:
            raise Diverged(self.stack.offender(0), state.round + 1)
        self._last = after
        refused = self.stack.refusals(0, self.stack.verdicts[0].tolist()) if self.stack.terms.may_refuse else ()
        of_clients = self.stack.clients_of(0, self.stack.by_client[0].tolist())
        seconds = time.perf_counter() - began
        return after, round_record(after.round, measures, self.stack, 0, seconds, refused, of_clients)


def round_record(
    done: int,
    measures: dict[str, float],
    stack: Batched,
    replica: int,
    seconds: float,
    refused: tuple[Refusal, ...] = (),
    by_client: dict[str, dict[str, float]] | None = None,
) -> RoundRecord:
    """Return a replica's record of a round from the stack's metrics."""
    clients = int(measures["clients"])
    private = stack.terms.transmission.private
    reported = (
        []
        if private
        else [name for name in ("loss", "domain_loss", "task_loss") if clients and not math.isnan(measures[name])]
    )
    bytes_up, bytes_down = stack.traffic(replica, done - 1, int(measures["in_step"]))
    return RoundRecord(
        round=done,
        drift=measures["drift"],
        consensus_gap=measures["consensus_gap"],
        dual_norm=measures["dual_norm"],
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=seconds,
        metrics={name: measures[name] for name in reported},
        clients=clients,
        refused=refused,
        by_client=by_client or {},
    )
