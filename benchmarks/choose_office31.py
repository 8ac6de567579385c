"""Choose the hyperparameters for Office-31 on frozen features, from signals that need no target labels.

    FEDMM_DATA=... python benchmarks/choose_office31.py [--rounds 200] [--seeds 1] [--device cuda] [--out FILE]

The pre-trained MobileNetV2 sees every picture once (centre crop); a bottleneck and the heads are trained on its 1,280
features for all six tasks. Each candidate is judged by two signals at the last round, averaged over the tasks:
information maximisation on the target's training inputs (higher is better) and the risk on held-out source pictures.
The choice has the highest information among the candidates whose source risk is at most RISK times the lowest of
source-only training; FedMM (plain or smoothed) and FedAvgGDA are chosen separately, from the same trade-offs and rates.
Accuracies are not read. Results go to benchmarks/results/choose_office31.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import torch
from common import processor, typed_command
from torch import Tensor

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.objective import Objective
from fedmm.data import DomainPair, Labelled
from fedmm.data.datasets.office31 import Office31
from fedmm.models import MLP, MobileNetV2
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "choose_office31.json"
WEIGHTS = "mobilenetv2/mobilenet_v2_imagenet_keras.safetensors"
DOMAINS: tuple[Literal["amazon", "dslr", "webcam"], ...] = ("amazon", "dslr", "webcam")
TASKS = [(source, target) for source in DOMAINS for target in DOMAINS if source != target]
BOTTLENECK, BATCH = 256, 32
RISK = 1.5
TEXT_PSI = {"dann": 0.04, "cdan": 0.1, "mdd": 0.1}
TEXT_NU = {"dann": 0.25, "cdan": 0.25, "mdd": 0.1}
RATES = (0.01, 0.05)
STEPS = 20
PULL, RATE = 1.0, 0.5  # the smoothing that benchmarks/choose_smoothing.py found on the digits


class Candidate(NamedTuple):
    """A setting; one is chosen within each family."""

    family: str
    objective: Objective
    algorithm: Algorithm


def look(pair: DomainPair, known: dict[bytes, Tensor], device: str) -> dict[str, tuple[Tensor, Tensor]]:
    """Return each part's positions in ``known``, and its labels; features of new pictures are added to ``known``."""
    parts = MobileNetV2(weights=WEIGHTS, normalise="half").features((3, 224, 224)).eval()
    network = torch.nn.Sequential(*[part for name, part in parts.named_children() if name in _UNTIL_FLAT]).to(device)

    def seen(rows: Labelled) -> tuple[Tensor, Tensor]:
        names = [hashlib.sha256(row.numpy().tobytes()).digest() for row in rows.x]
        new = [number for number, name in enumerate(names) if name not in known]
        for first in range(0, len(new), 64):
            numbers = new[first : first + 64]
            with torch.no_grad():
                features = network(pair.view.evaluate(rows.x[numbers]).to(device).float() / 255.0).cpu()
            known.update(zip((names[number] for number in numbers), features, strict=True))
        places = {name: place for place, name in enumerate(known)}
        return torch.tensor([places[name] for name in names]), rows.y

    assert pair.source_validation is not None
    return {"target": seen(pair.target), "held_out": seen(pair.source_validation), "source": seen(pair.source)}


_UNTIL_FLAT = ("normalise", "backbone", "pool", "flatten")


def tasks_of_features(cache: Path, device: str) -> dict[str, DomainPair]:
    """Return the six tasks on features, from a cached file of 22 MB if there is one; only making it needs pictures."""
    path = cache / "office31-features.pt"
    if not path.exists():
        known, tasks = dict[bytes, Tensor](), {}
        for source, target in TASKS:
            began, name = time.perf_counter(), f"{source[0]}_{target[0]}"
            tasks[name] = look(Office31(source=source, target=target).load(), known, device)
            sys.stdout.write(f"features of {name}: {time.perf_counter() - began:.0f} s\n")
        cache.mkdir(parents=True, exist_ok=True)
        torch.save({"features": torch.stack(list(known.values())), "tasks": tasks}, path)
    held = torch.load(path, weights_only=True)
    pairs, names = {}, tuple(map(str, range(31)))
    for name, parts in held["tasks"].items():
        rows = {part: Labelled(held["features"][numbers], y) for part, (numbers, y) in parts.items()}
        pairs[name] = DomainPair(
            rows["source"], rows["target"], rows["held_out"], rows["target"], names, rows["held_out"]
        )
    return pairs


def objective(name: str, nu: float) -> Objective:
    return {"dann": fedmm.DANN(nu), "cdan": fedmm.CDAN(nu), "mdd": fedmm.MDD(nu)}[name]


