"""Rounds whose clients are asked by packed messages, whatever carries these."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import FedmmError, require
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import first_state
from fedmm.engines.messages import Update, size_in_bytes
from fedmm.engines.server import Server, recorded
from fedmm.remote.dual_norms import DualNorms
from fedmm.remote.kinds import PROBLEM, TRAIN
from fedmm.remote.messaging import Host, invitation_size
from fedmm.remote.packed import Malformed, Packed
from fedmm.remote.packing import pack_invitation, read_update

_USUAL = Terms()

Ask = Callable[[str, Mapping[str, Packed]], Mapping[str, Packed]]
"""Puts a question of a kind to each of these sites, and gives the answers of those that answered in time."""


class AskingEngine:
    """Runs a federation's rounds by asking its sites; it computes what ``InProcess`` does, bit for bit on a CPU.

    The sites keep their own states, and a question says which of them to go on from, so that it may be put again. A
    site that cannot answer ends the run, which can be gone on with: nobody is left out unnoticed.

    problem: as the server sees it: its clients are not asked to work here.
    """

    def __init__(
        self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, ask: Ask, terms: Terms = _USUAL
    ) -> None:
        self.problem = problem
        terms.require_plain("nvflare")
        if terms.transmission.private:
            terms = replace(terms, restore=True)  # the sums tell the norms of duals of which sites say nothing
        self.server = Server(problem, algorithm, rounds, terms)
        self._host = Host(self.server)
        self._ask = ask
        self._dual_norms = DualNorms(self.server)

    def start(self) -> FederatedState:
        return first_state(self.server)

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        invitations = self._host.invitations(state)
        answers = self._ask(
            TRAIN, {name: pack_invitation(self.problem.layout, each) for name, each in invitations.items()}
        )
        updates = [self._read(state.round, name, answers.get(name)) for name in invitations]
        after, inbox = self._host.settle(state, invitations, updates)
        up = sum(size_in_bytes(each.vectors) + size_in_bytes(each.statistics) for each in updates)
        down = sum(map(invitation_size, invitations.values()))
        z_0 = next(iter(invitations.values())).sent["z"]
        record = recorded(after, z_0, inbox, up, down, time.perf_counter() - began)
        told = {name: answers[name].about.get("dual_norm") for name in inbox.accepted}
        return after, self._dual_norms.recorded(record, told, state, after)

    def _read(self, t: int, name: str, answer: Packed | None) -> Update:
        """The update in an answer; in its place, a sentence that says why there is none."""
        if answer is None:
            raise FedmmError(f"the site {name!r} did not answer in round {t + 1}; the run can be resumed")
        if PROBLEM in answer.about:
            raise FedmmError(str(answer.about[PROBLEM]))
        try:
            update = read_update(self.problem.layout, answer)
        except Malformed as problem:
            raise FedmmError(f"the answer of the site {name!r} cannot be read: {problem}") from problem
        require(update.client == name, f"the site {name!r} answers in the name of {update.client!r}")
        require(not update.lost, f"the site {name!r} has lost its state after earlier rounds; begin the run again")
        return update
