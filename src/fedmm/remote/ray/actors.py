"""The actors of a run, each with its share of the clients."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedmm.core.errors import FedmmError, count_of, require
from fedmm.core.validation import at_least
from fedmm.remote.ray.actor import ActorSetup, Answer, Call, ClientActor, GivenState, ShareBuilder
from fedmm.remote.ray.cluster import Cluster
from fedmm.remote.ray.shared_memory import MemoryGone, Posted, SharedMemory, copy_arrays, read

_PAUSE_SECONDS = 0.2
"""Between two checks whether an actor is back."""

Submit = Callable[[Any], Any]
"""Calls an actor, and returns Ray's reference to the result."""

_PROBE = "is this memory read?"


def _as_it_is(reply: Any) -> Any:
    return reply


def _read_answers(reply: tuple[Posted, Posted]) -> dict[str, Answer]:
    answers, states = map(read, reply)
    return {name: answer._replace(kept=states[name]) for name, answer in answers.items()}


class Actors:
    """Processes that live until this object is closed; Ray restarts one that dies.

    names: of all clients, which are dealt to the actors in turn. number: of actors; 0 for one per core (or GPU), but no
    more than clients. gpus: each actor has its own GPU. durable: as in :class:`ActorSetup`.
    retries: how often a call to an actor that died is repeated before the run gives up. patience: seconds to wait for
    an actor that died, since after the loss of a node it may need room on another. shared_memory: on a single machine,
    send messages through memory that the actors share, instead of Ray's object store.
    """

    def __init__(
        self,
        cluster: Cluster,
        build: ShareBuilder,
        names: Collection[str],
        *,
        number: int = 0,
        gpus: bool = False,
        durable: tuple[Path, str] | None = None,
        retries: int = 3,
        patience: float = 600.0,
        shared_memory: bool = True,
    ) -> None:
        at_least("actors", number, 0)
        self._ray = cluster.ray
        self._losses = (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError, MemoryGone)
        self._shared: SharedMemory | None = None
        self.retries = retries
        self.patience = patience
        available, what = (cluster.gpus, "GPUs") if gpus else (cluster.cores, "cores")
        number = min(number or available, len(names))
        require(
            1 <= number <= available,
            f"{number or 1} actors need as many {what}, and Ray has {available}; ask for fewer actors",
        )
        shares = [sorted(names)[first::number] for first in range(number)]
        made = self._ray.remote(ClientActor).options(
            num_cpus=0 if gpus else 1,
            num_gpus=1 if gpus else 0,
            max_restarts=-1,
            max_task_retries=0,  # a lost node would use them up before Ray notices; calls are repeated here
            scheduling_strategy="SPREAD",
        )
        threads = torch.get_num_threads()
        self.handles = [made.remote(ActorSetup(build, share, threads, durable)) for share in shares]
        self._at = {name: number for number, share in enumerate(shares) for name in share}
        calls = [(at, lambda handle: handle.ready.remote()) for at in range(number)]
        for share, built in zip(shares, self._gather(calls), strict=True):
            missing = [name for name in share if name not in built]
            require(not missing, f"an actor was to build the client {missing[0]!r} and did not" if missing else "")
        if cluster.local and shared_memory:
            self._shared = self._try_shared_memory()

    def sent(self, message: Call) -> Any:
        """Put a message where all actors can read it; return what refers to it."""
        return self._shared.post(message)[0] if self._shared else self._ray.put(message)

    def load(self, states: Mapping[str, GivenState]) -> None:
        """Give clients the states to continue from."""

        def loading(names: list[str]) -> Submit:
            own = {name: states[name] for name in names}
            return lambda handle: handle.load.remote(own)

        self._gather([(at, loading(part)) for at, part in self._by_actor(states)])

    def work(self, call: Any, names: Iterable[str]) -> dict[str, Answer]:
        """Run a round for these clients from a call that was ``sent``; those that lost their states do not answer.

        States are copied if keeping them would keep more in memory: Ray's store or, if only some clients work, the rest
        of the message.
        """

        def working(own: list[str]) -> Submit:
            if self._shared:
                return lambda handle: handle.work_in_shared_memory.remote(call, own)
            return lambda handle: handle.work.remote(call, own)

        opened = _read_answers if self._shared else _as_it_is
        parts = self._gather([(at, working(part)) for at, part in self._by_actor(names)], opened)
        answers = {name: answer for part in parts for name, answer in part.items()}
        if self._shared and len(answers) == len(self._at):
            return answers
        return {name: answer._replace(kept=copy_arrays(answer.kept)) for name, answer in answers.items()}

    def close(self) -> None:
        """End the actors' processes."""
        for handle in self.handles:
            self._ray.kill(handle)
        if self._shared:
            self._shared.close()

    def _try_shared_memory(self) -> SharedMemory | None:
        """Return memory that this process and all actors can read from each other; None if the system has none."""
        if not hasattr(os, "memfd_create"):
            return None
        shared = SharedMemory()
        try:
            [posted] = shared.post(_PROBE)
            echoes = self._gather([(at, lambda handle: handle.echo.remote(posted)) for at in range(len(self.handles))])
            if all(echo and read(echo) == _PROBE for echo in echoes):
                return shared
        except (MemoryGone, OSError):
            pass
        shared.close()
        return None

    def _by_actor(self, names: Iterable[str]) -> list[tuple[int, list[str]]]:
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self._at[name], []).append(name)
        return list(parts.items())

    def _gather(self, calls: Sequence[tuple[int, Submit]], opened: Callable[[Any], Any] = _as_it_is) -> list[Any]:
        """Make calls all at once and return the results; repeat those lost with an actor or its node when it is back.

        opened: reads a reply's content.
        """
        results: dict[int, Any] = {}
        for deaths in range(self.retries + 1):
            left = [number for number in range(len(calls)) if number not in results]
            references = [calls[number][1](self.handles[calls[number][0]]) for number in left]
            try:
                results |= zip(left, map(opened, self._get(references)), strict=True)
                break
            except self._losses as problem:
                reason = _first_line(problem)
                if deaths == self.retries:
                    raise FedmmError(
                        f"an actor died {count_of(deaths + 1, 'time')} in one call, so the run cannot continue: "
                        f"{reason}"
                    ) from problem
            for number, reference in zip(left, references, strict=True):
                try:
                    results[number] = opened(self._get(reference))
                except self._losses:
                    self._wait_for(self.handles[calls[number][0]])
        return [results[number] for number in range(len(calls))]

    def _get(self, references: Any) -> Any:
        """Call ``ray.get``; raise a FedmmError of an actor with its message unchanged."""
        try:
            return self._ray.get(references)
        except self._ray.exceptions.RayTaskError as problem:
            if isinstance(problem.cause, FedmmError):
                raise FedmmError(str(problem.cause)) from None
            raise
        except self._ray.exceptions.ActorDiedError as problem:  # for good: its process could not start
            raise FedmmError(f"an actor cannot start: {_last_line(problem)}") from problem

    def _wait_for(self, handle: Any) -> None:
        """Wait until an actor that died is back, on the same node or another one."""
        deadline = time.monotonic() + self.patience
        while True:
            try:
                self._get(handle.ready.remote())
                return
            except self._ray.exceptions.RayActorError as problem:
                if time.monotonic() > deadline:
                    raise FedmmError(
                        f"an actor is not back after {self.patience:g} s; has Ray lost a node and no room on "
                        "another? With more nodes or fewer actors the run continues from its last checkpoint"
                    ) from problem
            time.sleep(_PAUSE_SECONDS)


def _first_line(problem: Exception) -> str:
    return next((line.strip() for line in str(problem).splitlines() if line.strip()), type(problem).__name__)


def _last_line(problem: Exception) -> str:
    return next((line.strip() for line in reversed(str(problem).splitlines()) if line.strip()), type(problem).__name__)
