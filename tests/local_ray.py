"""The part of Ray that its engine uses, in one process: actors that die lose their state and are recreated."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from fedmm.remote.ray import Cluster


class Killed(BaseException):
    """Raised to kill an actor's process at any point."""


class Reference:
    """The result of a call, as bytes, or the exception that it raised."""

    def __init__(self, value: Any = None, problem: Exception | None = None) -> None:
        self._bytes, self._problem = pickle.dumps(value), problem

    def opened(self) -> Any:
        if self._problem is not None:
            raise self._problem
        return pickle.loads(self._bytes)


class Handle:
    """A handle of an actor, which is created from these arguments whenever it has to start."""

    def __init__(self, kind: type[Any], *given: Any) -> None:
        self._kind, self._given = kind, pickle.dumps(given)
        self.actor: Any = None
        self.dead = False

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *given: self._called(method, given))

    def _called(self, method: str, given: tuple[Any, ...]) -> Reference:
        if self.dead:
            self.dead, self.actor = False, None
            return Reference(problem=ray.exceptions.RayActorError())
        try:
            if self.actor is None:
                self.actor = self._kind(*pickle.loads(self._given))
            own = pickle.loads(pickle.dumps([each.opened() if isinstance(each, Reference) else each for each in given]))
            return Reference(getattr(self.actor, method)(*own))
        except Killed:
            self.actor = None
            return Reference(problem=ray.exceptions.RayActorError())
        except Exception as problem:
            return Reference(problem=ray.exceptions.RayTaskError(method, "", problem))


class LocalRay:
    """A substitute for the module ``ray``."""

    exceptions = ray.exceptions

    def remote(self, kind: type[Any]) -> Any:
        made = SimpleNamespace(remote=lambda *given: Handle(kind, *given))
        return SimpleNamespace(options=lambda **_: made)

    def put(self, value: Any) -> Reference:
        return Reference(value)

    def get(self, references: Any) -> Any:
        return [each.opened() for each in references] if isinstance(references, list) else references.opened()

    def kill(self, handle: Handle) -> None:
        handle.actor = None


@contextmanager
def local_cluster(*_: Any, **__: Any) -> Iterator[Cluster]:
    """Replace ``ray_cluster``; clients that kill their process kill their actor instead."""

    def die() -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ray_federation.die", die)
        yield Cluster(LocalRay(), cores=4, gpus=0, local=True)  # type: ignore[arg-type]