def candidates(name: str) -> dict[str, Candidate]:
    if name == "source_only":
        return {
            f"rate {lr}": Candidate("fedavg_gda", fedmm.SourceOnly(), fedmm.FedAvgGDA(lr, lr, local_steps=STEPS))
            for lr in RATES
        }
    found: dict[str, Candidate] = {}
    for nu in (TEXT_NU[name], 2 * TEXT_NU[name], 4 * TEXT_NU[name]):
        for rates in ((0.01, TEXT_PSI[name]), (0.05, 0.05)):
            rules: list[tuple[str, Algorithm]] = [
                ("fedavg_gda", fedmm.FedAvgGDA(*rates, local_steps=STEPS)),
                ("fedmm", fedmm.FedMM(*rates, 1.0, 1.0, 1.0, STEPS)),
                ("fedmm", fedmm.SmoothedFedMM(*rates, 1.0, 1.0, 1.0, STEPS, smoothing_max=PULL, centre_rate=RATE)),
            ]
            for family, rule in rules:
                found[f"{rule.name} rates {rates[0]}, {rates[1]} nu {nu:g}"] = Candidate(
                    family, objective(name, nu), rule
                )
    return found


def signals(
    pairs: dict[str, DomainPair], listed: dict[str, Candidate], seeds: int, rounds: int, device: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the signals after a third, two thirds and all of the rounds, by candidate and task."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in listed}
    for task, pair in pairs.items():
        by_rule: dict[str, list[str]] = {}
        for name, each in listed.items():
            by_rule.setdefault(each.algorithm.name, []).append(name)
        order = [name for names in by_rule.values() for name in names]
        adaptations = [_adaptation(pair, listed[name], seed, rounds, device) for name in order for seed in range(seeds)]
        stack = StackRun(adaptations, "fp32", StackSettings(capture=device != "cpu"))
        stack.run(rounds, math.ceil(rounds / 3))
        rows = [list(history) for history in stack.histories]
        for position, name in enumerate(order):
            own = rows[position * seeds : (position + 1) * seeds]
            found[name][task] = {
                str(done): {
                    measure: fmean(float(_at(each, done)[measure]) for each in own)
                    for measure in ("target_information", "source_risk")
                }
                for done in (math.ceil(rounds / 3), 2 * math.ceil(rounds / 3), rounds)
                if all(len(each) >= done for each in own)
            }
    return found


def _at(rows: list[dict[str, Any]], done: int) -> dict[str, Any]:
    return rows[done - 1]


def _adaptation(pair: DomainPair, candidate: Candidate, seed: int, rounds: int, device: str) -> Adaptation:
    model = MLP(hidden=(BOTTLENECK,), adversary_hidden=(256,), centre="none")
    return Adaptation(
        [fedmm.Client(source=pair.source, name="source-1"), fedmm.Client(target=pair.target.x, name="target-1")],
        model.build((1280,), 31, seed),
        candidate.objective,
        candidate.algorithm,
        fedmm.TrainOptions(rounds=rounds, batch_size=BATCH, seed=seed, device=device, probe_rows=10_000, best_by=""),
        source_validation=pair.source_validation,
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--seeds", type=int, default=1)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--out", type=Path, default=RESULTS)
    arguments.add_argument("--quick", action="store_true")
    options = arguments.parse_args()
    torch.set_num_threads(2)
    home = os.environ.get("FEDMM_CACHE") or Path.home() / ".cache" / "fedmm"
    pairs = tasks_of_features(Path(home), options.device)
    if options.quick:
        pairs = dict(list(pairs.items())[:1])
    result: dict[str, Any] = {
        "command": typed_command(),
        "rounds": options.rounds,
        "seeds": options.seeds,
        "hardware": torch.cuda.get_device_name() if options.device == "cuda" else processor(),
        "torch": torch.__version__,
        "allowed_risk": RISK,
        "candidates": {},
        "chosen": {},
    }
    allowed = math.inf
    for name in ("source_only", "dann", "cdan", "mdd"):
        listed = candidates(name)
        found = signals(pairs, listed, options.seeds, options.rounds, options.device)
        result["candidates"][name] = found
        best: dict[str, tuple[float, str]] = {}
        for label, by_task in found.items():
            last = [each.get(str(options.rounds)) for each in by_task.values()]
            if any(each is None for each in last):
                sys.stdout.write(f"{name:12s} {label:44s} ended early\n")
                continue
            information, risk = (
                fmean(each[measure] for each in last if each) for measure in ("target_information", "source_risk")
            )
            sys.stdout.write(f"{name:12s} {label:44s} {information:.3f} {risk:.3f}\n")
            if name == "source_only":
                allowed = min(allowed, RISK * risk)
            family = listed[label].family
            if risk <= allowed and (family not in best or information > best[family][0]):
                best[family] = (information, label)
        result["chosen"][name] = {family: label for family, (_, label) in best.items()}
        sys.stdout.write(f"chosen for {name}: {result['chosen'][name]}\n")
        if not options.quick:
            options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
