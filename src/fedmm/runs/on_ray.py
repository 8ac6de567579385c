"""Run an experiment with its clients in Ray actors, which build them from the experiment's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from fedmm.config.dataclass_io import Table
from fedmm.config.schema import Experiment, experiment
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine
from fedmm.core.federation import Terms
from fedmm.engines.batched import Batched
from fedmm.models.devices import Precision, precision
from fedmm.runs.build import DataCache, prepare
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack
from fedmm.training.guard import Guard
from fedmm.training.stack_settings import choose_settings

if TYPE_CHECKING:
    from fedmm.remote.ray import ActorShare

_STATES = "clients"
"""The folder inside a run's folder for the clients' durable states."""


@contextmanager
def ray_engines(
    experiment: Experiment, adaptation: Adaptation, folder: Path
) -> Iterator[Callable[[Algorithm], Engine]]:
    """Yield the engines of an experiment, by algorithm, all on the same actors; disconnect from Ray at the end."""
    from fedmm.remote.ray import Actors, RayEngine, ray_cluster  # noqa: PLC0415 - an optional dependency

    run, on_gpu = experiment.run, adaptation.function.layout.device.type == "cuda"
    names = [client.name for client in adaptation.problem.clients]
    with ray_cluster(run.ray_address, cores=run.actors) as cluster:
        shipped = (
            replace(experiment, run=replace(run, device="cuda")) if on_gpu else experiment
        )  # an actor sees only its own GPU
        actors = Actors(
            cluster,
            FromTables(shipped.tables(), run.stacked or on_gpu),
            names,
            number=run.actors,
            gpus=on_gpu,
            durable=(folder.resolve() / _STATES, "run") if run.durable else None,
        )
        try:
            yield lambda algorithm: RayEngine(
                adaptation.problem, algorithm, adaptation.rounds, actors, adaptation.terms
            )
        finally:
            actors.close()


@dataclass(frozen=True)
class FromTables:
    """Builds an experiment's clients in the process where they train. stacked: as one program per actor."""

    tables: dict[str, Table]
    stacked: bool = False

    def __call__(self) -> ActorShare:
        from fedmm.remote.ray import ActorShare  # noqa: PLC0415 - an optional dependency

        built = experiment(self.tables)
        adaptation = prepare(built, DataCache())
        around = partial(precision, built.run.precision, built.run.torch_device)
        stack = partial(_stack_clients, adaptation, built.run.precision) if self.stacked else None
        return ActorShare(adaptation.problem, stack, around)


def _stack_clients(
    adaptation: Adaptation, chosen: Precision, names: Collection[str], algorithm: Algorithm, rounds: int, terms: Terms
) -> Batched:
    """Stack some of an experiment's clients; the stack skips updates that are not finite, and checks nothing else."""
    share = copy(adaptation)
    clients = [client for client in adaptation.problem.clients if client.name in names]
    share.problem = replace(adaptation.problem, clients=clients)
    share.algorithm, share.rounds = algorithm, rounds
    share.terms = Terms(on_bad_update="skip", transmission=terms.transmission)
    share.guard = Guard()
    on_gpu = share.problem.layout.device.type == "cuda"
    settings = choose_settings([share], chosen).settings if on_gpu else StackSettings()
    return build_stack([share], chosen, settings)[0]
