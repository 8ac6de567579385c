"""The clients of a stack: their rows, weights and local steps, and who takes part in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from fedmm.core.aggregation import Groups, groups_of
from fedmm.core.algorithm import Algorithm, steps_by_client
from fedmm.core.errors import require
from fedmm.core.federation import Terms, client_weights, draw_order, head_count, taking_part, weighted_draw
from fedmm.core.layout import Layout
from fedmm.core.mechanisms import SeededNoise
from fedmm.core.objective import RowWeights
from fedmm.core.problem import FederatedProblem, StackableClient
from fedmm.engines.batched.sampling import RoundSampler, RowPool
from fedmm.engines.batched.seats import Seats


@dataclass(frozen=True)
class Replica:
    """One run in a stack."""

    problem: FederatedProblem
    algorithm: Algorithm
    rounds: int
    terms: Terms = field(default=Terms())


class ClientStack:
    """The clients of all replicas, ``[replicas, clients]``, in order of client name.

    steps: M_i, for the current round if they vary; most_steps: the largest in any round; longest: the largest in the
        current round; unequal_steps: whether some clients finish while others go on.
    weights, scale, target_weight, alpha: factors on rows, gradients, target losses and values of f_i.
    sam_radius: the radius of SAM's steps; None without them. has_source, target: who holds source or target rows.
    groups: who holds the same domains. pool, sampler: the rows, and which of them a round needs. view: how they are
        shown to the network.
    taking_part: how many clients of each replica take part; taking_part_in_all: how many of the whole federation,
        ``[replicas, 1, 1]``, of which these clients may be only some.
    projection, local_projection: onto the constraints, at the server and after a local step.
    client_weights: factors on updates before their mean, unless they weigh_alike.

    seats: if at most half of the clients take part and no rule needs the others, the tensors above that hold a value
        per client are ``[replicas, seats]``, of the clients seated in the round.
    """

    def __init__(self, replicas: Sequence[Replica], layout: Layout) -> None:
        by_replica = [sorted(replica.problem.clients, key=lambda client: client.name) for replica in replicas]
        self.names = [[client.name for client in clients] for clients in by_replica]
        self.count = len(self.names[0])
        self.shape = (len(replicas), self.count)
        require(
            all(len(clients) == self.count for clients in self.names),
            "replicas of a stack must have the same number of clients",
        )
        self.flat = cast(
            list[StackableClient], [client for replica_clients in by_replica for client in replica_clients]
        )
        _require_alike(replicas, self.flat, layout)
        self.taking_part = [head_count(self.count, replica.terms.participation) for replica in replicas]
        self.seats = self._make_seats(replicas, layout.device)
        self._followed: list[tuple[Tensor, Tensor]] = []
        self._seated: Sequence[StackableClient] = self.flat
        steps = [_steps(replica, names) for replica, names in zip(replicas, self.names, strict=True)]
        self._steps_of_all = torch.tensor(steps, dtype=layout.dtype, device=layout.device)
        self.steps = self._follow(self._steps_of_all)
        self._given_steps = steps
        self.steps_vary = any(replica.algorithm.step_schedule for replica in replicas)
        longest = [[r.algorithm.most_steps(own) for own in step] for r, step in zip(replicas, steps, strict=True)]
        self.most_steps = self.longest = max(map(max, longest))
        self.unequal_steps = min(map(min, longest)) < self.most_steps or (self.steps_vary and len(replicas) > 1)
        self.pool = RowPool([held for client in self.flat for held in client.held], layout.device)
        self.sampler = RoundSampler(self.flat, [count for counts in longest for count in counts], self.pool)
        parts = (self._stacked(part) for part in list(zip(*(client.weights[:4] for client in self.flat), strict=True)))
        domain, task, everything, target = parts
        shares = [client.weights.classes for client in self.flat]
        classes = None if shares[0] is None else self._stacked(cast(list[Tensor], shares))
        self.weights = RowWeights(domain, task, everything, target, has_source=True, classes=classes)

        def numbers(values: Sequence[float]) -> Tensor:
            return self._follow(torch.tensor(values, dtype=layout.dtype, device=layout.device).view(self.shape))

        self.target_weight = numbers([client.objective.target_weight for client in self.flat])
        radii = [client.objective.sam_radius for client in self.flat]
        self.sam_radius = numbers(radii) if any(radii) else None
        sources = torch.tensor([client.weights.has_source for client in self.flat], device=layout.device)
        self.has_source = self._follow(sources.view(self.shape))
        self.scale = self._stacked([client.field_scale for client in self.flat])
        self.alpha = numbers([client.alpha for client in self.flat])
        self.view = self.flat[0].view
        self.projection = replicas[0].problem.projection
        self.local_projection = replicas[0].problem.local_projection
        federations = [
            head_count(max(replica.problem.federation, self.count), replica.terms.participation) for replica in replicas
        ]
        self.taking_part_in_all = torch.tensor(federations, dtype=layout.dtype, device=layout.device).view(-1, 1, 1)
        each_weights = [client_weights(replica.problem, replica.algorithm) for replica in replicas]
        self.weigh_alike = all(weights is None for weights in each_weights)
        alike = torch.ones(self.count, dtype=layout.dtype, device=layout.device)
        self.client_weights = self._follow(
            torch.stack([alike if weights is None else weights for weights in each_weights])
        )
        self._replicas = replicas
        each_groups = [
            groups_of(names, replica.problem.groups, layout.device)
            for names, replica in zip(self.names, replicas, strict=True)
        ]
        of = self._follow(torch.stack([groups.of for groups in each_groups]))
        self.groups = Groups(of, max(groups.most for groups in each_groups))
        held = zip(self.names, replicas, strict=True)
        self.target = self._follow(torch.stack([replica.problem.holds_target(names) for names, replica in held]))
        self.which = torch.arange(len(replicas), device=layout.device).unsqueeze(1).expand(self.seats.shape)

    def _make_seats(self, replicas: Sequence[Replica], device: torch.device) -> Seats:
        most = max(self.taking_part)
        few = 2 * most <= self.count and not any(_needs_everyone(replica) for replica in replicas)
        return Seats(len(replicas), self.count, most if few else self.count, device)

    def _stacked(self, tensors: Sequence[Tensor]) -> Tensor:
        return self._follow(torch.stack(list(tensors)).view(*self.shape, *tensors[0].shape))

    def _follow(self, of_all: Tensor) -> Tensor:
        """Return the seated clients' part of a tensor of all clients; :meth:`seat` updates it in place every round."""
        if self.seats.everyone:
            return of_all
        own = self.seats.take(of_all)
        self._followed.append((of_all, own))
        return own

    def seat(self, working: Tensor) -> None:
        """Seat the clients that take part in a round. working: bool ``[replicas, clients]``."""
        if self.seats.everyone:
            return
        places = self.seats.fill(working)
        first = torch.arange(len(self.names)).unsqueeze(1) * self.count
        self._positions = (places + first).flatten().tolist()
        self._seated = [self.flat[position] for position in self._positions]
        for of_all, own in self._followed:
            own.copy_(self.seats.take(of_all))

    def rows(self, t: int) -> Tensor:
        """Return round t's rows as positions in the pool, int64 ``[replicas, seats, most_steps, rows]``."""
        rows = self.sampler.indices(t, self.longest, None if self.seats.everyone else self._positions)
        return rows.view(*self.seats.shape, self.most_steps, -1)

    def set_steps(self, t: int) -> None:
        """Set the numbers of local steps for round t, in place, if they vary."""
        if not self.steps_vary:
            return
        pairs = zip(self._replicas, self._given_steps, strict=True)
        steps = [[r.algorithm.steps_in(own, r.problem.seed, t) for own in given] for r, given in pairs]
        self._steps_of_all.copy_(torch.tensor(steps))
        self.longest = max(map(max, steps))

    def dropout_keys(self, t: int) -> Tensor:
        """Return the dropout keys of every local step in round t, int64 ``[replicas, seats, longest]``."""
        keys = [[client.dropout_key(t, step) for step in range(self.longest)] for client in self._seated]
        return torch.tensor(keys).view(*self.seats.shape, self.longest)

    def view_keys(self, t: int) -> Tensor:
        """Return the keys of every local step's view in round t, int64 ``[replicas, seats, longest]``."""
        keys = [[client.view_key(t, step) for step in range(self.longest)] for client in self._seated]
        return torch.tensor(keys).view(*self.seats.shape, self.longest)

    def working(self, t: int) -> Tensor:
        """Return who takes part in round t, bool ``[replicas, clients]``."""
        draws: dict[tuple[object, ...], list[bool]] = {}
        present = []
        for names, replica in zip(self.names, self._replicas, strict=True):
            drawn = t - 1 if replica.algorithm.ends_pair(t) else t
            draw = (replica.terms.participation, replica.problem.seed, drawn)
            if (*draw, *names) not in draws:
                chosen = set(taking_part(names, *draw))
                draws[*draw, *names] = [name in chosen for name in names]
            present.append(draws[*draw, *names])
        return torch.tensor(present)

    def weighted_draw(self, t: int, replicas: slice, importance: Tensor) -> tuple[Tensor, Tensor]:
        """Draw who takes part in round t of these replicas by importance; return that and the factors on their fields.

        importance, and both results: ``[replicas, clients]``.
        """
        pairs = zip(self.names[replicas], self._replicas[replicas], strict=True)
        orders, starts = zip(*(draw_order(names, r.problem.seed, t) for names, r in pairs), strict=True)
        device = importance.device
        count = torch.tensor(self.taking_part[replicas], device=device).unsqueeze(-1)
        begin = torch.tensor(starts, dtype=torch.float64, device=device).unsqueeze(-1)
        return weighted_draw(importance, count, torch.tensor(orders, device=device), begin)

    def noise_keys(self, t: int) -> Tensor:
        """Return the keys of the noise in round t's updates, int64 ``[replicas, seats]``."""
        seats = self.seats.shape[1]
        own = [[client.name for client in self._seated[start:][:seats]] for start in range(0, len(self._seated), seats)]
        each = zip(own, self._replicas, strict=True)
        return torch.tensor([[SeededNoise(r.problem.seed).key(name, t) for name in names] for names, r in each])

    def nu(self, t: int, rounds: Sequence[int]) -> list[float]:
        """Return each replica's weight nu of the domain loss in round t."""
        objectives = [client.objective for client in self.flat[:: self.count]]
        return [objective.nu_in(t, total) for objective, total in zip(objectives, rounds, strict=True)]


