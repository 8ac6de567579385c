"""The servers' part of a round: which updates count, the servers' new states, and the round's metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmm.core.aggregation import CoordinateMedian, Groups, Sums, aggregate, group_centre, times, updates_of
from fedmm.core.algorithm import State
from fedmm.core.compression import algorithms_part
from fedmm.core.federation import Terms
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.clients import ClientStack
from fedmm.engines.batched.tensors import StackTensors, over
from fedmm.engines.inbox import too_large


class Settlement:
    """Ends a round, in place: everything that follows the clients' last local steps.

    all_counted: every client is certain to be counted in every round. shares_statistics: the server averages running
    statistics. guarded: a replica stops before its metrics exceed their limits.
    """

    def __init__(
        self,
        now: StackTensors,
        clients: ClientStack,
        terms: Terms,
        *,
        all_counted: bool,
        shares_statistics: bool,
        guarded: bool,
    ) -> None:
        self._now = now
        self._clients = clients
        self._terms = terms
        self._all_counted = all_counted
        self._shares_statistics = shares_statistics
        self._guarded = guarded

    def settle(self) -> None:
        """Update the servers and compute the metrics; a replica that is no longer finite keeps its last good state.

        A client that does not take part, or whose update is refused, keeps its last state too.
        """
        now, seats = self._now, self._clients.seats
        for number, (band, uploads, kept) in enumerate(zip(now.bands, now.uploads, now.next_clients, strict=True)):
            r = band.replicas
            working = seats.take(now.working[r], r)
            finite = ~working
            scalars = now.scalars[number]
            sound = [vector.isfinite().all(dim=-1) for vector in uploads.values()]
            sound += [numbers.abs() < too_large(numbers.dtype) for numbers in scalars.values()]
            finite |= torch.stack(sound).all(dim=0)
            verdicts = judge(self._terms, uploads, band.sent()["z"], working, self._groups(r), scalars)
            now.verdicts[r] = ABSENT
            seats.put(now.verdicts[r], verdicts, r)
            counted = verdicts == COUNTED
            server, totals = self._server_update(number, counted)
            was_alive = now.alive[r].clone()
            bad = torch.zeros_like(now.not_finite[r])
            seats.put(bad, ~finite, r)
            now.not_finite[r] = torch.where(was_alive[:, None], bad, now.not_finite[r])
            good = server["z"].isfinite().all(dim=-1) | ~counted.any(dim=-1)  # without updates the server stays put
            if self._terms.on_bad_update == "stop":
                good = good & finite.all(dim=-1)
            now.measures[r] = self._measure(band, counted, kept)
            if self._guarded:
                good = good & self._within_limits(r)
            now.alive[r] &= good
            alive = now.alive[r]
            for name, vector in kept.items():
                chosen = (alive[:, None] & counted).unsqueeze(-1)
                seats.put(band.clients[name], torch.where(chosen, vector, band.seated[name]), r)
            counted_of_all = now.verdicts[r] == COUNTED
            at = torch.where(alive[:, None] & counted_of_all, now.rounds_done[r, None], now.counted_at[r])
            now.counted_at[r] = at
            for name, vector in band.memory(band.sent_to_all()).items():
                band.server[name].copy_(torch.where(alive[:, None], vector, band.server[name]))
            moved = (alive & counted.any(dim=-1))[:, None]
            for name, vector in server.items():
                band.server[name].copy_(torch.where(moved, vector, band.server[name]))
            for name, vector in totals.items():
                now.totals[number][name].copy_(torch.where(moved.unsqueeze(-1), vector, now.totals[number][name]))
        now.rounds_done += now.alive
        self._settle_statistics()

    def _server_update(self, number: int, counted: Tensor) -> tuple[State, State]:
        """Return the servers' states after a band's uploads, and the new sums of all updates if they are kept."""
        band, uploads, totals = self._now.bands[number], self._now.uploads[number], self._now.totals[number]
        sent = band.sent_to_all()
        everyone = self._groups(band.replicas)
        after: State = {}
        if totals:
            updates = updates_of(uploads, sent)
            chosen = counted.unsqueeze(-1)
            after = {name: torch.where(chosen, sum_ + updates[name], sum_) for name, sum_ in totals.items()}
        weights = None if self._clients.weigh_alike else self._clients.client_weights[band.replicas]
        scalars = {name: torch.where(counted, scalar, 0.0) for name, scalar in self._now.scalars[number].items()}
        if scalars:
            weights = times(weights, band.rule.scalar_weights(scalars))
        came = aggregate(
            self._terms.aggregation,
            uploads,
            sent,
            everyone,
            1.0 if self._all_counted else counted.to(sent["z"].dtype).sum(dim=-1, keepdim=True) / self._clients.count,
            band.rule.accumulates,
            counted=None if self._all_counted else counted,
            sums=Sums(totals, after, everyone) if totals else None,
            weights=weights,
        )
        if scalars:
            came = came._replace(scalars=scalars, counted=counted, target=self._clients.target[band.replicas])
        server = band.rule.server_update(algorithms_part(band.server), came, band.central())
        if self._clients.projection:
            server = self._clients.projection.of_server(server)
        return server, after

    def _groups(self, replicas: slice) -> Groups:
        return Groups(self._clients.groups.of[replicas], self._clients.groups.most)

    def _settle_statistics(self) -> None:
        now, seats = self._now, self._clients.seats
        counted = seats.take(now.verdicts) == COUNTED
        some = now.alive & counted.any(dim=-1)
        for name, value in now.own_statistics.items():
            if self._shares_statistics:
                flat = value.reshape(*value.shape[:2], -1)
                if value.is_floating_point():
                    chosen = None if self._all_counted else counted
                    mean = group_centre(self._terms.aggregation, flat, self._clients.groups, chosen)
                else:
                    mean = torch.where(counted.unsqueeze(-1), flat, flat.amin(dim=1, keepdim=True)).amax(dim=1)
                shared = now.statistics[name]
                shared.copy_(torch.where(over(some, shared), mean.view_as(shared), shared))
            chosen = over(now.alive[:, None] & counted, value)
            seats.put(now.client_statistics[name], torch.where(chosen, value, now.kept_statistics[name]))

    def _within_limits(self, replicas: slice) -> Tensor:
        """Return which replicas are within their limits, ``[replicas]``; one with limits must also be finite."""
        measures, limits = self._now.measures[replicas], self._now.limits[replicas]
        finite = measures.index_select(1, self._now.must_be_finite).isfinite().all(dim=-1)
        finite |= (limits == torch.inf).all(dim=-1)
        return finite & ~(measures.abs() > limits).any(dim=-1)

    def _measure(self, band: Band, counted: Tensor, kept: State) -> Tensor:
        """Return the round's metrics for a band's replicas, ``[replicas, metrics]``. kept: the clients' new states."""
        r, now, clients, seats = band.replicas, self._now, self._clients, self._clients.seats
        points, z_0 = now.z[r], band.sent()["z"]
        sources = clients.has_source[r] & counted
        task, domain = now.losses[:, r] / clients.steps[r]
        task = torch.where(clients.has_source[r], task, 0.0)
        if self._terms.transmission.private:  # losses would reveal what the noise hides
            task, domain = torch.zeros_like(task), torch.zeros_like(domain)
        mean = mean_over(points, counted.unsqueeze(-1), dim=1)
        drift, dual_norm = (points - z_0).norm(dim=-1), torch.zeros_like(task[:, 0])
        now.by_client[r, 0] = torch.nan
        seats.put(now.by_client[r, 0], torch.where(counted, drift, torch.nan), r)
        if "dual" in kept:
            own = torch.where(counted.unsqueeze(-1), kept["dual"], band.seated["dual"]).square().sum(dim=-1)
            squares = own if seats.everyone else torch.linalg.vector_norm(band.clients["dual"], dim=-1).square()
            seats.put(squares, own, r)
            dual_norm = squares.mean(dim=-1).sqrt()
            now.by_client[r, 1] = squares.sqrt()
        measures = (
            mean_over(drift, counted),
            root_mean_square(points - mean.unsqueeze(1), counted),
            dual_norm,
            mean_over(task - now.nu[r] * domain, counted),
            torch.where(sources.any(dim=1), mean_over(task, sources), torch.nan),
            mean_over(domain, counted),
            self._in_step(r).sum(dim=1).to(points.dtype),
            counted.sum(dim=1).to(points.dtype),
        )
        return torch.stack(measures, dim=1)

    def _in_step(self, replicas: slice) -> Tensor:
        """Return who takes part in this round and was counted in the last one, and so knows the last broadcast."""
        now = self._now
        done = now.rounds_done[replicas, None]
        return now.working[replicas] & (done > 0) & (now.counted_at[replicas] == done - 1)


