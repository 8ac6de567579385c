"""The server's part of a round: whom it invites, which updates it accepts, and how it aggregates them."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fedmm.core.aggregation import Groups, Sums, aggregate, group_centre, groups_of, times, updates_of
from fedmm.core.algorithm import Algorithm, State, first_exchange, steps_by_client
from fedmm.core.compression import (
    Broadcast,
    algorithms_part,
    broadcast,
    first_memory,
    known_point,
    remember,
    travelling,
)
from fedmm.core.engine import FederatedState, Norms, Refusal, RoundRecord
from fedmm.core.errors import Diverged, require
from fedmm.core.federation import Terms, client_weights, head_count
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.draws import collect_reports, draw_clients, require_per_client
from fedmm.engines.inbox import Inbox, Reports, UsualNorms, harmless_norms
from fedmm.engines.masking import NotOpened, Opening, build_masked_template, mean_upload, sum_codes
from fedmm.engines.messages import NEVER, Invitation, Update, size_in_bytes
from fedmm.engines.worker import Kept

OpenSum = Callable[[Mapping[str, Update]], Mapping[str, Opening]]
"""Asks the senders of these updates to help open their sum."""


class Server:
    """The server, which knows the clients' names and what they send, never what they hold.

    Sums are taken in order of client name. bounded: refuse updates of unusual norm (``UsualNorms``).
    """

    def __init__(
        self, problem: FederatedProblem, algorithm: Algorithm, rounds: int, terms: Terms, *, bounded: bool = False
    ) -> None:
        names = [client.name for client in problem.clients]
        require(bool(names), "a federation needs at least one client")
        twice = [name for name in names if names.count(name) > 1]
        require(not twice, f"two clients are called {twice[0]!r}; give every client its own name" if twice else "")
        self.problem = problem
        self.algorithm = algorithm
        self.rounds = rounds
        self.terms = terms
        self.names = sorted(names)
        self.steps = steps_by_client(algorithm.steps, problem.listed or names)
        self._groups = groups_of(self.names, problem.groups, problem.layout.device)
        self._weights = client_weights(problem, algorithm)
        self._target = problem.holds_target(self.names)
        self.upload, _ = first_exchange(algorithm, problem.layout, problem.start)  # refuses unknown parameter groups
        require(
            not (terms.transmission.private and problem.share_statistics and problem.statistics),
            "running statistics of batch normalisation would travel without noise; use a network without them, or "
            "batch_norm = 'frozen'",
        )
        terms.check_noise(problem, algorithm)
        terms.check_sum(problem, algorithm)
        self._per_client = require_per_client(algorithm, len(names), problem.start)
        self._harmless: Norms | None = None
        if bounded:
            steps = min(self.steps.values())
            statistics = problem.statistics if problem.share_statistics else {}
            self._harmless = harmless_norms(algorithm, problem.layout, problem.start, statistics, steps)
        self.taking_part = head_count(max(problem.federation, len(names)), terms.participation)

    def start(self) -> FederatedState:
        """Return the federation's state before its first round."""
        return FederatedState(
            round=0,
            server=self.first(),
            clients={name: self.first_own() for name in self.names},
            statistics=self.problem.statistics,
            client_statistics=dict.fromkeys(self.names, self.problem.statistics),
            totals=self.totals(),
        )

    def first(self) -> State:
        """Return the server's state before the first round, with what it remembers of its broadcasts."""
        server = self.algorithm.init_server(self.problem.start)
        sent = self.algorithm.broadcast(server)
        return {**server, **self._per_client, **remember(self.terms.broadcasts, sent)}

    def first_own(self) -> State:
        """Return a client's state before the first round."""
        algorithm, terms = self.algorithm, self.terms
        sent = algorithm.broadcast(algorithm.init_server(self.problem.start))
        return {**algorithm.init_client(self.problem.start), **first_memory(terms.uploads, terms.broadcasts, sent)}

    def broadcast(self, server: State) -> Broadcast:
        """Return what a server in this state sends, as its clients will decode it, and the corresponding codes."""
        shared = {name: each for name, each in algorithms_part(server).items() if name not in self._per_client}
        now = self.algorithm.broadcast(shared)
        return broadcast(self.terms.broadcasts, now, known_point(server))

    def totals(self) -> dict[str, State]:
        """Return the sums of the clients' updates before the first round; empty if they are not kept."""
        if not self.terms.keeps_totals(self.algorithm):
            return {}
        zero = {name: torch.zeros_like(self.upload[name]) for name in self.algorithm.accumulates}
        return dict.fromkeys(self.names, zero)

    def invitations(
        self, state: FederatedState, *, session: int = 0, restoring: Collection[str] = ()
    ) -> dict[str, Invitation]:
        """Return the invitations of the next round's clients by name.

        session: changes with each restart, to recognise late answers. restoring: the clients that lost their state.
        """
        sent, codes = self.broadcast(state.server)
        coded = self.terms.broadcasts != "exact"
        statistics = state.statistics if self.problem.share_statistics else {}
        return {
            name: Invitation(
                state.round,
                sent,
                session,
                state.counted.get(name, NEVER),
                statistics,
                state.totals.get(name) if name in restoring else None,
                codes if coded and name not in restoring and self._in_step(state, name) else None,
                importance,
            )
            for name, importance in draw_clients(
                self.algorithm, self.names, self.terms.participation, self.problem.seed, state
            ).items()
        }

    def _in_step(self, state: FederatedState, name: str) -> bool:
        """Return whether a client was counted in the last round, and so knows the last broadcast."""
        return state.round > 0 and state.counted.get(name, NEVER) == state.round - 1

    def inbox(
        self, invitations: Mapping[str, Invitation], norms: Mapping[str, Norms] | None = None, *, masked: bool = False
    ) -> Inbox:
        """Return an empty inbox for a round.

        norms: by client, those of its last counted update. masked: expect masked updates, visible only as a sum.
        """
        statistics = self.problem.statistics if self.problem.share_statistics else {}
        like = build_masked_template(self.upload) if masked else travelling(self.terms.uploads, self.upload)
        usual = self.usual_norms(norms or {})
        t = next((invitation.round for invitation in invitations.values()), 0)
        unsent = tuple(self.upload) if self.algorithm.reports_only(t) else ()
        reports = Reports(self.algorithm.reports, unsent, self.problem.layout.dtype)
        return Inbox(invitations, like, statistics, self.terms, self.problem.groups, usual, reports)

    def usual_norms(self, known: Mapping[str, Norms]) -> UsualNorms | None:
        """Return the bound on the norms of a round's updates, or None. known: as ``norms`` in :meth:`inbox`."""
        return None if self._harmless is None else UsualNorms(self._harmless, known, steps=self.steps)

    def settle_round(
        self,
        state: FederatedState,
        invitations: Mapping[str, Invitation],
        updates: Iterable[Update],
        *,
        began: float,
        kept: Callable[[str], Kept | None] = lambda client: None,
        dual_norms: Callable[[Collection[str]], Mapping[str, float]] | None = None,
        refused: Sequence[Refusal] = (),
        open_sum: OpenSum | None = None,
    ) -> tuple[FederatedState, RoundRecord]:
        """End a round: return the state after it and its record, given the updates that arrive.

        updates: judged one by one as they arrive. began: when the round began, by ``time.perf_counter``.
        kept: returns a client's own state after the round, if this process has it; used if its update is counted.
        dual_norms: returns ||dual_i|| by client for the clients that are counted; by default from the states.
        refused: messages that could not even be read as updates.
        open_sum: opens the sum, if updates are masked; every update is then replaced by their mean, which suffices.
        """
        t, bytes_up = state.round, 0
        inbox = self.inbox(invitations, state.norms, masked=open_sum is not None)
        for update in updates:
            bytes_up += size_in_bytes(update.vectors) + size_in_bytes(update.statistics)
            bytes_up += len(update.scalars) * self.problem.layout.dtype.itemsize
            inbox.put(update)
        inbox.close()
        if open_sum is not None and inbox.accepted:
            self._open(inbox, invitations, open_sum)
        inbox.refused.extend(refused)
        accepted = inbox.accepted
        own = {client: held for client in accepted if (held := kept(client)) is not None}
        after = replace(
            self._aggregate(state, accepted),
            round=t + 1,
            clients={**state.clients, **{client: held.own for client, held in own.items()}},
            client_statistics={**state.client_statistics, **{client: held.statistics for client, held in own.items()}},
            counted={**state.counted, **dict.fromkeys(accepted, t)},
            norms={**state.norms, **inbox.norms},
        )
        duals = norms_of_duals(after.clients) if dual_norms is None else dual_norms(accepted)
        bytes_down = sum(invitation.size_in_bytes for invitation in invitations.values())
        return after, _record(after, inbox, duals, bytes_up, bytes_down, time.perf_counter() - began)

    def _open(self, inbox: Inbox, invitations: Mapping[str, Invitation], open_sum: OpenSum) -> None:
        try:
            codes = sum_codes(inbox.accepted, invitations, open_sum(inbox.accepted))
        except NotOpened as problem:
            inbox.refused += [Refusal(name, f"the round's sum was not opened: {problem}") for name in inbox.accepted]
            inbox.accepted = {}
            return
        sent = next(iter(invitations.values())).sent
        mean = mean_upload(codes, len(inbox.accepted), self.upload, sent)
        inbox.accepted = {name: replace(update, vectors=mean) for name, update in inbox.accepted.items()}

    def _aggregate(self, state: FederatedState, accepted: Mapping[str, Update]) -> FederatedState:
        """Return the state with the server's part updated from these updates; without any, its point does not move."""
        sent, _ = self.broadcast(state.server)
        memory = remember(self.terms.broadcasts, sent)
        if not accepted:
            return replace(state, server={**state.server, **memory})
        names = sorted(accepted)
        uploads = {name: torch.stack([accepted[who].vectors[name] for who in names]) for name in self.upload}
        totals = self._added(state.totals, names, updates_of(uploads, sent)) if state.totals else {}
        present = [self.names.index(name) for name in names]
        groups = Groups(self._groups.of[present], self._groups.most)
        weights = self._weights
        if self.algorithm.reports:
            scalars, counted = collect_reports(self.algorithm, self.names, accepted, self.problem.layout)
            weights = times(weights, self.algorithm.scalar_weights(scalars))
        arrived = aggregate(
            self.terms.aggregation,
            uploads,
            sent,
            groups,
            len(names) / len(self.names),
            self.algorithm.accumulates,
            sums=Sums(self._stacked(state.totals), self._stacked(totals), self._groups) if totals else None,
            weights=None if weights is None else weights[present],
        )
        if self.algorithm.reports:
            arrived = arrived._replace(scalars=scalars, counted=counted, target=self._target)
        c = self.algorithm.coefficients(self.problem.layout, state.round, self.rounds)
        server = self.algorithm.server_update(algorithms_part(state.server), arrived, c)
        if self.problem.projection:
            server = self.problem.projection.of_server(server)
        if not bool(server["z"].isfinite().all()):
            raise Diverged("", state.round + 1)
        statistics = state.statistics
        if self.problem.share_statistics:
            statistics = self._mean_statistics([accepted[name].statistics for name in names], statistics, groups)
        return replace(state, server={**server, **memory}, statistics=statistics, totals=totals)

    def _added(self, totals: Mapping[str, State], names: list[str], updates: State) -> dict[str, State]:
        """Return the clients' sums with these clients' updates added."""
        own = {
            who: {name: sum_ + updates[name][place] for name, sum_ in totals[who].items()}
            for place, who in enumerate(names)
        }
        return {**totals, **own}

    def _stacked(self, totals: Mapping[str, State]) -> State:
        return {name: torch.stack([totals[who][name] for who in self.names]) for name in self.algorithm.accumulates}

    def _mean_statistics(self, statistics: list[Statistics], before: Statistics, groups: Groups) -> Statistics:
        mean: Statistics = {}
        for name in before:
            stacked = torch.stack([own[name] for own in statistics])
            if not stacked.is_floating_point():
                mean[name] = stacked.amax(dim=0)
            elif self.terms.aggregation.robust:
                centre = group_centre(self.terms.aggregation, stacked.reshape(len(stacked), -1), groups)
                mean[name] = centre.view_as(before[name])
            else:
                mean[name] = stacked.mean(dim=0)
        return mean


