"""How the hyperparameters for Office-31 were chosen: on frozen features, by signals that need no target labels.

    FEDMM_DATA=... python benchmarks/choose_office31.py [--rounds 300] [--seeds 1] [--device cuda] [--out FILE]

The pre-trained MobileNetV2 looks at every picture once (centre crop); a bottleneck and the heads are trained on its
1,280 features for all six tasks. Each candidate is judged by the mean over the tasks of two signals: information
maximisation on the target's training inputs (higher is better) and the risk on held-out source pictures. The choice is
the highest information among the candidates whose source risk is at most RISK times that of source-only training.
Target labels play no part: accuracies are not measured here. Written to benchmarks/results/choose_office31.json.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from common import processor
from torch import Tensor

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.objective import Objective
from fedmm.data import DomainPair, Labelled
from fedmm.data.office31 import Office31
from fedmm.experiment.adapt import Adaptation
from fedmm.experiment.stack import StackRun, StackSettings
from fedmm.models import MLP, MobileNetV2

RESULTS = Path(__file__).parent / "results" / "choose_office31.json"
WEIGHTS = "mobilenetv2/mobilenet_v2_imagenet_keras.safetensors"
DOMAINS: tuple[Literal["amazon", "dslr", "webcam"], ...] = ("amazon", "dslr", "webcam")
TASKS = [(source, target) for source in DOMAINS for target in DOMAINS if source != target]
BOTTLENECK, BATCH = 256, 32
RISK = 1.5
TEXT_PSI = {"dann": 0.04, "cdan": 0.1, "mdd": 0.1}
TEXT_NU = {"dann": 0.25, "cdan": 0.25, "mdd": 0.1}


def frozen_features(pair: DomainPair, known: dict[bytes, Tensor], device: str) -> DomainPair:
    """The pair with each picture's 1,280 features in its place; ``known`` has those of pictures seen before."""
    parts = MobileNetV2(weights=WEIGHTS, normalise="half").features((3, 224, 224)).eval()
    network = torch.nn.Sequential(*[part for name, part in parts.named_children() if name in _UNTIL_FLAT]).to(device)

    def seen(rows: Labelled) -> Labelled:
        names = [hashlib.sha256(row.numpy().tobytes()).digest() for row in rows.x]
        new = [number for number, name in enumerate(names) if name not in known]
        for first in range(0, len(new), 64):
            numbers = new[first : first + 64]
            with torch.no_grad():
                features = network(pair.view.evaluate(rows.x[numbers]).to(device).float() / 255.0).cpu()
            known.update(zip((names[number] for number in numbers), features, strict=True))
        return Labelled(torch.stack([known[name] for name in names]), rows.y)

    target = seen(pair.target)
    assert pair.source_validation is not None
    held_out = seen(pair.source_validation)
    return DomainPair(seen(pair.source), target, held_out, target, pair.class_names, held_out)


_UNTIL_FLAT = ("normalise", "backbone", "pool", "flatten")


def tasks_of_features(cache: Path, device: str) -> dict[str, DomainPair]:
    """The six tasks, from a file where they were computed before."""
    pairs, known = {}, dict[bytes, Tensor]()
    for source, target in TASKS:
        name = f"{source[0]}_{target[0]}"
        path = cache / f"office31-features-{name}.pt"
        if path.exists():
            held = torch.load(path, weights_only=True)
        else:
            began = time.perf_counter()
            made = frozen_features(Office31(source=source, target=target).load(), known, device)
            held = {"source": made.source, "target": made.target, "held_out": made.source_validation}
            held = {key: tuple(value) for key, value in held.items() if value is not None}
            cache.mkdir(parents=True, exist_ok=True)
            torch.save(held, path)
            sys.stdout.write(f"features of {name}: {time.perf_counter() - began:.0f} s\n")
        rows = {key: Labelled(*value) for key, value in held.items()}
        names = tuple(map(str, range(31)))
        pairs[name] = DomainPair(
            rows["source"], rows["target"], rows["held_out"], rows["target"], names, rows["held_out"]
        )
    return pairs


