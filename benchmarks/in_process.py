"""Compare the in-process engine's time per round with a plain PyTorch loop's, in the same run.

    python benchmarks/in_process.py [--repeats N]

Both sides train FedMM with DANN on one source-only and one target-only client from the same weights. They alternate
round by round, so that other work on the machine affects both. The table is printed and written to
benchmarks/results/in_process.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from common import processor
from plain_loop import PlainNet, plain_fedmm_round, plain_start

import fedmm
from fedmm.data import Digits
from fedmm.data.domains import Labelled
from fedmm.models import MLP, Model, PaperCNN
from fedmm.training.adaptation import Adaptation

RESULTS = Path(__file__).parent / "results" / "in_process.json"
LR, MU, STEPS, BATCH = 0.02, 1.0, 20, 64


@dataclass(frozen=True)
class Result:
    work: str
    engine: str
    ms_per_round: float
    eager_ms_per_round: float
    ratio: float
    repeats: int
    threads: int


def measure(work: str, model: Model, source: Labelled, target: torch.Tensor, repeats: int) -> Result:
    adaptation = Adaptation(
        [fedmm.Client(source=source, name="source"), fedmm.Client(target=target, name="target")],
        model.build(tuple(target.shape[1:]), 10, seed=0),
        fedmm.DANN(),
        fedmm.FedMM(LR, LR, MU, MU, local_steps=STEPS),
        fedmm.TrainOptions(rounds=10_000, batch_size=BATCH, probe_rows=0),
    )
    state = adaptation.engine.start()

    def ours() -> None:
        nonlocal state
        state, _ = adaptation.engine.run_round(state)

    module = copy.deepcopy(adaptation.function.module)
    assert module.adversary is not None
    net = PlainNet(module.features, module.task_head, module.adversary)
    mean = float(module.input_mean)
    server, clients = plain_start(net, [(source.x - mean, source.y), (target - mean, None)])

    def plain() -> None:
        nonlocal server
        server = plain_fedmm_round(net, server, clients, lr=LR, mu=MU, steps=STEPS, batch=BATCH)

    ours_ms, plain_ms = take_turns(ours, plain, repeats)
    return Result(work, "in_process", ours_ms, plain_ms, plain_ms / ours_ms, repeats, torch.get_num_threads())


def take_turns(first: Callable[[], None], second: Callable[[], None], repeats: int) -> tuple[float, float]:
    """Return the median milliseconds of each function, called in alternation, after two warm-up calls."""
    times: tuple[list[float], list[float]] = ([], [])
    for repeat in range(repeats + 2):
        for side, work in enumerate((first, second)):
            began = time.perf_counter()
            work()
            if repeat >= 2:
                times[side].append(1e3 * (time.perf_counter() - began))
    return statistics.median(times[0]), statistics.median(times[1])


def paper_data(rows: int = 2000) -> tuple[Labelled, torch.Tensor]:
    """Return random pictures of MNIST-M's shape, since a step's time does not depend on their content."""
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(2, rows, 3, 28, 28, generator=generator)
    return Labelled(x[0], torch.randint(10, (rows,), generator=generator)), x[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=30, help="rounds of each side (the paper's network: a quarter)")
    repeats = parser.parse_args().repeats
    digits = Digits().load()
    source, target = paper_data()
    results = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        work = "DANN, FedMM, 2 clients x 20 steps"
        results.append(measure(f"digits MLP, {work}", MLP(), digits.source, digits.target.x, repeats))
        results.append(measure(f"paper's network, {work}", PaperCNN(), source, target, max(3, repeats // 4)))
    common = {
        "hardware": f"{processor()}, {os.cpu_count()} cores",
        "versions": {"fedmm": fedmm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"python benchmarks/in_process.py --repeats {repeats}",
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps([asdict(result) | common for result in results], indent=2) + "\n")
    for result in results:
        sys.stdout.write(
            f"{result.work}, {result.threads} thread(s): {result.ms_per_round:.1f} ms a round, "
            f"plain loop {result.eager_ms_per_round:.1f} ms ({result.ratio:.2f} times as fast)\n"
        )
    sys.stdout.write(f"written to {RESULTS}\n")


if __name__ == "__main__":
    main()
