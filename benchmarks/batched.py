"""Compare the batched engine with a plain eager PyTorch loop, in the same run.

    python benchmarks/batched.py [--device cuda|cpu] [--out FOLDER] [--quick]

On a GPU: the paper's network for MNIST-M (one run, and eight stacked) with DANN, CDAN and MDD, MobileNetV2 at 224
pixels, and 1,000 clients. On a CPU: the digits demo's network, six runs (three of them FedAvgGDA), 100 clients and
1,000. Rounds of 1,000 clients are measured with all and with 20 of them. Both sides train FedMM from the same weights
with the same batch size and precision; the eager loop holds its data as floats on the device. Results go to
FOLDER/batched_DEVICE.json (benchmarks/results by default) and to standard output.
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
from torch import Tensor, nn

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.objective import Objective
from fedmm.data import Digits
from fedmm.data.rows import TensorRows
from fedmm.models import MLP, MobileNetV2, Model, PaperCNN
from fedmm.models.devices import Precision, precision
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack
from fedmm.training.stack_settings import choose_settings, chunk_that_fits, torch_threads

MU, STEPS = 2.0, 20
ALL_AND_FEW = {1.0: "", 0.02: ", 20 a round,"}


@dataclass(frozen=True)
class Result:
    work: str
    engine: str
    ms_per_round: float
    eager_ms_per_round: float | None
    ratio: float | None
    precision: str
    runs: int
    setup_seconds: float
    how: str


@dataclass(frozen=True)
class Work:
    """What is trained: a model on source rows ``x[0]`` with labels ``y`` and target rows ``x[1]``, on the device."""

    model: Model
    objective: Objective
    x: Tensor
    y: Tensor
    batch: int
    lr: float = 0.01

    def adaptation(
        self, seed: int, algorithm: Algorithm | None = None, clients: int = 2, participation: float = 1.0
    ) -> Adaptation:
        parts = torch.arange(self.x.shape[1], device=self.x.device).chunk(clients // 2)
        return Adaptation(
            [fedmm.Client(source=TensorRows(self.x[0], self.y, index=p), name=f"s{i:04}") for i, p in enumerate(parts)]
            + [fedmm.Client(target=TensorRows(self.x[1], index=p), name=f"t{i:04}") for i, p in enumerate(parts)],
            self.model.build(tuple(self.x.shape[2:]), 10, seed),
            self.objective,
            algorithm or fedmm.FedMM(self.lr, self.lr, MU, MU, local_steps=STEPS),
            fedmm.TrainOptions(
                rounds=100_000, batch_size=self.batch, seed=seed, device=str(self.x.device), probe_rows=0
            ),
            terms=fedmm.Terms(participation=participation),
        )


def milliseconds(work: Callable[[], object], device: torch.device, times: int, repeats: int = 3) -> float:
    """Return milliseconds per call: the median over repeats of the mean of ``times`` calls, after a warm-up call."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    work()
    wait()
    measured = []
    for _ in range(repeats):
        began = time.perf_counter()
        for _ in range(times):
            work()
        wait()
        measured.append(1e3 * (time.perf_counter() - began) / times)
    return statistics.median(measured)


def eager(work: Work, chosen: Precision, times: int) -> float:
    """Return the plain loop's milliseconds per round."""
    adaptation = work.adaptation(0)
    module = copy.deepcopy(adaptation.function.module)
    assert module.adversary is not None
    net = PlainNet(module.features, module.task_head, module.adversary, work.objective.name)  # type: ignore[arg-type]
    for parameter in net.parameters():
        parameter.grad = None
    net.train()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d) and adaptation.function.policy == "frozen":
            layer.eval()
    floats = [x.float() / 255.0 if x.dtype == torch.uint8 else x for x in work.x]
    mean = float(module.input_mean)
    server, clients = plain_start(net, [(floats[0] - mean, work.y), (floats[1] - mean, None)])

    def one_round() -> None:
        nonlocal server
        server = plain_fedmm_round(net, server, clients, lr=work.lr, mu=MU, steps=STEPS, batch=work.batch)

    with precision(chosen, work.x.device):
        return milliseconds(one_round, work.x.device, times)


