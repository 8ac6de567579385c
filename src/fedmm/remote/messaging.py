"""A server and its sites that know of each other only what messages say, in one process.

The reference for engines whose clients are elsewhere: a site keeps its own states, and what happens between it and the
server is an :class:`Exchange`, which may lose, delay, repeat or change messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from fedmm.core.algorithm import Algorithm
from fedmm.core.compression import readable
from fedmm.core.engine import FederatedState, Refusal, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.client_store import ClientMemory, Kept
from fedmm.engines.in_process import workers
from fedmm.engines.messages import NEVER, Invitation, Update
from fedmm.engines.secure_sum.masking import Masks, Offer, Opening, require_all
from fedmm.engines.server import OpenSum, Server
from fedmm.engines.worker import Worker

_USUAL = Terms()


@dataclass(frozen=True)
class Site:
    """A client as it lives elsewhere: it answers invitations, and its memory survives whatever happens to an answer.

    statistics: the running statistics that it begins with.
    """

    worker: Worker
    memory: ClientMemory
    statistics: Statistics = field(default_factory=dict)

    def answer(self, invitation: Invitation) -> Update:
        """Work, and keep the new state beside the one the server has counted, before anything is sent."""
        kept = self.memory.state_for(invitation.counted) or self._begun(invitation)
        if kept is None or not readable(invitation.travelling, kept.own):
            return Update(invitation.round, self.worker.name, {}, session=invitation.session, lost=True)
        worked = self.worker.run(
            invitation.round,
            invitation.travelling,
            kept.own,
            invitation.statistics or kept.statistics,
            invitation.session,
        )
        self.memory.remember(invitation.round, worked.kept)
        return worked.answer(self.worker.name, invitation)

    def _begun(self, invitation: Invitation) -> Kept | None:
        """The state of a site that has none for this invitation: new, or made again of what the server counted."""
        algorithm, sent = self.worker.algorithm, invitation.travelling
        if "z" not in sent:  # codes, which say nothing without the point that they begin at
            return None
        if invitation.counted == NEVER:
            own = algorithm.init_client(sent["z"])
        elif invitation.totals is not None or not algorithm.accumulates:
            own = algorithm.restored_client(sent, invitation.totals or {}, self.worker.coefficients(invitation.round))
        else:
            return None
        kept = Kept(own, self.statistics)
        self.memory.remember(invitation.counted, kept)
        return kept


class Exchange:
    """What happens between a server and its sites: here everything arrives, once and in time."""

    def invited(self, client: str, invitation: Invitation) -> bool:
        """Whether an invitation reaches the site, and the site is up to answer it."""
        return True

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        """What reaches the server before it closes round t, of these answers and of earlier ones."""
        return answers

    def confirming(self, t: int, client: str) -> bool:
        """Whether a site gives its word that the masked sum of round t is to be opened."""
        return True

    def opening(self, t: int, client: str) -> bool:
        """Whether a site tells what opens the masked sum of round t."""
        return True

    def between_rounds(self, t: int, memories: Mapping[str, ClientMemory]) -> None:
        """What happens to the sites' memories after round t."""


class Host:
    """The server's half of rounds by messages: whom it invites, and what it makes of what arrives.

    A state that is given to it decides for the server alone, and says which of its own states each site goes on from.
    Another one than the last returned is a restart of the server. session: the first one; each restart has the next.
    """

    def __init__(self, server: Server, session: int = 0) -> None:
        self.server = server
        self._lost: set[str] = set()
        self._session = session - 1
        self._last: FederatedState | None = None

    def invitations(self, state: FederatedState) -> dict[str, Invitation]:
        """By site, those who are to take part in the next round."""
        if state is not self._last:
            self._session += 1
        return self.server.invitations(state, session=self._session, restoring=self._lost)

    def settle_round(
        self,
        state: FederatedState,
        invitations: Mapping[str, Invitation],
        updates: Sequence[Update],
        *,
        began: float,
        kept: Callable[[str], Kept | None] = lambda client: None,
        refused: Sequence[Refusal] = (),
        open_sum: OpenSum | None = None,
    ) -> tuple[FederatedState, RoundRecord]:
        """As :meth:`Server.settle_round`, and notes who has lost its state, to give it back in the next round."""
        assert self.server.terms.secure_sum == (open_sum is not None), "whoever asks for masks has to open their sum"
        after, record = self.server.settle_round(
            state, invitations, updates, began=began, kept=kept, refused=refused, open_sum=open_sum
        )
        self._lost = {update.client for update in updates if update.lost and update.round == state.round}
        self.went_on(after)
        return after, record

    def went_on(self, state: FederatedState) -> None:
        """Take a state for the one that was last returned."""
        self._last = state


class Messaging:
    """Runs a federation's rounds by messages; with a faultless exchange it computes what ``InProcess`` does.

    The sites keep their states by themselves, as :class:`Host` says. depth: how many states a site keeps.
    masks: by site, its part in sums that are masked.
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
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
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
        return self._masks[name].masked(invitation, update, {each: self._offer[each] for each in invited})

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
