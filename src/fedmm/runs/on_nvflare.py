"""Run an experiment with its clients in the processes of an NVFlare job; each is built there from the tables."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment, experiment
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import Engine
from fedmm.core.errors import require
from fedmm.data.datasets.per_site import PerSite
from fedmm.engines.in_process import workers
from fedmm.engines.messages import NEVER
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept
from fedmm.models.devices import precision
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.engine import AskingEngine
from fedmm.remote.evaluation import MetricRequest, SiteMetrics, measure_at_site
from fedmm.remote.packed import MEASURE, Ask, Packed
from fedmm.remote.site import Site, answer_question
from fedmm.runs.build import DataCache, prepare
from fedmm.training.adaptation import Adaptation
from fedmm.training.evaluators import OwnSums, metrics_by_client

_STATES = "clients"
"""The folder inside a run's folder for the clients' states."""

_LOG = logging.getLogger(__name__)
_DEPTH = 3  # rounds: resuming from the checkpoint before the last needs one more than two


def every_round_kept(planned: Experiment) -> Experiment:
    """Return the experiment with a checkpoint after every round, as recent as the states that the clients keep."""
    return replace(planned, run=replace(planned.run, checkpoint_every=1))


@contextmanager
def nvflare_engines(
    planned: Experiment, adaptation: Adaptation, folder: Path
) -> Iterator[Callable[[Algorithm], Engine]]:
    """Yield the engines of an experiment, by algorithm, all on the same NVFlare; end its processes at the end."""
    from fedmm.remote.nvflare import federation  # noqa: PLC0415 - an optional dependency

    require(
        adaptation.function.policy != "local",
        "batch_norm = 'local' keeps statistics with the clients, but predictions need them here; use 'averaged' or "
        "'frozen' with the engine 'nvflare'",
    )
    require(
        planned.guard.policy != "rollback",
        "guard.policy = 'rollback' goes back further than clients of the engine 'nvflare' keep states; use 'stop'",
    )
    arguments = {
        "tables": _resolve_paths(planned).tables(),
        "states": str(folder.resolve() / _STATES),
        "threads": torch.get_num_threads(),
    }
    names = sorted({*metrics_by_client(adaptation.evaluators), *(client.name for client in adaptation.problem.clients)})
    place = "poc" if planned.run.engine == "nvflare_poc" else "simulator"
    with federation(names, f"{__name__}:site", arguments, place=place) as ask:
        yield NVFlareEngines(adaptation, ask, max(planned.run.probe_rows, 1))


class NVFlareEngines:
    """Engines by algorithm, and the metrics of the server's model that clients measure on their own rows."""

    def __init__(self, adaptation: Adaptation, ask: Ask, most_rows: int) -> None:
        self._adaptation = adaptation
        self._ask = ask
        panel = MetricRequest(metrics_by_client(adaptation.evaluators), adaptation.function.classes, most_rows)
        self.measured = SiteMetrics(adaptation.problem, panel, ask, _LOG.info, _LOG.warning)

    def __call__(self, algorithm: Algorithm) -> AskingEngine:
        adaptation = self._adaptation
        return AskingEngine(adaptation.problem, algorithm, adaptation.rounds, self._ask, adaptation.terms)


def _resolve_paths(planned: Experiment) -> Experiment:
    """Return the experiment with absolute paths, since the processes of a job have other current folders."""

    def whole(part: Any) -> Any:
        if isinstance(part, PerSite):
            return PerSite(whole(part.of))

        def there(value: str) -> str:
            path = Path(value).expanduser()
            return str(path.absolute()) if path.name and path.exists() else value

        given = {option: getattr(part, option) for option in getattr(part, "paths", ())}
        return replace(
            part,
            **{
                option: {name: there(path) for name, path in value.items()}
                if isinstance(value, Mapping)
                else there(value)
                for option, value in given.items()
            },
        )

    return replace(planned, data=whole(planned.data), model=whole(planned.model))


def site(name: str, tables: Mapping[str, Any], states: str, threads: int) -> Callable[[str, Packed], Packed]:
    """Return the answers of a client in its process: it trains, with states on disk, and measures on its own rows."""
    torch.set_num_threads(threads)
    planned = experiment(tables)
    adaptation = prepare(planned, DataCache())
    problem, layout = adaptation.problem, adaptation.problem.layout
    server = Server(problem, planned.algorithm, adaptation.rounds, adaptation.terms)
    own = [evaluator.own_of(name) for evaluator in adaptation.evaluators if name in evaluator.held_by]
    sums = OwnSums(adaptation.function, own)
    working = workers(server)
    here: Site | None = None
    if name in working:  # without an adversary, a client without labels only measures and does not train
        memory = DurableMemory(state_folder(Path(states), "run", name), depth=_DEPTH, device=layout.device)
        if not memory.held:
            memory.remember(NEVER, Kept(server.first_own(), problem.statistics))
        here = Site(working[name], memory, problem.statistics)

    def answer(kind: str, question: Packed) -> Packed:
        with precision(planned.run.precision, layout.device):
            if kind == MEASURE:
                return measure_at_site(name, layout, problem.statistics, question, sums, _LOG.info)
            assert here is not None
            return answer_question(here, layout, question)

    return answer
