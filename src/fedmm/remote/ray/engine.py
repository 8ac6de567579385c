"""Rounds on Ray actors: the reference's server runs here, the clients' work there."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import FedmmError
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.messages import NEVER, Invitation
from fedmm.engines.server import Server, norms_of_duals
from fedmm.engines.worker import Kept
from fedmm.remote.ray.actor import Answer, Call, GivenState, Rules
from fedmm.remote.ray.actors import Actors
from fedmm.remote.ray.shared_memory import to_arrays, to_tensors

_USUAL = Terms()
_HANDED_OUT = ("clients", "client_statistics", "counted")
"""Parts of a state that actors hold; a guard may change the others between two rounds."""


class RayEngine:
    """Runs a federation's rounds on actors; results equal those of ``InProcess``, bit for bit on a CPU.

    Ray restarts an actor whose process dies, on another node if need be, and the lost call is repeated. Its clients
    continue from their states on its disk if they are durable; otherwise they get them from the state of the last
    round, which is complete here. No round counts twice, however often it is repeated: a call names the state from
    which a client continues.

    problem: as the server sees it; its clients do no work here. actors: of a problem with the same clients.
    """

    def __init__(
        self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, actors: Actors, terms: Terms = _USUAL
    ) -> None:
        self.problem = problem
        terms.require_plain("ray")
        self._rules = Rules(algorithm, rounds, terms)
        self.server = Server(problem, algorithm, rounds, terms)
        self.actors = actors
        self._last: FederatedState | None = None
        self._duals: dict[str, float] = {}

    def start(self) -> FederatedState:
        return self.server.start()

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        began = time.perf_counter()
        if self._last is None or any(getattr(state, part) is not getattr(self._last, part) for part in _HANDED_OUT):
            self._hand_out(state, self.server.names)
            self._duals = norms_of_duals(state.clients)
        invitations = self.server.invitations(state)
        answers = self._answers(state, invitations)
        device = self.problem.layout.device

        def dual_norms(counted: Collection[str]) -> Mapping[str, float]:
            told = {name: answers[name].dual_norm for name in counted}
            self._duals = {**self._duals, **{name: norm for name, norm in told.items() if norm is not None}}
            return self._duals

        after, record = self.server.settle_round(
            state,
            invitations,
            (to_tensors(answers[name].update, device) for name in invitations),
            began=began,
            kept=lambda name: to_tensors(answers[name].kept, device),
            dual_norms=dual_norms,
        )
        self._last = after
        return after, record

    def _answers(self, state: FederatedState, invitations: Mapping[str, Invitation]) -> dict[str, Answer]:
        """Return an answer, still packed, of every invited client; give clients that lost their states these first."""
        travelling = {
            name: replace(invitation, sent=invitation.travelling, codes=None)
            for name, invitation in invitations.items()
        }
        call = self.actors.sent(Call(state.round, self._rules, to_arrays(travelling)))
        answers: dict[str, Answer] = {}
        lost: list[str] = []
        for _ in range(self.actors.retries + 1):
            self._hand_out(state, lost)
            answers |= self.actors.work(call, [name for name in invitations if name not in answers])
            lost = [name for name in invitations if name not in answers]
            if not lost:
                return answers
        raise FedmmError(
            f"the actor of client {lost[0]!r} died repeatedly in round {state.round + 1}, so the run cannot continue"
        )

    def _hand_out(self, state: FederatedState, names: Iterable[str]) -> None:
        """Give clients their states: at the start, after a resume, and if an actor died without durable states."""
        given = {
            name: GivenState(
                state.counted.get(name, NEVER),
                Kept(state.clients[name], state.client_statistics.get(name, state.statistics)),
            )
            for name in names
        }
        self.actors.load({name: to_arrays(each) for name, each in given.items()})
