"""Measure one row of benchmarks/engines.py: some rounds of an experiment on one engine, in a separate process.

    python benchmarks/engine_rows.py ENGINE CLIENTS ROUNDS

The last line is JSON: seconds until the first round could start, and milliseconds of each round after the first.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment, experiment
from fedmm.core.engine import Engine
from fedmm.engines.batched import BatchedEngine
from fedmm.runs.build import DataCache, prepare
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack

HERE = Path(__file__).parent
Times = tuple[float, list[float]]
"""Start-up in seconds, and milliseconds of each round after the first."""


def work(clients: int, rounds: int, engine: str = "auto") -> Experiment:
    """Return FedMM with DANN on the scanned digits, partitioned over half source and half target clients."""
    return experiment(
        {
            "data": {"name": "digits"},
            "model": {"name": "mlp"},
            "partition": {"name": "source_target", "source_clients": clients // 2, "target_clients": clients // 2},
            "algorithm": {"name": "fedmm", "lr_min": 0.01, "lr_max": 0.01, "local_steps": 2},
            "run": {"rounds": rounds, "batch_size": 4, "engine": engine, "threads": 1, "probe_rows": 0},
        }
    )


@cache
def prepared(clients: int, rounds: int) -> Adaptation:
    """Build the adaptation once per process."""
    torch.set_num_threads(1)
    return prepare(work(clients, rounds), DataCache())


def _timed(engine: Engine, rounds: int, began: float) -> Times:
    start_up, times, state = time.perf_counter() - began, [], engine.start()
    for _ in range(rounds):
        before = time.perf_counter()
        state, _ = engine.run_round(state)
        times.append(1e3 * (time.perf_counter() - before))
    return start_up, times[1:]


def in_process(clients: int, rounds: int) -> Times:
    began = time.perf_counter()
    return _timed(prepared(clients, rounds).engine, rounds, began)


def batched(clients: int, rounds: int) -> Times:
    began = time.perf_counter()
    stack, _ = build_stack([prepared(clients, rounds)], "fp32", StackSettings())
    return _timed(BatchedEngine(stack), rounds, began)


def ray(clients: int, rounds: int) -> Times:
    from fedmm.runs.on_ray import ray_engines  # noqa: PLC0415 - an optional dependency

    began = time.perf_counter()
    adaptation = prepared(clients, rounds)
    with ray_engines(work(clients, rounds, "ray"), adaptation, Path()) as engines:
        return _timed(engines(adaptation.algorithm), rounds, began)


def ray_durable(clients: int, rounds: int) -> Times:

    from fedmm.runs.on_ray import ray_engines  # noqa: PLC0415 - an optional dependency

    began = time.perf_counter()
    adaptation, each = prepared(clients, rounds), work(clients, rounds, "ray")
    each = replace(each, run=replace(each.run, durable=True))
    with _folder() as folder, ray_engines(each, adaptation, folder) as engines:
        return _timed(engines(adaptation.algorithm), rounds, began)


def nvflare_simulator(clients: int, rounds: int, engine: str = "nvflare") -> Times:
    from fedmm.runs.on_nvflare import nvflare_engines  # noqa: PLC0415 - an optional dependency

    began = time.perf_counter()
    adaptation, each = prepared(clients, rounds), work(clients, rounds, engine)
    with _folder() as folder, nvflare_engines(each, adaptation, folder) as engines:
        return _timed(engines(adaptation.algorithm), rounds, began)


def nvflare_proof_of_concept(clients: int, rounds: int) -> Times:
    return nvflare_simulator(clients, rounds, "nvflare_poc")


# Flower ---------------------------------------------------------------------------------------------------------------


def flower_simulation(clients: int, rounds: int) -> Times:
    """Measure Flower's own simulation, which also runs on Ray and keeps client states on disk between messages."""
    os.environ["PYTHONPATH"] = str(HERE)
    from flwr.simulation import run_simulation  # noqa: PLC0415 - an optional dependency

    from fedmm.engines.server import Server  # noqa: PLC0415
    from fedmm.remote.flower.apps import Grid, client_app, server_app  # noqa: PLC0415
    from fedmm.remote.flower.engine import FlowerEngine, Patience  # noqa: PLC0415
    from fedmm.remote.flower.roster import Roster  # noqa: PLC0415
    from fedmm.remote.flower.strategy import MinimaxStrategy  # noqa: PLC0415

    began = time.perf_counter()
    measured: list[Times] = []

    def serve(grid: Grid, config: Mapping[str, Any]) -> None:
        a = prepared(clients, rounds)
        server = Server(a.problem, a.algorithm, a.rounds, a.terms)
        engine = FlowerEngine(MinimaxStrategy(server, Roster(server.names, ttl=600.0)), grid, Patience(pause=0.005))
        measured.append(_timed(engine, rounds, began))

    with _folder() as folder:
        app = client_app(_simulated_site(str(folder), clients, rounds))
        run_simulation(server_app(serve), app, clients, backend_config={"init_args": {"num_cpus": os.cpu_count() or 1}})
    return measured[0]


