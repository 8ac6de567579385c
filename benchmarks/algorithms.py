"""Compare the cost of each algorithm's round with FedAvgGDA's at equal local steps, and of four runs with their stack.

    python benchmarks/algorithms.py [--repeats N]

DANN on the scanned digits with one source and one target client, on one thread. An algorithm and FedAvgGDA alternate
round by round, and their CPU times are compared, so that other work on the machine affects both. The results go to
benchmarks/results/algorithms.json.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import measured_on, typed_command

import fedmm
from fedmm import ALGORITHMS
from fedmm.data import Digits
from fedmm.models import MLP
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack

RESULTS = Path(__file__).parent / "results" / "algorithms.json"
STEPS, RUNS = 20, 5
METHODS = ["fedmm", "scaffold_gda", "momentum_gda", "proximal_point", "extragradient", "sgda_plus", "fedsgda_m"]
FOUR = ["fedavg_gda", "fedmm", "scaffold_gda", "extragradient"]
Round = Callable[[], object]


def adaptation(name: str) -> Adaptation:
    digits = Digits().load()
    return Adaptation(
        [fedmm.Client(source=digits.source, name="source"), fedmm.Client(target=digits.target.x, name="target")],
        MLP().build(tuple(digits.target.x.shape[1:]), 10, seed=0),
        fedmm.DANN(),
        ALGORITHMS[name](0.01, 0.01, local_steps=STEPS),  # type: ignore[call-arg]
        fedmm.TrainOptions(rounds=100_000, probe_rows=0),
    )


def in_process(name: str) -> Round:
    engine = adaptation(name).engine
    state = engine.start()

    def one_round() -> None:
        nonlocal state
        state, _ = engine.run_round(state)

    return one_round


def batched(names: Sequence[str]) -> Round:
    stack, _ = build_stack([adaptation(name) for name in names], "fp32", StackSettings())
    return stack.advance


def seconds(work: Round) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(first: Sequence[Round], second: Round, repeats: int) -> dict[str, float]:
    """Return the time of ``second`` over the summed times of ``first``: median and range over runs."""
    each = []
    for _ in range(RUNS):
        turns = [(sum(map(seconds, first)), seconds(second)) for _ in range(repeats + 1)][1:]
        each.append(median(long for _, long in turns) / median(short for short, _ in turns))
    return {"times": round(median(each), 3), "least": round(min(each), 3), "most": round(max(each), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=15, help=f"rounds of each side in each of {RUNS} runs")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    about = measured_on(typed_command(), os.getloadavg()[0])
    rows: list[dict[str, Any]] = []
    for name in METHODS:
        rows.append({"algorithm": name, "engine": "in_process"})
        rows[-1] |= compare([in_process("fedavg_gda")], in_process(name), repeats)
        rows.append({"algorithm": name, "engine": "batched"})
        rows[-1] |= compare([batched(["fedavg_gda"])], batched([name]), repeats)
    alone = [batched([name]) for name in FOUR]
    rows.append({"algorithm": ", ".join(FOUR), "engine": "stacked", **compare(alone, batched(FOUR), repeats)})
    for row in rows:
        print(row)
    RESULTS.write_text(json.dumps({"about": about, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