def objective(name: str, nu: float) -> Objective:
    return {"dann": fedmm.DANN(nu), "cdan": fedmm.CDAN(nu), "mdd": fedmm.MDD(nu), "source_only": fedmm.SourceOnly()}[
        name
    ]


def candidates(name: str) -> dict[str, tuple[Objective, Algorithm]]:
    if name == "source_only":
        return {f"rate {lr}": (fedmm.SourceOnly(), fedmm.FedAvgGDA(lr, lr, local_steps=20)) for lr in (0.01, 0.05)}
    found: dict[str, tuple[Objective, Algorithm]] = {}
    for nu in (TEXT_NU[name], 2 * TEXT_NU[name], 4 * TEXT_NU[name]):
        for rates in ((0.01, TEXT_PSI[name]), (0.05, 0.05)):
            for rule in (fedmm.FedMM, fedmm.SmoothedFedMM):
                algorithm = rule(*rates, 1.0, 1.0, 1.0, 20)
                found[f"{rule.name} rates {rates[0]}, {rates[1]} nu {nu:g}"] = (objective(name, nu), algorithm)
    return found


def signals(
    pairs: dict[str, DomainPair], listed: dict[str, tuple[Objective, Algorithm]], seeds: int, rounds: int, device: str
) -> dict[str, dict[str, dict[str, Any]]]:
    """By candidate and task: what was measured after a third, two thirds and all of the rounds."""
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in listed}
    for task, pair in pairs.items():
        by_rule: dict[str, list[str]] = {}
        for name, (_, algorithm) in listed.items():
            by_rule.setdefault(algorithm.name, []).append(name)
        order = [name for names in by_rule.values() for name in names]
        adaptations = [
            _adaptation(pair, *listed[name], seed, rounds, device) for name in order for seed in range(seeds)
        ]
        rows: list[list[dict[str, Any]]] = [[] for _ in adaptations]

        def keep(replica: int, row: dict[str, Any], rows: list[list[dict[str, Any]]] = rows) -> None:
            rows[replica].append(row)

        stack = StackRun(adaptations, "fp32", StackSettings(capture=device != "cpu"), keep)
        stack.run(rounds, math.ceil(rounds / 3))
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


def _adaptation(
    pair: DomainPair, objective: Objective, algorithm: Algorithm, seed: int, rounds: int, device: str
) -> Adaptation:
    model = MLP(hidden=(BOTTLENECK,), adversary_hidden=(256,), centre="none")
    return Adaptation(
        [fedmm.Client(source=pair.source, name="source-1"), fedmm.Client(target=pair.target.x, name="target-1")],
        model.build((1280,), 31, seed),
        objective,
        replace(algorithm),
        rounds,
        validation=None,
        source_validation=pair.source_validation,
        probe_rows=10_000,
        batch_size=BATCH,
        seed=seed,
        device=device,
        dtype=torch.float32,
    )


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--rounds", type=int, default=300)
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
        "command": " ".join(["python", *sys.argv]),
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
        found = signals(pairs, candidates(name), options.seeds, options.rounds, options.device)
        result["candidates"][name] = found
        best: tuple[float, str, str] | None = None
        for candidate, by_task in found.items():
            for done in sorted({done for each in by_task.values() for done in each}, key=int):
                if any(done not in each for each in by_task.values()):
                    continue
                information = fmean(each[done]["target_information"] for each in by_task.values())
                risk = fmean(each[done]["source_risk"] for each in by_task.values())
                sys.stdout.write(f"{name:12s} {candidate:44s} {done:>4s} rounds: {information:.3f} {risk:.3f}\n")
                if name == "source_only":
                    allowed = min(allowed, RISK * risk)
                if risk <= allowed and (best is None or information > best[0]):
                    best = (information, candidate, done)
        result["chosen"][name] = best and {"candidate": best[1], "rounds": int(best[2])}
        sys.stdout.write(f"chosen for {name}: {result['chosen'][name]}\n")
        if not options.quick:
            options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