# Which updates are counted, and means over those that are -------------------------------------------------------------

COUNTED, ABSENT, NOT_FINITE, TOO_LONG, UNUSUAL = range(5)
REASONS = {
    NOT_FINITE: "its update is not finite",
    TOO_LONG: "the norm of its update is above the bound",
    UNUSUAL: "the norm of its update is unusual in its group",
}


def judge(
    terms: Terms, uploads: State, z_0: Tensor, working: Tensor, groups: Groups, scalars: State | None = None
) -> Tensor:
    """Return the verdict on each client's update, uint8 ``[replicas, clients]``, by the same rules as an inbox.

    uploads: ``[replicas, clients, size]``; z_0: ``[replicas, 1, size]``; working: bool, who takes part; scalars: the
    numbers that clients report, ``[replicas, clients]``.
    """
    verdict = torch.full_like(working, COUNTED, dtype=torch.uint8).masked_fill_(~working, ABSENT)
    if not terms.may_refuse:
        return verdict

    def refuse(bad: Tensor, why: int) -> None:
        verdict.masked_fill_((verdict == COUNTED) & bad, why)

    if terms.on_bad_update == "skip":
        for vectors in uploads.values():
            refuse(~vectors.norm(dim=-1).isfinite(), NOT_FINITE)
        for numbers in (scalars or {}).values():
            refuse(~(numbers.abs() < too_large(numbers.dtype)), NOT_FINITE)
    norm = (uploads["z"] - z_0).norm(dim=-1)
    if terms.max_update_norm > 0:
        refuse(norm > terms.max_update_norm, TOO_LONG)
    if terms.max_update_ratio > 0:
        unusual = torch.zeros_like(working)
        for group in range(groups.most):
            members = (groups.of == group) & (verdict == COUNTED)
            median = CoordinateMedian().centre(norm.unsqueeze(-1), members)
            unusual |= members & (norm > terms.max_update_ratio * median)
        refuse(unusual, UNUSUAL)
    return verdict


def mean_over(values: Tensor, chosen: Tensor, dim: int = -1) -> Tensor:
    """Return the mean of the chosen values, 0 if there are none; the others may be anything, even NaN."""
    number = chosen.sum(dim=dim).clamp_min(1)
    return torch.where(chosen, values, 0.0).sum(dim=dim) / number


def root_mean_square(vectors: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Return the root mean square norm over (chosen) clients: ``[replicas, clients, size]`` to ``[replicas]``."""
    squares = vectors.square().sum(dim=-1)
    return (squares.mean(dim=-1) if chosen is None else mean_over(squares, chosen)).sqrt()
