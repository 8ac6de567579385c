"""Show on the rotated digits, with three seeds, that plain FedMM collapses over many rounds and the smoothed does not.

    python benchmarks/collapse.py [--rounds 2000] [--quick]

Learning rate 0.02, penalty 0.5, 20 local steps: the settings of the demo, which stops after 300 rounds. Every 100
rounds: the run's own metrics, and the share of units in the last hidden layers of features and adversary that are
active for at least one training row. Results go to benchmarks/results/collapse.json, and as a table to the terminal.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from common import processor, typed_command
from torch import Tensor, nn

from fedmm.config.schema import Experiment, experiment
from fedmm.runs.build import DataCache, prepare
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "collapse.json"
RATES = {"lr_min": 0.02, "lr_max": 0.02, "penalty_min": 0.5, "penalty_max": 0.5, "local_steps": 20}
ALGORITHMS: dict[str, dict[str, float]] = {"fedmm": {}, "fedmm_smoothed": {"smoothing_max": 0.5, "centre_rate": 0.2}}
SEEDS = (0, 1, 2)
RECORDED = ("target_accuracy", "task_loss", "domain_loss", "dual_norm")
SHOWN = (100, 200, 300, 400, 1000, 2000)


def candidate(algorithm: str, seed: int, rounds: int) -> Experiment:
    return experiment(
        {
            "run": {"rounds": rounds, "seed": seed, "evaluate_every": min(100, rounds), "probe_rows": 0, "threads": 1},
            "data": {"name": "digits"},
            "model": {"name": "mlp", "hidden": [128, 64], "adversary_hidden": [64]},
            "objective": {"name": "dann"},
            "algorithm": {"name": algorithm, **RATES, **ALGORITHMS[algorithm]},
        }
    )


@contextmanager
def units_on(adaptation: Adaptation) -> Iterator[dict[str, float]]:
    """Record, by part, the share of units of its last ReLU that are active for any row of the forward pass inside."""
    found: dict[str, float] = {}
    last = {path.split(".")[0]: m for path, m in adaptation.function.module.named_modules() if isinstance(m, nn.ReLU)}

    def watch(part: str) -> Any:
        def note(_: nn.Module, __: Any, out: Tensor) -> None:
            found[part] = float((out > 0).any(dim=0).float().mean())

        return note

    handles = [module.register_forward_hook(watch(part)) for part, module in last.items()]
    yield found
    for handle in handles:
        handle.remove()


def rows(adaptation: Adaptation) -> Tensor:
    """Return all training inputs of all clients."""
    held = [
        part
        for client_data in adaptation.client_data
        for part in (client_data.source, client_data.target)
        if part is not None
    ]
    return torch.cat([part.take(torch.arange(len(part))) for part in held])


def traced(rounds: int) -> list[dict[str, Any]]:
    """Return the trace of every run, with a point per evaluated round; a run that diverges ends early."""
    cache = DataCache()
    candidates = [candidate(algorithm, seed, rounds) for algorithm in ALGORITHMS for seed in SEEDS]
    adaptations = [prepare(each, cache) for each in candidates]
    stack = StackRun(adaptations, "fp32", StackSettings(looped=True))
    traces: list[dict[str, Any]] = [
        {"algorithm": each.algorithm.name, "seed": each.run.seed, "trace": []} for each in candidates
    ]
    every = candidates[0].run.evaluate_every
    while stack.engine.round < rounds:
        stack.run(min(rounds, stack.engine.round + every), every)
        for replica, adaptation in enumerate(adaptations):
            history = stack.histories[replica]
            if not history or history[-1]["round"] != stack.engine.round:
                continue
            with units_on(adaptation) as shares:
                adaptation.function.evaluate(stack.engine.z[replica], {}, rows(adaptation))
            known = {name: history[-1][name] for name in RECORDED}
            on = {f"{part}_on": share for part, share in shares.items() if part != "task_head"}
            traces[replica]["trace"].append({"round": stack.engine.round, **known, **on})
        sys.stderr.write(f"\rround {stack.engine.round} of {rounds}")
    sys.stderr.write("\n")
    return traces


def table(traces: list[dict[str, Any]]) -> str:
    """Return a Markdown table with a line per run and round in SHOWN."""
    heads = ["algorithm", "seed", "round", "target accuracy", "source loss", "domain loss", "dual norm"]
    heads += ["features on", "adversary on"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for trace in traces:
        for at in trace["trace"]:
            if at["round"] in SHOWN:
                measured = [f"{at[name]:.3g}" for name in (*RECORDED[1:], "features_on", "adversary_on")]
                cells = [trace["algorithm"], trace["seed"], at["round"], f"{at['target_accuracy']:.1%}", *measured]
                lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=2000)
    arguments.add_argument("--quick", action="store_true", help="a few rounds, nothing written")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    began = time.perf_counter()
    traces = traced(3 if options.quick else options.rounds)
    sys.stdout.write(table(traces))
    if not options.quick:
        result = {
            "command": typed_command(),
            "rates": RATES,
            "hardware": processor(),
            "torch": torch.__version__,
            "seconds": round(time.perf_counter() - began, 1),
            "runs": traces,
        }
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