def stacked(
    work: Work, runs: int, chosen: Precision, times: int, clients: int = 2, participation: float = 1.0
) -> tuple[float, float, str]:
    """Return milliseconds per round of the whole stack, seconds until its first round is done, and how it ran."""
    began = time.perf_counter()
    adaptations = [work.adaptation(seed, clients=clients, participation=participation) for seed in range(runs)]
    tuned = choose_settings(adaptations, chosen)
    engine, network = build_stack(adaptations, chosen, tuned.settings)
    built = time.perf_counter() - began
    float(engine.advance().sum())
    setup = time.perf_counter() - began
    how = "layer by layer" if network.layer_by_layer else "network by network"
    how += f", built in {built:.1f} s"
    if engine.chunk < clients:
        how += f", {engine.chunk} clients at once"
    return milliseconds(engine.advance, work.x.device, times), setup, how


def compare(
    name: str, work: Work, chosen: Precision, runs: tuple[int, ...], times: int, eager_times: int
) -> list[Result]:
    ours = [(count, *stacked(work, count, chosen, times)) for count in runs]
    theirs = eager(work, chosen, eager_times)
    results = []
    for count, total, setup, how in ours:
        label = name if count == 1 else f"{name}, {count} runs stacked (per run and round)"
        each = total / count
        results.append(Result(label, "batched", each, theirs, theirs / each, chosen, count, setup, how))
    return results


def gpu(quick: bool) -> list[Result]:
    device = torch.device("cuda")
    times, eager_times = (3, 1) if quick else (20, 3)
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (2, 60_000, 3, 28, 28), dtype=torch.uint8, generator=generator).to(device)
    y = torch.randint(10, (60_000,), generator=generator).to(device)
    results = []
    objectives: tuple[Objective, ...] = (fedmm.DANN(), fedmm.CDAN(), fedmm.MDD())
    for objective in objectives:
        name = f"MNIST-M network, {objective.name.upper()}, 2 clients x 20 steps, batch 64"
        work = Work(PaperCNN(), objective, x, y, 64)
        results += shown(compare(name, work, "tf32", (1, 8), times, eager_times))
        if objective.name == "dann":
            results += shown(compare(name, work, "fp32", (1, 8), times, eager_times))
    for share, some in ALL_AND_FEW.items():
        work = Work(PaperCNN(), fedmm.DANN(), x, y, 64)
        total, setup, how = stacked(work, 1, "tf32", 2, clients=1000, participation=share)
        name = f"MNIST-M network, DANN, 1,000 clients{some} x 20 steps"
        results += shown([Result(name, "batched", total, None, None, "tf32", 1, setup, how)])
    x = torch.randint(0, 256, (2, 512, 3, 224, 224), dtype=torch.uint8, generator=generator).to(device)
    for policy in ("frozen", "averaged"):
        work = Work(MobileNetV2(batch_norm=policy), fedmm.DANN(), x, y[:512], 32)
        name = f"MobileNetV2 at 224, DANN, BatchNorm {policy}, 2 clients x 20 steps, batch 32"
        results += shown(compare(name, work, "tf32", (1,), 1 if quick else 3, 1))
    return results


