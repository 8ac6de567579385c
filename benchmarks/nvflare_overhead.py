"""Measure what NVFlare adds to a round: two clients with trivial work and the paper's 522,792 parameters.

    python benchmarks/nvflare_overhead.py [--rounds N]

The work is that of benchmarks/ray_overhead.py. The in-process engine, NVFlare's simulator and its proof of concept (the
latter two with durable states) run one after the other. The table is printed and written to
benchmarks/results/nvflare_overhead.json, with the machine's load at the start.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import measured_on
from ray_overhead import CLIENTS, PARAMETERS, problem
from torch import Tensor

import fedmm
from fedmm.core.engine import Engine
from fedmm.core.federation import Terms
from fedmm.engines.in_process import InProcess, workers
from fedmm.engines.server import Server
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.engine import AskingEngine
from fedmm.remote.nvflare import federation
from fedmm.remote.packed import Packed
from fedmm.remote.site import Site, answer_question

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "nvflare_overhead.json"
ALGORITHM = fedmm.FedMM(0.1, 0.1, 1.0, 1.0, local_steps=1)


def site(name: str, states: str, rounds: int) -> Callable[[str, Packed], Packed]:
    """Return the handler of a client, in one of NVFlare's processes."""
    torch.set_num_threads(1)
    each = workers(Server(problem(), ALGORITHM, rounds, Terms()))[name]
    here = Site(each, DurableMemory(state_folder(Path(states), "run", name)))
    return lambda kind, question: answer_question(here, each.layout, question)


def on_nvflare(place: str, rounds: int) -> tuple[float, list[float], Tensor]:
    """Return start-up seconds, milliseconds of each round after the first, and the server's last point."""
    names = [client.name for client in problem().clients]
    with tempfile.TemporaryDirectory(dir=RESULTS.parent) as states:
        began = time.perf_counter()
        arguments = {"states": states, "rounds": rounds}
        with federation(names, "nvflare_overhead:site", arguments, place=place) as ask:
            start_up = time.perf_counter() - began
            return start_up, *timed(AskingEngine(problem(), ALGORITHM, rounds, ask), rounds)


def timed(engine: Engine, rounds: int) -> tuple[list[float], Tensor]:
    state, times = engine.start(), []
    for _ in range(rounds):
        began = time.perf_counter()
        state, _ = engine.run_round(state)
        times.append(1e3 * (time.perf_counter() - began))
    return times[1:], state.z


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = str(HERE)
    load = os.getloadavg()
    plain = timed(InProcess(problem(), ALGORITHM, rounds), rounds)
    measured = {"in_process": (0.0, *plain)} | {
        f"nvflare {place}": on_nvflare(place, rounds) for place in ("simulator", "poc")
    }
    rows: list[dict[str, Any]] = []
    for name, (start_up, times, z) in measured.items():
        assert torch.equal(z, plain[1]), "the engines disagree"
        median, quartiles = statistics.median(times), statistics.quantiles(times, n=4)[::2]
        overhead = median - statistics.median(plain[0])
        rows.append({"engine": name, "start_up_seconds": start_up, "ms_per_round": median, "quartiles": quartiles})
        rows[-1]["overhead_ms"] = overhead
        print(f"{name:20s} {median:8.2f} ms a round, {overhead:8.2f} ms of overhead, start-up {start_up:5.1f} s")
    about = {
        **measured_on(f"python benchmarks/nvflare_overhead.py --rounds {rounds}", load[0]),
        "parameters": PARAMETERS,
        "clients": CLIENTS,
    }
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
