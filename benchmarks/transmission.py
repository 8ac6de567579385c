"""Measure what compression and noise cost in target accuracy, with three seeds for each way to send updates.

    python benchmarks/transmission.py [--data digits|mnist_m] [--part PART|all] [--device DEVICE]
        [--precision fp32|tf32|bf16] [--quick]

bytes: one source and one target site, every compression. noise: ten sites of each kind, half of them per round, ten
local steps, and on the digits a smaller network; updates are clipped, without noise and with the noise that keeps an
epsilon (delta 1e-5) until the end if nobody is trusted. crowd: the same with a hundred sites of each kind. trusted and
trusted_crowd: the same two for a trusted server, with FedAvgGDA, because shared noise would not hide clients that keep
duals. The seeds of one way run as one stack. mnist_m needs its data (``fedmm data fetch mnist_m``) and is meant for a
GPU; noise needs dp-accounting. Results go to benchmarks/results/transmission_DATA.json after each part, and as a table
to the terminal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from common import processor, typed_command

from fedmm.config.schema import experiment
from fedmm.core.errors import FedmmError
from fedmm.models.devices import Precision
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings

FOLDER = Path(__file__).parent / "results"
SEEDS = (0, 1, 2)
Tables = dict[str, dict[str, Any]]

DATA: dict[str, Tables] = {
    "digits": {
        "data": {"name": "digits"},
        "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64], "centre": "none"},
        "algorithm": {
            "name": "fedmm_smoothed", "lr_min": 0.02, "lr_max": 0.02, "penalty_min": 0.5, "penalty_max": 0.5,
            "local_steps": 20, "smoothing_max": 0.5, "centre_rate": 0.2,
        },
    },
    "mnist_m": {
        "data": {"name": "mnist_m"},
        "model": {"name": "paper_cnn", "centre": "batch_mean"},
        "algorithm": {
            "name": "fedmm_smoothed", "lr_min": 0.01, "lr_max": 0.01, "penalty_min": 0.75, "penalty_max": 0.75,
            "local_steps": 20, "smoothing_max": 1.0, "centre_rate": 0.5, "dual_decay": 1 / 1.0005,
        },
    },
}  # fmt: skip
PARTS = ("bytes", "noise", "crowd", "trusted", "trusted_crowd")
ROUNDS = {"digits": {"bytes": 200, "others": 100}, "mnist_m": {"bytes": 600, "others": 300}}
NORM = {"digits": 0.1, "mnist_m": 0.5}
SITES = {"noise": 10, "crowd": 100, "trusted": 10, "trusted_crowd": 100}
EPSILONS = {"noise": (1000, 200), "crowd": (200,), "trusted": (1000, 200, 50), "trusted_crowd": (200, 50, 10)}
SMALLER: dict[str, Tables] = {
    "digits": {"model": {"hidden": [32], "adversary_hidden": [16]}, "algorithm": {"local_steps": 10}},
    "mnist_m": {"algorithm": {"local_steps": 10}},
}
"""Changes for noise, whose norm grows with the square root of the number of parameters."""
STATELESS: dict[str, Tables] = {
    "digits": {"algorithm": {"name": "fedavg_gda", "lr_min": 0.02, "lr_max": 0.02, "local_steps": 10}},
    "mnist_m": {"algorithm": {"name": "fedavg_gda", "lr_min": 0.01, "lr_max": 0.01, "local_steps": 10}},
}
"""The algorithm for a trusted server, instead of the data's own."""


def settings(data: str, part: str) -> Tables:
    """Return the tables that all ways of a part share."""
    tables = merged(DATA[data], SMALLER[data] if part in SITES else {})
    return {**tables, **(STATELESS[data] if part.startswith("trusted") else {})}


def ways(part: str, norm: float) -> Iterator[tuple[str, Tables]]:
    """Yield the names and tables of a part's ways."""
    if part == "bytes":
        yield "exact", {}
        for form in ("fp16", "int8"):
            yield f"uploads in {form}", {"run": {"uploads": form}}
            yield f"all in {form}", {"run": {"uploads": form, "broadcasts": form}}
        return
    sites = {"source_clients": SITES[part], "target_clients": SITES[part]}
    half: Tables = {"run": {"participation": 0.5}, "partition": {"name": "source_target", **sites}}
    yield "exact", half
    yield f"clipped to {norm:g}", {**half, "transmission": {"name": "clip", "norm": norm}}
    trust = "server" if part.startswith("trusted") else "nobody"
    for epsilon in EPSILONS[part]:
        noise = {"name": "gaussian", "norm_min": norm, "norm_max": norm, "trust": trust, "epsilon": epsilon}
        yield f"epsilon {epsilon}, {trust} trusted", {**half, "transmission": noise}


