"""Exchanges that fail: a hash of seed, kind, round and client decides every fault, so that runs are reproducible."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.seeding import key
from fedmm.engines.messages import Invitation, Update
from fedmm.engines.worker import ClientMemory
from fedmm.remote.messaging import Exchange, Messaging


def happens(probability: float, seed: int, kind: str, t: int, client: str = "") -> bool:
    return key(seed, kind, t, client) < probability * 2**63


@dataclass
class Unreliable(Exchange):
    """An exchange with lost, late and repeated messages, and sites that crash and return with older states.

    Each float is the probability for one client in one round.
    unasked: the invitation is lost, or the site is down. unheard: the site has trained but its update is lost.
    late: the update arrives one to three rounds later. twice: it arrives twice, and once more in the next round.
    stale: the site loses its newest state.
    """

    seed: int = 0
    unasked: float = 0.0
    unheard: float = 0.0
    late: float = 0.0
    twice: float = 0.0
    stale: float = 0.0
    on_the_way: list[tuple[int, Update]] = field(default_factory=list)
    calls: int = 0

    def _happens(self, kind: str, client: str) -> bool:
        return happens(getattr(self, kind), self.seed, kind, self.calls, client)

    def invited(self, client: str, invitation: Invitation) -> bool:
        return not self._happens("unasked", client)

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        arrived = [update for due, update in self.on_the_way if due <= self.calls]
        self.on_the_way = [(due, update) for due, update in self.on_the_way if due > self.calls]
        for update in answers:
            if self._happens("unheard", update.client):
                continue
            if self._happens("late", update.client):
                self.on_the_way.append((self.calls + 1 + key(self.seed, "delay", self.calls) % 3, update))
                continue
            arrived.append(update)
            if self._happens("twice", update.client):
                arrived.append(update)
                self.on_the_way.append((self.calls + 1, update))
        return arrived

    def between_rounds(self, t: int, memories: Mapping[str, ClientMemory]) -> None:
        for client, memory in memories.items():
            if memory.held and self._happens("stale", client):
                memory.forget(max(memory.held))
        self.calls += 1


@dataclass
class Hostile(Exchange):
    """An exchange in which some clients do not send what they computed.

    what: maps the computed update z_i - z_0, the round and the client's name to the update that arrives.
    """

    clients: Sequence[str]
    what: Callable[[Tensor, int, str], Tensor]
    z_0: Tensor | None = None

    def invited(self, client: str, invitation: Invitation) -> bool:
        self.z_0 = invitation.sent["z"]
        return True

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [self._changed(update) if update.client in self.clients else update for update in answers]

    def _changed(self, update: Update) -> Update:
        assert self.z_0 is not None
        vectors = {
            name: self.z_0 + self.what(vector - self.z_0, update.round, update.client)
            if name == "z"
            else self.what(vector, update.round, update.client)
            for name, vector in update.vectors.items()
        }
        return replace(update, vectors=vectors)


def survived(
    engine: Messaging, rounds: int, *, crashes: float = 0.0, checkpoint_every: int = 1, seed: int = 0
) -> tuple[FederatedState, list[RoundRecord]]:
    """Run ``rounds`` rounds with a server that may crash in any of them and then resumes from its last checkpoint."""
    state = kept = engine.start()
    records = []
    for call in range(10 * rounds):
        if state.round == rounds:
            return state, records
        after, record = engine.run_round(state)
        if happens(crashes, seed, "crash", call):
            state = kept
            continue
        state = after
        records.append(record)
        if state.round % checkpoint_every == 0:
            kept = state
    raise AssertionError("the run does not come to an end")
