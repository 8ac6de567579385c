"""An engine for rounds in which few of many clients work: those that do take their local steps as one stack.

The batched engine holds a place for every client and works on all of them; with 500 clients of which a dozen take part,
that is nearly all in vain. Here the server, its checks and its bytes are the in-process engine's, and so is what is
computed: algorithms act on the last axis, whatever stands before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch

from fedmm import FederatedProblem, InProcess, Terms
from fedmm.core.algorithm import Algorithm, kept_of
from fedmm.core.compression import algorithms_part, transmit
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.errors import require
from fedmm.core.problem import LocalRound
from fedmm.engines.messages import Update
from fedmm.engines.worker import Kept, take_step


class RoundStack(InProcess):
    """The in-process engine with the clients of a round as one stack.

    open_stack: begins a round of clients, by their names, its number and its local steps: points and fields are
        ``[clients, size]``, and what it reports is the clients' mean.
    """

    def __init__(
        self,
        problem: FederatedProblem,
        algorithm: Algorithm,
        rounds: int,
        terms: Terms,
        open_stack: Callable[[Sequence[str], int, int], LocalRound],
    ) -> None:
        super().__init__(problem, algorithm, rounds, terms)
        require(len(set(self.server.steps.values())) == 1, "clients that are stacked must take equally many steps")
        require(
            terms.broadcasts == "exact" and terms.transmission.exact,
            "clients that are stacked must get exact broadcasts, and send their updates as they are or coded",
        )
        self._open_stack = open_stack

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        """One round, as in the in-process engine."""
        began = time.perf_counter()
        t, rule, terms = state.round, self.algorithm, self.terms
        invitations = self.server.invitations(state)
        names = list(invitations)
        worker = self.workers[names[0]]
        c, steps = worker.coefficients(t), worker.steps_in(t)
        sent = invitations[names[0]].sent
        own = {key: torch.stack([state.clients[name][key] for name in names]) for key in state.clients[names[0]]}
        mine = algorithms_part(own)
        local = self._open_stack(names, t, rule.most_steps(worker.steps))
        z = sent["z"].expand(len(names), -1)
        working = rule.begin(z, sent, mine, c)
        for step in range(steps):
            z, working = take_step(rule, local, step, z, sent, working, c, self.problem.projection)
        z, wire, memory = transmit(terms.transmission, terms.uploads, z, sent["z"], own)
        upload, after = rule.finish(z, sent, working, c)
        vectors = upload if terms.uploads == "exact" else {**wire, **{k: v for k, v in upload.items() if k != "z"}}
        kept = {**kept_of(mine, working, after), **memory}
        metrics = local.close().metrics

        def updates() -> Iterator[Update]:
            for place, name in enumerate(names):
                travelling = {key: vector[place] for key, vector in vectors.items()}
                yield Update(t, name, travelling, {}, metrics, base=invitations[name].counted)

        def kept_by(name: str) -> Kept:
            place = names.index(name)
            return Kept({key: vector[place].clone() for key, vector in kept.items()}, {})

        return self.server.settle_round(
            state, invitations, updates(), began=began, kept=kept_by, dual_norms=lambda counted: {}
        )
