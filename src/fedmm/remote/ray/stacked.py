"""An actor's clients as one program of the batched engine."""

from __future__ import annotations

from collections.abc import Mapping

from fedmm.core.engine import FederatedState
from fedmm.core.federation import Terms
from fedmm.engines.batched import Batched
from fedmm.engines.client_store import ClientMemory
from fedmm.engines.messages import Invitation, Update


def can_stack(terms: Terms) -> bool:
    """Whether a stack can stand for clients on these terms; coded vectors and shared noise it leaves to each alone."""
    return terms.uploads == terms.broadcasts == "exact" and not terms.transmission.private


class StackedClients:
    """Some clients in a stack of one replica: what its server makes of them is left out.

    All of them work in every round; those that are not invited are not asked what came of it.
    """

    def __init__(self, stack: Batched) -> None:
        self._stack = stack
        self._problem = stack.replicas[0].problem
        self._algorithm = stack.replicas[0].algorithm

    def answers(self, invitations: Mapping[str, Invitation], memories: Mapping[str, ClientMemory]) -> dict[str, Update]:
        """The updates of these clients, at least one; each one's new state is kept before anything is sent."""
        kept = {name: memories[name].held[invitation.counted] for name, invitation in invitations.items()}
        first = next(iter(invitations))
        shared = invitations[first].statistics
        each = {name: kept.get(name, kept[first]) for name in self._stack.clients.names[0]}
        self._stack.load(
            [
                FederatedState(
                    invitations[first].round,
                    {**self._algorithm.init_server(invitations[first].sent["z"]), **invitations[first].sent},
                    {name: own.own for name, own in each.items()},
                    shared or self._problem.statistics,
                    {name: own.statistics for name, own in each.items()},
                )
            ]
        )
        self._stack.advance()
        worked = self._stack.worked(0)
        updates = {}
        for name, invitation in invitations.items():
            memories[name].remember(invitation.round, worked[name].kept)
            updates[name] = worked[name].answer(name, invitation)
        return updates
