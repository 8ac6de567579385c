"""A process that holds some of the clients and their states for a whole run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import torch

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.core.federation import Terms
from fedmm.core.problem import FederatedProblem
from fedmm.engines.batched import Batched
from fedmm.engines.in_process import workers
from fedmm.engines.messages import Invitation, Update
from fedmm.engines.server import Server, norms_of_duals
from fedmm.engines.worker import ClientMemory, Kept
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.ray.shared_memory import MemoryGone, Packed, Posted, SharedMemory, read, to_arrays, to_tensors
from fedmm.remote.site import Site


class Rules(NamedTuple):
    """What the clients' work depends on; a guard may change the algorithm's step sizes during a run."""

    algorithm: Algorithm
    rounds: int
    terms: Terms


class Call(NamedTuple):
    """One round for all clients that take part; invitations: packed, by name."""

    round: int
    rules: Rules
    invitations: Packed


class Answer(NamedTuple):
    """A client's update, the state that it keeps, and its dual's norm if it has a dual."""

    update: Update
    kept: Kept | None
    dual_norm: float | None


class GivenState(NamedTuple):
    """The state that a client continues from, and the round in which the server last counted it."""

    counted: int
    kept: Kept


@dataclass(frozen=True)
class ActorSetup:
    """Everything an actor needs to start, or to restart after its process died.

    names: its clients. threads: torch's, as many as the reference uses. durable: the folder where the clients' states
    are kept on disk, and the run's name there; None keeps them in memory only.
    """

    build: ShareBuilder
    names: Sequence[str]
    threads: int
    durable: tuple[Path, str] | None = None


class _Made(NamedTuple):
    """The clients under given rules: one by one, and as one program if they are stacked."""

    rules: Rules
    sites: dict[str, Site]
    stack: StackedClients | None


class ClientActor:
    """Works for its clients. A call that is repeated, by Ray or by us, gives the same answer and counts once.

    Each client's new state is stored beside the one that the server counted last, on disk if states are durable, before
    the answer is sent. The next call says which one was counted. A new process starts from what is on disk; a client
    without its state does not answer, and must be given one.
    """

    def __init__(self, setup: ActorSetup) -> None:
        self._setup = setup
        self._made: _Made | None = None
        self._shared = SharedMemory()

    def ready(self) -> list[str]:
        """Return the names of the clients, once they are built."""
        return list(self._memories)

    def load(self, states: Packed) -> None:
        """Replace the states of some clients: a ``GivenState`` by name."""
        given: dict[str, GivenState] = to_tensors(states, self._device, own=True)
        for name, state in given.items():
            memory = self._memories[name]
            for round_ in list(memory.held):
                memory.forget(round_)
            memory.remember(state.counted, state.kept)

    def echo(self, posted: Posted) -> Posted | None:
        """Post the same message back; None if this process cannot read the other's memory."""
        try:
            return self._shared.post(read(posted))[0]
        except (MemoryGone, OSError):
            return None

    def work_in_shared_memory(self, call: Posted, names: Sequence[str]) -> tuple[Posted, ...]:
        """Do ``work`` for a posted call; post the answers and, separately, the states in them."""
        answers: dict[str, Answer] = self.work(read(call), names)
        states = {name: answer.kept for name, answer in answers.items()}
        return self._shared.post({name: answer._replace(kept=None) for name, answer in answers.items()}, states)

    def work(self, call: Call, names: Sequence[str]) -> Packed:
        """Run a round for some of the clients; return an ``Answer`` by name for those whose state is present."""
        invitations: dict[str, Invitation] = {
            name: to_tensors(call.invitations[name], self._device)
            for name in names
            if self._memories[name].state_for(call.invitations[name].counted) is not None
        }
        with self._share.around():
            updates = self._updates(call.rules, invitations)
        kept = {name: self._memories[name].held[call.round] for name in updates}
        duals = norms_of_duals({name: each.own for name, each in kept.items()})
        return to_arrays({name: Answer(update, kept[name], duals.get(name)) for name, update in updates.items()})

    def _updates(self, rules: Rules, invitations: Mapping[str, Invitation]) -> dict[str, Update]:
        made = self._made_for(rules)
        if made.stack is None or not invitations:
            return {name: made.sites[name].answer(invitation) for name, invitation in invitations.items()}
        return made.stack.answers(invitations, self._memories)

    def _made_for(self, rules: Rules) -> _Made:
        if self._made is None or self._made.rules != rules:
            share, names = self._share, self._setup.names
            local_workers = workers(Server(share.problem, *rules))
            sites = {name: Site(local_workers[name], self._memories[name]) for name in names}
            stack = StackedClients(share.stack(names, *rules)) if share.stack and can_stack(rules.terms) else None
            self._made = _Made(rules, sites, stack)
        return self._made

    @property
    def _device(self) -> torch.device:
        return self._share.problem.layout.device

    @cached_property
    def _share(self) -> ActorShare:
        torch.set_num_threads(self._setup.threads)
        return self._setup.build()

    @cached_property
    def _memories(self) -> dict[str, ClientMemory]:
        built = {client.name for client in self._share.problem.clients}
        return {name: self._memory(name) for name in self._setup.names if name in built}

    def _memory(self, name: str) -> ClientMemory:
        if self._setup.durable is None:
            return ClientMemory()
        root, run = self._setup.durable
        say = logging.getLogger("fedmm").warning
        return DurableMemory(state_folder(root, run, name), device=self._device, say=say)


