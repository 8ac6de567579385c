"""A server and its sites that know of each other only what messages say, in one process.

The reference for engines whose clients are elsewhere: a site keeps its own states, and what happens between it and the
server is an :class:`Exchange`, which may lose, delay, repeat or change messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedmm.core.algorithm import Algorithm
from fedmm.core.compression import readable
from fedmm.core.engine import FederatedState, Refusal, RoundRecord
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.client_store import ClientMemory, Kept
from fedmm.engines.in_process import first_state, workers
from fedmm.engines.inbox import Inbox
from fedmm.engines.messages import NEVER, Invitation, Update, size_in_bytes
from fedmm.engines.secure_sum.masking import Masks, NotOpened, Offer, Opening, mean_upload, require_all, sum_codes
from fedmm.engines.server import Server, recorded
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
        shared = invitation.statistics
        worked = self.worker.run(
            invitation.round, invitation.travelling, kept.own, shared or kept.statistics, invitation.session
        )
        self.memory.remember(invitation.round, Kept(worked.own, worked.report.statistics))
        return Update(
            invitation.round,
            self.worker.name,
            worked.upload,
            worked.report.statistics if shared else {},
            worked.report.metrics,
            invitation.session,
            invitation.counted,
        )

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


Open = Callable[[Mapping[str, Update]], Mapping[str, Opening]]
"""Asks those who sent these updates to help to open their sum."""


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

    def settle(
        self,
        state: FederatedState,
        invitations: Mapping[str, Invitation],
        arrived: Sequence[Update],
        open_sum: Open | None = None,
    ) -> tuple[FederatedState, Inbox]:
        """The state after a round, without the sites' own, and what was accepted and refused in it.

        open_sum: where updates are masked. Each is then taken for their mean, which is all that the server needs.
        """
        t = state.round
        masked = self.server.terms.secure_sum
        assert masked == (open_sum is not None), "whoever asks for masks has to open their sum"
        inbox = self.server.inbox(invitations, state.norms, masked=masked)
        for update in arrived:
            inbox.put(update)
        inbox.close()
        if open_sum is not None and inbox.accepted:
            self._open(inbox, invitations, open_sum)
        self._lost = {update.client for update in arrived if update.lost and update.round == t}
        settled = self.server.settle(state, inbox.accepted)
        after = replace(
            state,
            round=t + 1,
            server=settled.server,
            statistics=settled.statistics,
            totals=settled.totals,
            counted={**state.counted, **dict.fromkeys(inbox.accepted, t)},
            norms={**state.norms, **inbox.norms},
        )
        return self.went_on(after), inbox

    def _open(self, inbox: Inbox, invitations: Mapping[str, Invitation], open_sum: Open) -> None:
        try:
            codes = sum_codes(inbox.accepted, invitations, open_sum(inbox.accepted))
        except NotOpened as problem:
            inbox.refused += [Refusal(name, f"the round's sum was not opened: {problem}") for name in inbox.accepted]
            inbox.accepted = {}
            return
        sent = next(iter(invitations.values())).sent
        mean = mean_upload(codes, len(inbox.accepted), self.server.upload, sent)
        inbox.accepted = {name: replace(update, vectors=mean) for name, update in inbox.accepted.items()}

    def went_on(self, state: FederatedState) -> FederatedState:
        """Take a state for the one that was last returned."""
        self._last = state
        return state


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
        return first_state(self.server)

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        t = state.round
        invitations = self.host.invitations(state)
        answers = [
            self._answer(name, invitation, invitations)
            for name, invitation in invitations.items()
            if self.exchange.invited(name, invitation)
        ]
        arrived = self.exchange.arriving(t, answers)
        open_sum = self._open if self.server.terms.secure_sum else None
        settled, inbox = self.host.settle(state, invitations, arrived, open_sum)
        kept = {name: self.sites[name].memory.held[t] for name in inbox.accepted if t in self.sites[name].memory.held}
        after = replace(
            settled,
            clients={**state.clients, **{name: each.own for name, each in kept.items()}},
            client_statistics={**state.client_statistics, **{name: each.statistics for name, each in kept.items()}},
        )
        self.host.went_on(after)
        self.exchange.between_rounds(t, {name: site.memory for name, site in self.sites.items()})
        bytes_up = sum(size_in_bytes(each.vectors) + size_in_bytes(each.statistics) for each in arrived)
        bytes_down = sum(map(invitation_size, invitations.values()))
        return after, recorded(after, state.z, inbox, bytes_up, bytes_down, time.perf_counter() - began)

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


def invitation_size(invitation: Invitation) -> int:
    """What an invitation takes on the wire."""
    return sum(size_in_bytes(each) for each in (invitation.travelling, invitation.statistics, invitation.totals or {}))
