"""An experiment whose clients are in the processes of an NVFlare job; each builds its own from the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine
from fedmm.core.errors import require
from fedmm.core.memory import Kept
from fedmm.core.messages import NEVER
from fedmm.engines.asking import AskingEngine
from fedmm.engines.durable import DurableMemory, state_folder
from fedmm.engines.handling import answered
from fedmm.engines.in_process import workers
from fedmm.engines.messaging import Site
from fedmm.engines.packed import Packed
from fedmm.engines.server import Server
from fedmm.experiment.adapt import Adaptation
from fedmm.experiment.build import DataCache, prepare
from fedmm.experiment.config import Experiment, experiment
from fedmm.models.precision import precision

_STATES = "clients"
"""The folder in a run's folder where the clients' states lie."""

_DEPTH = 3  # rounds: a run that goes on from the checkpoint before its last needs one more than two


def every_round_kept(each: Experiment) -> Experiment:
    """The experiment with a checkpoint after every round: the clients' states stay with them, and are as recent."""
    return replace(each, run=replace(each.run, checkpoint_every=1))


@contextmanager
def nvflare_engines(each: Experiment, adaptation: Adaptation, folder: Path) -> Iterator[Callable[[Algorithm], Engine]]:
    """Engines for an experiment, by algorithm, all on the same NVFlare, whose processes are ended at the end."""
    from fedmm.engines.nvflare import federation  # noqa: PLC0415 - an optional dependency

    require(
        adaptation.function.policy != "local",
        "batch_norm = 'local' keeps statistics with the clients, where predictions need them here; use 'averaged' or "
        "'frozen' with the engine 'nvflare'",
    )
    require(
        each.guard.policy != "rollback",
        "guard.policy = 'rollback' goes back further than clients of the engine 'nvflare' keep states; use 'stop'",
    )
    arguments = {
        "tables": _seen_from_anywhere(each).tables(),
        "states": str(folder.resolve() / _STATES),
        "threads": torch.get_num_threads(),
    }
    names = [client.name for client in adaptation.problem.clients]
    place = "poc" if each.run.engine == "nvflare_poc" else "simulator"
    with federation(names, f"{__name__}:site", arguments, place=place) as ask:
        yield lambda algorithm: AskingEngine(adaptation.problem, algorithm, adaptation.rounds, ask, adaptation.terms)


def _seen_from_anywhere(each: Experiment) -> Experiment:
    """The experiment with whole paths: the processes of a job have other current folders."""

    def whole(part: Any) -> Any:
        given = {option: Path(getattr(part, option)).expanduser() for option in getattr(part, "paths", ())}
        return replace(
            part, **{option: str(path.absolute()) for option, path in given.items() if path.name and path.exists()}
        )

    return replace(each, data=whole(each.data), model=whole(each.model))


def site(name: str, tables: Mapping[str, Any], states: str, threads: int) -> Callable[[str, Packed], Packed]:
    """A client of an experiment in a process of its own: it answers invitations, and its states are on disk."""
    torch.set_num_threads(threads)
    each = experiment(tables)
    adaptation = prepare(each, DataCache())
    problem, layout = adaptation.problem, adaptation.problem.layout
    server = Server(problem, each.algorithm, adaptation.rounds, adaptation.terms)
    memory = DurableMemory(state_folder(Path(states), "run", name), depth=_DEPTH, device=layout.device)
    if not memory.held:
        memory.remember(NEVER, Kept(server.first_own(), problem.statistics))
    here = Site(workers(server)[name], memory, problem.statistics)

    def answer(kind: str, question: Packed) -> Packed:
        with precision(each.run.precision, layout.device):
            return answered(here, layout, question)

    return answer