def cpu(quick: bool) -> list[Result]:
    times = 2 if quick else 10
    digits = Digits().load()
    x, y = torch.stack([digits.source.x, digits.target.x]), digits.source.y
    work = Work(MLP(), fedmm.DANN(), x, y, 64, lr=0.02)
    with torch_threads(1):
        one_thread = eager(work, "fp32", times)
    with torch_threads(2):
        theirs = min(one_thread, eager(work, "fp32", times))
    algorithms = [fedmm.FedAvgGDA(0.02, 0.02), fedmm.FedMM(0.02, 0.02, MU, MU)]
    began = time.perf_counter()
    adaptations = [work.adaptation(seed, algorithm) for algorithm in algorithms for seed in range(3)]
    tuned = choose_settings(adaptations, "fp32")
    setup = time.perf_counter() - began
    ours = side_by_side(tuned.settings, tuned.threads, tuned.processes, times)
    name = "digits MLP, DANN, FedAvgGDA + FedMM x 3 seeds, 2 clients x 20 steps (per run and round)"
    results = shown([Result(name, "batched", ours / 6, theirs, theirs / (ours / 6), "fp32", 6, setup, tuned.why)])
    rows = torch.rand(2, 20_000, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    many = Work(MLP(), fedmm.DANN(), rows, torch.randint(10, (20_000,)), 16, lr=0.02)
    for clients, share in ((100, 1.0), *((1000, each) for each in ALL_AND_FEW)):
        adaptation = many.adaptation(0, clients=clients, participation=share)
        settings = StackSettings(chunk=chunk_that_fits([adaptation], "fp32", StackSettings()))
        engine, _ = build_stack([adaptation], "fp32", settings)
        total = milliseconds(engine.advance, torch.device("cpu"), 1, 1 if quick else 3)
        name = f"digits MLP, DANN, {clients:,} clients{ALL_AND_FEW[share]} x 20 steps, batch 16"
        results += shown([Result(name, "batched", total, None, None, "fp32", 1, 0.0, f"{engine.chunk} at once")])
    return results


def side_by_side(settings: StackSettings, threads: int, processes: int, times: int) -> float:
    """Return the milliseconds per round of all six runs, distributed over parallel processes (the slowest counts)."""
    context = torch.multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(processes), context.Queue()
    workers = [
        context.Process(target=part_of_six, args=(number, processes, settings, threads, times, barrier, answers))
        for number in range(processes)
    ]
    for worker in workers:
        worker.start()
    slowest = max(answers.get() for _ in workers)
    for worker in workers:
        worker.join()
    return float(slowest)


def part_of_six(number: int, processes: int, settings: StackSettings, threads: int, times: int, barrier, answers):  # type: ignore[no-untyped-def]
    torch.set_num_threads(threads)
    digits = Digits().load()
    work = Work(MLP(), fedmm.DANN(), torch.stack([digits.source.x, digits.target.x]), digits.source.y, 64, lr=0.02)
    both = [fedmm.FedAvgGDA(0.02, 0.02), fedmm.FedMM(0.02, 0.02, MU, MU)]
    runs = [(algorithm, seed) for algorithm in both for seed in range(3)][number::processes]
    engine, _ = build_stack([work.adaptation(seed, algorithm) for algorithm, seed in runs], "fp32", settings)
    barrier.wait()
    answers.put(milliseconds(engine.advance, torch.device("cpu"), times))


def shown(results: list[Result]) -> list[Result]:
    for result in results:
        rival = "" if result.ratio is None else f", eager {result.eager_ms_per_round:.1f} ms, {result.ratio:.1f} times"
        line = f"{result.work} [{result.precision}]: {result.ms_per_round:.2f} ms{rival}"
        sys.stdout.write(f"{line}; set-up {result.setup_seconds:.1f} s; {result.how}\n")
        sys.stdout.flush()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--quick", action="store_true", help="fewer repeats, to see that it runs")
    options = parser.parse_args()
    results = (gpu if options.device == "cuda" else cpu)(options.quick)
    hardware = torch.cuda.get_device_name() if options.device == "cuda" else f"{processor()}, {os.cpu_count()} cores"
    common = {
        "hardware": hardware,
        "versions": {"fedmm": fedmm.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": f"python benchmarks/batched.py --device {options.device}",
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"batched_{options.device}.json"
    path.write_text(json.dumps([asdict(result) | common for result in results], indent=2) + "\n")
    sys.stdout.write(f"written to {path}\n")


if __name__ == "__main__":
    main()
