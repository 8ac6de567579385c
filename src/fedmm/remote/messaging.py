"""A server and its sites in one process that share nothing but messages.

The reference for engines with remote clients: a site keeps its own states, and what happens between it and the server
is an :class:`Exchange`, which may lose, delay, repeat or change messages.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import workers
from fedmm.engines.masking import Masks, Offer, Opening, require_all
from fedmm.engines.messages import NEVER, Invitation, Update
from fedmm.engines.server import Server
from fedmm.engines.worker import ClientMemory, Kept
from fedmm.remote.engine import Host
from fedmm.remote.site import Site

_USUAL = Terms()


class Exchange:
    """The channel between a server and its sites; here everything arrives, once and in time."""

    def invited(self, client: str, invitation: Invitation) -> bool:
        """Return whether an invitation reaches the site, and the site can answer it."""
        return True

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        """Return what reaches the server before it closes round t, of these answers and earlier ones."""
        return answers

    def confirming(self, t: int, client: str) -> bool:
        """Return whether a site confirms that the masked sum of round t may be opened."""
        return True

    def opening(self, t: int, client: str) -> bool:
        """Return whether a site reveals what opens the masked sum of round t."""
        return True

    def between_rounds(self, t: int, memories: Mapping[str, ClientMemory]) -> None:
        """Change the sites' memories after round t."""


class Messaging:
    """Runs a federation's rounds by messages; with a faultless exchange its results equal those of ``InProcess``.

    The sites keep their own states, as :class:`Host` describes. depth: how many states a site keeps.
    masks: by site, its part in masked sums. offer: the sites' signed keys for them.
    """

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: Algorithm,
        rounds: int,
        terms: Terms = _USUAL,
        exchange: Exchange | None = None,
        *,
        depth: int = 2,
        masks: Mapping[str, Masks] | None = None,
        offer: Offer | None = None,
    ) -> None:
        self.problem = problem
        self._masks = masks or {}
        self._offer = offer or {}
        self.server = Server(problem, algorithm, rounds, terms)
        self.host = Host(self.server)
        self.exchange = exchange or Exchange()
        first = Kept(self.server.first_own(), problem.statistics)
        self.sites = {
            name: Site(worker, ClientMemory({NEVER: first}, depth=depth), problem.statistics)
            for name, worker in workers(self.server).items()
        }

    def start(self) -> FederatedState:
        """Return the state before the first round."""
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """Run one round; return the state after it and its record. ``state`` is not changed."""
        began = time.perf_counter()
        t = state.round
        invitations = self.host.invitations(state)
        answers = [
            self._answer(name, invitation, invitations)
            for name, invitation in invitations.items()
            if self.exchange.invited(name, invitation)
        ]
        after, record = self.host.settle_round(
            state,
            invitations,
            self.exchange.arriving(t, answers),
            began=began,
            kept=lambda name: self.sites[name].memory.held.get(t),
            open_sum=self._open if self.server.terms.secure_sum else None,
        )
        self.exchange.between_rounds(t, {name: site.memory for name, site in self.sites.items()})
        return after, record

    def _answer(self, name: str, invitation: Invitation, invited: Mapping[str, Invitation]) -> Update:
        update = self.sites[name].answer(invitation)
        if not self.server.terms.secure_sum:
            return update
        return self._masks[name].masked(invitation, update, {client: self._offer[client] for client in invited})

    def _open(self, updates: Mapping[str, Update]) -> dict[str, Opening]:
        confirmations = {
            name: self._masks[name].confirmed(update.session, update.round, updates)
            for name, update in updates.items()
            if self.exchange.confirming(update.round, name)
        }
        require_all(confirmations, updates)
        return {
            name: self._masks[name].opened(update.session, update.round, updates, confirmations)
            for name, update in updates.items()
            if self.exchange.opening(update.round, name)
        }
