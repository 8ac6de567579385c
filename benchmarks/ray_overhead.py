"""Measure what the Ray engine adds to a round: two clients with trivial work and the paper's 522,792 parameters.

    python benchmarks/ray_overhead.py [--rounds N] [--anew]

Each client's field is one subtraction, so that a round's time is the engine's cost. Four engines alternate every ten
rounds: in-process, Ray, Ray with messages through its object store (as between machines), and Ray with durable states.
The table is printed and appended to benchmarks/results/ray_overhead.json with the machine's load before and after,
because a single run says little about the spread. --anew discards earlier runs, for example after a change to the
engine. If others use the machine, the fastest tenth of the rounds says more about the engine than the median does.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from common import measured_on
from torch import Tensor

import fedmm
from fedmm.core.engine import Engine, FederatedState
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem, LocalReport, Statistics
from fedmm.engines.in_process import InProcess
from fedmm.remote.ray import Actors, ActorShare, RayEngine, ray_cluster

RESULTS = Path(__file__).parent / "results" / "ray_overhead.json"
PARAMETERS, CLIENTS, TURN = 522_792, 2, 10


@dataclass(frozen=True)
class Pulled:
    """A client whose field points away from its centre, z - centre."""

    name: str
    centre: float

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> Pulled:
        return self

    def field(self, z: Tensor, step: int) -> Tensor:
        return z - self.centre

    def close(self) -> LocalReport:
        return LocalReport()


def problem() -> FederatedProblem:
    layout = Layout({"omega": (PARAMETERS - 1000,)}, {"psi": (1000,)}, dtype=torch.float32)
    return FederatedProblem(layout, torch.zeros(PARAMETERS), [Pulled(f"client-{i}", float(i)) for i in range(CLIENTS)])


def share() -> ActorShare:
    return ActorShare(problem())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--anew", action="store_true")
    given = parser.parse_args()
    rounds: int = given.rounds
    torch.set_num_threads(1)
    load = os.getloadavg()
    algorithm, terms = fedmm.FedMM(0.1, 0.1, 1.0, 1.0, local_steps=1), Terms()
    names = [client.name for client in problem().clients]
    with ray_cluster(cores=3 * CLIENTS) as cluster, tempfile.TemporaryDirectory(dir=RESULTS.parent) as folder:
        began = time.perf_counter()
        actors = Actors(cluster, share, names)
        start_up = time.perf_counter() - began
        stored = Actors(cluster, share, names, shared_memory=False)
        durable = Actors(cluster, share, names, durable=(Path(folder), "run"))
        engines: dict[str, Engine] = {
            "in_process": InProcess(problem(), algorithm, rounds, terms),
            "ray": RayEngine(problem(), algorithm, rounds, actors, terms),
            "ray, object store": RayEngine(problem(), algorithm, rounds, stored, terms),
            "ray, durable states": RayEngine(problem(), algorithm, rounds, durable, terms),
        }
        times, states = in_turns(engines, rounds)
    points = [state.z for state in states.values()]
    assert all(torch.equal(points[0], other) for other in points[1:]), "the engines disagree"
    plain = times["in_process"]
    rows = [
        {
            "engine": name,
            "ms_per_round": statistics.median(each),
            "quartiles": statistics.quantiles(each, n=4)[::2],
            "overhead_ms": statistics.median(each) - statistics.median(plain),
            "fastest_tenth_ms": fastest_tenth(each),
            "overhead_of_fastest_tenth_ms": fastest_tenth(each) - fastest_tenth(plain),
        }
        for name, each in times.items()
    ]
    for row in rows:
        print(
            f"{row['engine']:22s} {row['ms_per_round']:7.2f} ms a round, {row['overhead_ms']:6.2f} ms of overhead; "
            f"fastest tenth {row['fastest_tenth_ms']:7.2f} and {row['overhead_of_fastest_tenth_ms']:6.2f} ms"
        )
    about = {
        **measured_on(f"python benchmarks/ray_overhead.py --rounds {rounds}", load[0]),
        "load_average_at_end": os.getloadavg()[0],
        "parameters": PARAMETERS,
        "clients": CLIENTS,
        "actors_ready_seconds": start_up,
    }
    before = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() and not given.anew else []
    RESULTS.write_text(json.dumps({"runs": [*before, {"about": about, "rows": rows}]}, indent=1) + "\n")


def fastest_tenth(times: list[float]) -> float:
    """Return the first decile."""
    return statistics.quantiles(times, n=10)[0]


def in_turns(engines: dict[str, Engine], rounds: int) -> tuple[dict[str, list[float]], dict[str, FederatedState]]:
    """Alternate between the engines; return milliseconds of each round but a turn's first, and the last states."""
    states = {name: engine.start() for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds // TURN):
        for name, engine in engines.items():
            for number in range(TURN):
                began = time.perf_counter()
                states[name], _ = engine.run_round(states[name])
                if number:
                    times[name].append(1e3 * (time.perf_counter() - began))
    return times, states


if __name__ == "__main__":
    main()