def _record(
    after: FederatedState, inbox: Inbox, duals: Mapping[str, float], bytes_up: int, bytes_down: int, seconds: float
) -> RoundRecord:
    z_0 = inbox.sent_point(after.z)
    points = torch.stack([inbox.accepted[name].vectors["z"] for name in sorted(inbox.accepted)] or [z_0])
    drifts = (points - z_0).norm(dim=-1)
    by_client = {
        "drift": dict(zip(sorted(inbox.accepted), drifts.tolist(), strict=False)),  # without updates: a 0 of no client
        "dual_norm": dict(duals),
    }
    return RoundRecord(
        round=after.round,
        drift=float(drifts.mean()),
        consensus_gap=_root_mean_square(points - points.mean(dim=0)),
        dual_norm=math.hypot(*duals.values()) / math.sqrt(len(duals)) if duals else 0.0,
        bytes_up=bytes_up,
        bytes_down=bytes_down,
        seconds=seconds,
        metrics=_mean_metrics(inbox.accepted),
        clients=len(inbox.accepted),
        refused=tuple(inbox.refused),
        by_client={} if inbox.private else {measure: each for measure, each in by_client.items() if each},
    )


def norms_of_duals(clients: Mapping[str, State]) -> dict[str, float]:
    """Return ||dual_i|| by name for the clients that have a dual."""
    duals = {name: client["dual"].norm() for name, client in clients.items() if "dual" in client}
    return dict(zip(duals, torch.stack(list(duals.values())).tolist(), strict=True)) if duals else {}


def _mean_metrics(accepted: Mapping[str, Update]) -> dict[str, float]:
    """Return the mean of each metric over the clients that report it."""
    metrics: dict[str, list[float]] = defaultdict(list)
    for name in sorted(accepted):
        for metric, value in accepted[name].metrics.items():
            metrics[metric].append(value)
    return {name: sum(values) / len(values) for name, values in metrics.items()}


def _root_mean_square(vectors: Tensor) -> float:
    return float(vectors.square().sum(dim=-1).mean().sqrt())