# An actor's clients ---------------------------------------------------------------------------------------------------

StackClients = Callable[[Collection[str], Algorithm, int, Terms], Batched]
"""Makes one program of the named clients, from the algorithm, the number of rounds, and the terms."""


@dataclass(frozen=True)
class ActorShare:
    """What an actor works on.

    problem: with all clients of the federation; the actor runs only its own.
    stack: makes one program of its clients; without it they run one after the other, as in the reference.
    around: a context for all work, for example to set a precision.
    """

    problem: FederatedProblem
    stack: StackClients | None = None
    around: Callable[[], AbstractContextManager[None]] = nullcontext


ShareBuilder = Callable[[], ActorShare]
"""Builds the clients and their data where they will work; Ray pickles it to send it there."""


def can_stack(terms: Terms) -> bool:
    """Return whether stacked clients support these terms; compressed vectors and noise are left to single clients."""
    return terms.uploads == terms.broadcasts == "exact" and not terms.transmission.private


class StackedClients:
    """Some clients in a stack of one replica, whose server's part is ignored.

    All of them work in every round; the results of those not invited are ignored.
    """

    def __init__(self, stack: Batched) -> None:
        self._stack = stack
        self._problem = stack.replicas[0].problem
        self._algorithm = stack.replicas[0].algorithm

    def answers(self, invitations: Mapping[str, Invitation], memories: Mapping[str, ClientMemory]) -> dict[str, Update]:
        """Return the updates of these clients, at least one; store each one's new state before anything is sent."""
        kept = {name: memories[name].held[invitation.counted] for name, invitation in invitations.items()}
        first = next(iter(invitations))
        shared = invitations[first].statistics
        states = {name: kept.get(name, kept[first]) for name in self._stack.clients.names[0]}
        self._stack.load(
            [
                FederatedState(
                    invitations[first].round,
                    {
                        **self._algorithm.init_server(invitations[first].sent["z"]),
                        **self._algorithm.init_per_client(len(states), invitations[first].sent["z"]),
                        **invitations[first].sent,
                    },
                    {name: state.own for name, state in states.items()},
                    shared or self._problem.statistics,
                    {name: state.statistics for name, state in states.items()},
                )
            ]
        )
        if invitations[first].importance is not None:
            given = {name: invitation.importance for name, invitation in invitations.items()}
            weights = [given.get(name, 1.0) for name in self._stack.clients.names[0]]
            layout = self._problem.layout
            self._stack.given_importance = torch.tensor([weights], dtype=layout.dtype, device=layout.device)
        self._stack.advance()
        worked = self._stack.worked(0)
        updates = {}
        for name, invitation in invitations.items():
            memories[name].remember(invitation.round, worked[name].kept)
            updates[name] = worked[name].answer(name, invitation)
        return updates
