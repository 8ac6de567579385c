"""Measure a deployed federation's seconds per round with 3 and 20 sites, on a durable and on an in-memory SuperLink.

    python benchmarks/deployment.py [--sites 3 20] [--rounds 20] [--out benchmarks/results/deployment.json]

Sites hold scanned digits and train the small network of ``fedmm deploy demo`` with ten local steps; the SuperLink uses
TLS and node authentication. Everything runs on one machine; up to four sites have a process each, more share processes.
Times are medians over the rounds after the first three, from the server's log; sites do not evaluate. The final state
is compared with that of a single process. ``--sites 100`` shows that 100 nodes, each with its own key, finish.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmm.algorithms import FedMM
from fedmm.config.schema import Experiment
from fedmm.data.partition import SourceTarget
from fedmm.deploy.federation import down, up
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.local import RUN, demo_experiment, local_sites, same_result
from fedmm.deploy.runs import follow, submit
from fedmm.sites.experiments import experiment_text

_ROUND = re.compile(
    r"round \d+: (?P<round>[\d.]+) s = Flower (?P<flower>[\d.]+) \+ start-up (?P<start_up>[\d.]+) \+ "
    r"training (?P<training>[\d.]+) \+ transfer (?P<transfer>[\d.]+)"
)
_ALONE, _TOGETHER, _WARM = 4, 10, 3


def experiment(sites: int, rounds: int) -> Experiment:
    """Return FedMM on digits, partitioned over half source and half target sites."""
    each = demo_experiment(rounds)
    algorithm = FedMM(lr_min=0.01, lr_max=0.01, local_steps=10, penalty_min=0.1, penalty_max=0.1)
    partition = SourceTarget(source_clients=sites - sites // 2, target_clients=sites // 2)
    run = replace(each.run, rounds=rounds, evaluate_every=rounds, probe_rows=0, batch_size=16, threads=1)
    return replace(each, run=run, algorithm=algorithm, partition=partition)


@contextmanager
def federation(each: Experiment, sites: int, *, in_memory: bool) -> Iterator[tuple[Federation, Path]]:
    """Run a federation in a temporary folder; yield it and the folder."""
    with tempfile.TemporaryDirectory() as folder:
        there = Federation(Path(folder) / "federation")
        try:
            to_a_process = 1 if sites <= _ALONE else _TOGETHER
            up(there, local_sites(each), in_memory=in_memory, to_a_process=to_a_process, say=lambda line: None)
            yield there, Path(folder)
        finally:
            down(there)


def measure(sites: int, rounds: int, *, in_memory: bool) -> dict[str, Any]:
    """Run one federation; return its median seconds per round, by part, and whether one process gives the same bits."""
    each = experiment(sites, rounds)
    began = time.perf_counter()
    with federation(each, sites, in_memory=in_memory) as (there, folder):
        request = RunRequest(there.folder, RUN, experiment_text(each), patience=300.0, enrol_seconds=300.0)
        number = submit(request, print)
        status = follow(there, RUN, number, lambda line: None)
        log = (there.run(RUN) / "server.log").read_text(encoding="utf-8")
        found = [match.groupdict() for match in _ROUND.finditer(log)][_WARM:]
        row: dict[str, Any] = {"sites": sites, "superlink": "in memory" if in_memory else "durable"}
        row |= {
            "status": status,
            "rounds": len(found),
            "bit_identical": same_result(each, there.run(RUN), folder / "one", print),
        }
    for key in found[0]:
        values = sorted(float(each[key]) for each in found)
        row[key] = round(statistics.median(values), 3)
        if key == "round":
            row["quartiles"] = [round(values[len(values) // 4], 3), round(values[3 * len(values) // 4], 3)]
    return {**row, "seconds_in_all": round(time.perf_counter() - began, 1), "load_average": os.getloadavg()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, nargs="+", default=[3, 20])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/deployment.json"))
    parser.add_argument("--superlink", choices=["durable", "memory"], nargs="+", default=["durable", "memory"])
    options = parser.parse_args()
    about = {"cores": os.cpu_count(), "machine": platform.machine()}
    rows: list[dict[str, Any]] = []
    if options.out.exists():
        rows = json.loads(options.out.read_text(encoding="utf-8")).get("rows", [])
    for sites in options.sites:
        for superlink in options.superlink:
            row = measure(sites, options.rounds, in_memory=superlink == "memory")
            print(row)
            rows = [each for each in rows if (each.get("sites"), each.get("superlink")) != (sites, row["superlink"])]
            rows.append(row)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
