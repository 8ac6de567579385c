"""The actors of a run, each with its share of the clients."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedmm.core.checks import at_least
from fedmm.core.errors import FedmmError, require
from fedmm.engines.ray.actor import Answer, Call, ClientActor, GivenState, Posting
from fedmm.engines.ray.cluster import Cluster
from fedmm.engines.ray.share import ShareBuilder


class Actors:
    """Processes that live as long as this object is not closed; Ray starts one that dies again.

    names: of all clients, which are dealt to the actors in turn. number: of actors; 0 for as many as there are cores
    (or GPUs), and clients. gpus: each has a GPU of its own. durable: as in :class:`Posting`.
    retries: how often a call is repeated on an actor whose process died, before the run gives up.
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
    ) -> None:
        at_least("actors", number, 0)
        self._ray = cluster.ray
        self.retries = retries
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
            max_task_retries=retries,
            scheduling_strategy="SPREAD",
        )
        threads = torch.get_num_threads()
        self.handles = [made.remote(Posting(build, share, threads, durable)) for share in shares]
        self._at = {name: number for number, share in enumerate(shares) for name in share}
        for share, built in zip(shares, self._gathered([each.ready.remote() for each in self.handles]), strict=True):
            missing = [name for name in share if name not in built]
            require(not missing, f"an actor was to build the client {missing[0]!r} and did not" if missing else "")

    def sent(self, message: Call) -> Any:
        """A message where all actors can read it."""
        return self._ray.put(message)

    def load(self, states: Mapping[str, GivenState]) -> None:
        """Give clients the states that they are to go on from."""
        calls = self._by_actor(states)
        self._gathered([self.handles[at].load.remote({name: states[name] for name in part}) for at, part in calls])

    def work(self, call: Any, names: Iterable[str]) -> dict[str, Answer]:
        """A round of these clients, from a call that was ``sent``; those that have lost their states do not answer."""
        parts = self._gathered([self.handles[at].work.remote(call, part) for at, part in self._by_actor(names)])
        return {name: answer for part in parts for name, answer in part.items()}

    def close(self) -> None:
        """End the actors' processes."""
        for handle in self.handles:
            self._ray.kill(handle)

    def _by_actor(self, names: Iterable[str]) -> list[tuple[int, list[str]]]:
        parts: dict[int, list[str]] = {}
        for name in names:
            parts.setdefault(self._at[name], []).append(name)
        return list(parts.items())

    def _gathered(self, references: list[Any]) -> list[Any]:
        """The results of calls; a sentence that is meant for the user reaches him as it was said there."""
        errors = self._ray.exceptions
        try:
            results: list[Any] = self._ray.get(references)
        except errors.RayTaskError as problem:
            if isinstance(problem.cause, FedmmError):
                raise FedmmError(str(problem.cause)) from None
            raise
        except errors.RayActorError as problem:
            said = [line.strip() for line in str(problem).splitlines() if line.strip()]
            if "creation task" in said[0]:
                raise FedmmError(f"an actor cannot begin: {said[-1]}") from problem
            raise FedmmError(
                f"an actor died {self.retries + 1} time(s) in one call, so the run cannot go on: {said[0]}"
            ) from problem
        return results
