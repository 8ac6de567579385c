"""Rounds whose clients are reached by packed messages, over any transport."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, Refusal, RoundRecord
from fedmm.core.errors import FedmmError, require
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.messages import Invitation, Update
from fedmm.engines.server import OpenSum, Server, norms_of_duals
from fedmm.engines.worker import Kept
from fedmm.remote.packed import PROBLEM, TRAIN, About, Ask, Malformed, Packed
from fedmm.remote.packing import pack_invitation, read_update

_USUAL = Terms()


class Host:
    """The server's half of message-based rounds: it chooses whom to invite and settles what arrives.

    A state passed to it sets the server's part alone and names the saved state from which each site continues. A state
    other than the one last returned counts as a server restart. session: the first session; each restart adds 1.
    """

    def __init__(self, server: Server, session: int = 0) -> None:
        self.server = server
        self._lost: set[str] = set()
        self._session = session - 1
        self._last: FederatedState | None = None

    def invitations(self, state: FederatedState) -> dict[str, Invitation]:
        """Return the invitations to the next round, by site."""
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
        """Call :meth:`Server.settle_round`, and note which sites lost their states, to restore these next round."""
        assert self.server.terms.secure_sum == (open_sum is not None), "whoever asks for masks has to open their sum"
        after, record = self.server.settle_round(
            state, invitations, updates, began=began, kept=kept, refused=refused, open_sum=open_sum
        )
        self._lost = {update.client for update in updates if update.lost and update.round == state.round}
        self.went_on(after)
        return after, record

    def went_on(self, state: FederatedState) -> None:
        """Treat ``state`` as the one last returned."""
        self._last = state


class AskingEngine:
    """Runs a federation's rounds by asking its sites; results equal those of ``InProcess``, bit for bit on a CPU.

    The sites keep their own states, and a question names the one to continue from, so it can be repeated. If a site
    cannot answer, the run stops and can be resumed: no site is left out silently.

    problem: as the server sees it; its clients do no work here.
    """

    def __init__(
        self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, ask: Ask, terms: Terms = _USUAL
    ) -> None:
        self.problem = problem
        terms.require_plain("nvflare")
        if terms.transmission.private:
            terms = replace(terms, restore=True)  # sites do not report dual norms; the sums give them
        self.server = Server(problem, algorithm, rounds, terms)
        self._host = Host(self.server)
        self._ask = ask
        self._dual_norms = DualNorms(self.server)

    def start(self) -> FederatedState:
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        invitations = self._host.invitations(state)
        answers = self._ask(
            TRAIN, {name: pack_invitation(self.problem.layout, invitation) for name, invitation in invitations.items()}
        )
        updates = [self._read(state.round, name, answers.get(name)) for name in invitations]
        after, record = self._host.settle_round(state, invitations, updates, began=began)
        told = {name: answer.about for name, answer in answers.items()}
        return after, self._dual_norms.add_to(record, told, state, after)

    def _read(self, t: int, name: str, answer: Packed | None) -> Update:
        """Return the update in an answer; raise FedmmError with the reason if there is none."""
        if answer is None:
            raise FedmmError(f"the site {name!r} did not answer in round {t + 1}; the run can be resumed")
        if PROBLEM in answer.about:
            raise FedmmError(str(answer.about[PROBLEM]))
        try:
            update = read_update(self.problem.layout, answer)
        except Malformed as problem:
            raise FedmmError(f"the answer of the site {name!r} cannot be read: {problem}") from problem
        require(update.client == name, f"the site {name!r} answers in the name of {update.client!r}")
        require(not update.lost, f"the site {name!r} has lost its state after earlier rounds; start the run again")
        return update


@dataclass
class DualNorms:
    """||dual_i|| by site, as reported by the site or derived from the sum of its updates.

    A site does not report it if its updates carry noise, and after a server restart not before its next answer; then it
    follows from the sums, if the server keeps them.
    """

    server: Server
    known: dict[str, float] = field(default_factory=dict)

    def add_to(
        self, record: RoundRecord, told: Mapping[str, About], before: FederatedState, after: FederatedState
    ) -> RoundRecord:
        """Return the round's record with these norms. told: what the sites reported with their updates, by name."""
        counted = [name for name, t in after.counted.items() if t == before.round]
        said = {name: told.get(name, {}).get("dual_norm") for name in counted}
        self.known |= {name: norm for name, norm in said.items() if isinstance(norm, float) and math.isfinite(norm)}
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
        return norms_of_duals(
            {name: algorithm.restored_client({"z": after.z}, after.totals[name], c) for name in wanted}
        )