def _require_alike(replicas: Sequence[Replica], clients: Sequence[StackableClient], layout: Layout) -> None:
    """Refuse replicas that differ in what a stack takes from the first of them."""
    for replica in replicas:
        replica.terms.check_noise(replica.problem, replica.algorithm)
        same = replica.problem.layout.blocks == layout.blocks and replica.problem.layout.dtype == layout.dtype
        require(same, "replicas of a stack must have networks of the same structure and dtype")
        first, own = replicas[0].problem, replica.problem
        constraints = own.constraints == first.constraints and own.held_locally == first.held_locally
        require(constraints, "replicas of a stack must have the same constraints")
        shared = replica.problem.share_statistics == replicas[0].problem.share_statistics
        require(shared, "replicas of a stack must have the same policy for running statistics")
        require(
            replica.terms.structure() == replicas[0].terms.structure(),
            "replicas of a stack must have the same terms; only the share of clients that take part may differ",
        )
    for client in clients:
        require(
            client.objective.structure() == clients[0].objective.structure(),
            "replicas of a stack must have the same objective; only nu, target weight, gradient scale and sam_radius "
            "above 0 may differ",
        )
        require(client.view == clients[0].view, "replicas of a stack must have the same view of their rows")


def _needs_everyone(replica: Replica) -> bool:
    """Return whether a round also needs numbers or sums of clients that do not take part."""
    rule = type(replica.algorithm)
    numbers = rule.importance is not Algorithm.importance or rule.init_per_client is not Algorithm.init_per_client
    return numbers or bool(replica.algorithm.reports) or replica.terms.keeps_totals(replica.algorithm)


def _steps(replica: Replica, names: Sequence[str]) -> list[int]:
    listed = replica.problem.listed or [client.name for client in replica.problem.clients]
    by_name = steps_by_client(replica.algorithm.steps, listed)
    return [by_name[name] for name in names]