def merged(*tables: Tables) -> Tables:
    sections = {section for each in tables for section in each}
    return {section: {k: v for each in tables for k, v in each.get(section, {}).items()} for section in sections}


def measured(
    tables: Tables, seeds: tuple[int, ...], cache: DataCache, *, looped: bool, precision: Precision
) -> dict[str, Any]:
    """Run the seeds of one way as a stack; return accuracies and traffic. epsilon: becomes the noise that keeps it."""
    noise = dict(tables.get("transmission", {}))
    wanted = noise.pop("epsilon", None)
    if wanted is not None:
        known = merged({s: t for s, t in tables.items() if s != "transmission"}, {"transmission": noise})
        account = prepare(experiment(known), cache).account
        assert account is not None
        times = account.noise_for(wanted, known["run"]["rounds"])
        noise |= {"noise_min": times, "noise_max": times}
    tables = {**tables, **({"transmission": noise} if noise else {})}
    adaptations = [prepare(experiment(merged(tables, {"run": {"seed": seed}})), cache) for seed in seeds]
    capture = adaptations[0].function.layout.device.type == "cuda"
    began = time.perf_counter()
    stack = StackRun(adaptations, precision, StackSettings(looped=looped, capture=capture))
    status = stack.run(tables["run"]["rounds"], tables["run"]["evaluate_every"])
    ended = [stack.adapted(replica, status)[0].history for replica in range(len(seeds))]
    accuracies = [history.last("target_accuracy") or 0.0 for history in ended]
    return {
        "target_accuracy": accuracies,
        "mean": statistics.mean(accuracies),
        "spread": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
        "rounds": [len(history) for history in ended],
        "megabytes_up": ended[0].total("bytes_up") / 1e6,
        "megabytes_down": ended[0].total("bytes_down") / 1e6,
        "epsilon": ended[0].last("epsilon") if wanted is not None else None,
        "noise": noise.get("noise_min") if wanted is not None else None,
        "seconds": round(time.perf_counter() - began, 1),
    }


def table(part: str, found: dict[str, dict[str, Any]]) -> str:
    lines = [f"| {part} | target accuracy | MB up | MB down | noise |", "|---|---|---|---|---|"]
    for name, each in found.items():
        accuracy = f"{each['mean']:.1%} ± {each['spread']:.1%}"
        noise = "-" if each["noise"] is None else f"{each['noise']:.3g}"
        lines.append(f"| {name} | {accuracy} | {each['megabytes_up']:.1f} | {each['megabytes_down']:.1f} | {noise} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--data", choices=tuple(DATA), default="digits")
    arguments.add_argument("--part", choices=(*PARTS, "all"), default="all")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--seeds", type=int, default=len(SEEDS))
    arguments.add_argument("--precision", choices=("fp32", "tf32", "bf16"), default="fp32")
    arguments.add_argument("--looped", action="store_true", help="network by network, often faster on a CPU")
    arguments.add_argument("--quick", action="store_true", help="two rounds, nothing written")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    path = FOLDER / f"transmission_{options.data}.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    cuda = options.device.startswith("cuda")
    for part in PARTS if options.part == "all" else (options.part,):
        rounds = 2 if options.quick else ROUNDS[options.data]["others" if part in SITES else part]
        run = {"rounds": rounds, "evaluate_every": min(50, rounds), "probe_rows": 0, "device": options.device}
        found: dict[str, dict[str, Any]] = {}
        cache = DataCache()
        for name, way in ways(part, NORM[options.data]):
            try:
                tables = merged(settings(options.data, part), {"run": run}, way)
                seeds = tuple(range(options.seeds))
                found[name] = measured(tables, seeds, cache, looped=options.looped, precision=options.precision)
            except FedmmError as refusal:
                sys.stderr.write(f"{name}: {refusal}\n")
                continue
            sys.stderr.write(f"{name}: {found[name]['mean']:.1%} ({found[name]['seconds']} s)\n")
        sys.stdout.write(table(part, found))
        results[part] = {
            "command": typed_command(),
            "hardware": torch.cuda.get_device_name(options.device) if cuda else processor(),
            "torch": torch.__version__,
            "seeds": list(range(options.seeds)),
            "rounds": rounds,
            "precision": options.precision,
            "norm": NORM[options.data],
            "tables": settings(options.data, part),
            "ways": found,
        }
        if not options.quick:
            path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