def _simulated_site(folder: str, clients: int, rounds: int) -> Callable[..., Any]:
    def site(node: Mapping[str, Any], run: Mapping[str, Any]) -> Any:
        from engine_rows import simulated_handler  # noqa: PLC0415 - in Flower's process, by name

        return simulated_handler(folder, clients, rounds, int(node["partition-id"]))

    return site


def simulated_handler(folder: str, clients: int, rounds: int, number: int) -> Callable[..., Any]:
    """Return the handler of one client, for whichever process the message arrives in."""
    from fedmm.engines.in_process import workers  # noqa: PLC0415
    from fedmm.engines.server import Server  # noqa: PLC0415
    from fedmm.remote.durable_store import DurableMemory, state_folder  # noqa: PLC0415
    from fedmm.remote.packed import INTRODUCE, NAME, Packed  # noqa: PLC0415
    from fedmm.remote.site import Site, answer_question  # noqa: PLC0415

    a = prepared(clients, rounds)
    server = Server(a.problem, a.algorithm, a.rounds, a.terms)
    name = server.names[number]

    def handler(kind: str, question: Packed) -> Packed:
        if kind == INTRODUCE:
            return Packed({}, {NAME: name}, {})
        memory = DurableMemory(state_folder(Path(folder), "run", name))
        return answer_question(Site(workers(server)[name], memory, a.problem.statistics), a.problem.layout, question)

    return handler


def flower_deployment(clients: int, rounds: int) -> Times:
    """Measure a SuperLink and one site process per client on this machine, with TLS and keys."""
    from fedmm.deploy.federation import down, up  # noqa: PLC0415
    from fedmm.deploy.layout import Federation, RunRequest  # noqa: PLC0415 - an optional dependency
    from fedmm.deploy.local import local_sites  # noqa: PLC0415
    from fedmm.deploy.runs import follow, submit  # noqa: PLC0415
    from fedmm.deploy.server import keep_every_round  # noqa: PLC0415
    from fedmm.sites.experiments import experiment_text  # noqa: PLC0415

    def said(line: str) -> None:
        print(line, file=sys.stderr)

    each = keep_every_round(work(clients, rounds))
    began = time.perf_counter()
    with _folder() as folder:
        federation = Federation(folder)
        try:
            small = {"min_batch_size": 1, "min_rows": 1}  # allows batches of four, which leave little but Flower's time
            sites = [replace(site, policy={**site.policy, **small}) for site in local_sites(each)]
            up(federation, sites, say=said)
            start_up = time.perf_counter() - began
            text = experiment_text(each)
            request = RunRequest(federation.folder, "run", text, patience=300.0, enrol_seconds=300.0)
            number = submit(request, said)
            status = follow(federation, "run", number, said)
            assert "completed" in status, status
        finally:
            down(federation)
        lines = (federation.run("run") / "rounds.jsonl").read_text().splitlines()
    return start_up, [1e3 * json.loads(line)["seconds"] for line in lines][1:]


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        yield Path(folder)


ENGINES: dict[str, Callable[[int, int], Times]] = {
    "in_process": in_process,
    "batched": batched,
    "ray": ray,
    "ray, durable states": ray_durable,
    "nvflare simulator": nvflare_simulator,
    "nvflare proof of concept": nvflare_proof_of_concept,
    "flower simulation": flower_simulation,
    "flower deployment": flower_deployment,
}

if __name__ == "__main__":
    start_up, times = ENGINES[sys.argv[1]](int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({"start_up_seconds": start_up, "ms": times}))
