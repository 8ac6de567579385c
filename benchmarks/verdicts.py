"""Count how often the rule on adapting is right: compare its verdicts with target labels on many shifts of three kinds.

    FEDMM_DATA=... OMP_NUM_THREADS=1 python benchmarks/verdicts.py
    FEDMM_DATA=... FEDMM_ADULT=... FEDMM_COMPAS=... FEDMM_GERMAN=... OMP_NUM_THREADS=1
        python benchmarks/verdicts.py --of-tuning

Scanned digits and two moons with the target rotated by several angles, and UCI heart disease (FEDMM_DATA/heart) with
each of the four hospitals as the target. For each: source only, FedAvgGDA and FedMM with DANN, and FedMM with CDAN,
three seeds, with the rates and local steps of benchmarks/label_shift.py and other options at their defaults. Target
labels serve only to measure accuracy; the rule never sees them. Adapting helped if the mean target accuracy over seeds
is higher than that of source only.

``--of-tuning`` takes the data sets on which ``fedmm tune`` was judged (benchmarks/tune_data.py, except those that need
a GPU) and compares the experiment as given there, this library's default, with source only, with the seeds used there.

Results go to separate parts of benchmarks/results/verdicts.json and are printed. `fedmm.core.signals.track_record`
contains the counts of both parts together.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from common import measured_on, seeds_and_rounds, typed_command
from label_shift import HOSPITALS, STEPS, Arrays, arrays_of, heart, measured_signals, train, train_all
from tune_data import DATA, GROUPS, tables_of

from fedmm.config.demos import DEMOS
from fedmm.config.schema import SOURCE_ONLY
from fedmm.core.signals.validators import BELIEVED, judge_adaptation
from fedmm.data import DomainPair, Moons
from fedmm.runs.build import DataCache
from fedmm.runs.evidence import shift_of_model
from fedmm.runs.tuning.candidates import ALWAYS, derive_candidates
from fedmm.training.adaptation import Adapted

RESULTS = Path(__file__).parent / "results" / "verdicts.json"
DIGITS, MOONS = (10, 20, 30, 45), (15, 30, 45, 60)
"""Angles in degrees."""
ON_A_GPU = ("MNIST-M", "Office-31")
"""Prefixes of the names of data sets that need a GPU."""
WORDS = {True: "supported", False: "not supported", None: "cannot be judged"}


def cases(folder: Path, rounds: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield names and experiments without objective and algorithm. Arrays are written to ``folder``."""
    for angle in DIGITS:
        data = {"name": "digits", "kind": "turned", "angle": float(angle), "validation_rows": 300}
        yield f"digits, {angle} degrees", _demo("digits", data, rounds)
    for angle in MOONS:
        file = folder / f"moons-{angle}.npz"
        np.savez(file, **_moons(angle))  # type: ignore[arg-type]
        yield f"moons, {angle} degrees", _demo("moons", {"name": "arrays", "file": str(file), "held_out": 0.3}, rounds)
    if "FEDMM_DATA" in os.environ:
        for target in HOSPITALS:
            rows = heart(Path(os.environ["FEDMM_DATA"]) / "heart", target)
            yield f"heart, {target}", arrays_of(folder / f"{target}.npz", rows, rounds)


def _demo(name: str, data: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Return a demo's experiment on other data."""
    tables = DEMOS[name]["tables"]
    return {**tables, "run": {**tables["run"], "rounds": rounds}, "data": data}


def _moons(angle: float) -> Arrays:
    """Return source and target rows of two moons, rotated by ``angle`` in the target."""
    pair = Moons(angle=float(angle), rows=500).load()
    parts = {"source": pair.source, "target": pair.target}
    return {f"{name}_{what}": getattr(rows, what).numpy() for name, rows in parts.items() for what in ("x", "y")}


def measure(tables: Mapping[str, Any], seeds: int) -> dict[str, Any]:
    """Train every method; return accuracies, signals, the estimated shift, and each verdict with the true gain."""
    return compare(*train(tables, STEPS, seeds))


def compare(found: Mapping[str, Sequence[Adapted]], pair: DomainPair) -> dict[str, Any]:
    """Return the same for trained models: by method, one per seed."""
    plain = found[SOURCE_ONLY]
    shift = shift_of_model(plain[0].predict_proba, pair)
    signals = {label: measured_signals(models) for label, models in found.items()}
    accuracy = {label: [float(m.history.last("target_accuracy") or 0.0) for m in ms] for label, ms in found.items()}
    methods: dict[str, Any] = {}
    for label, own in signals.items():
        methods[label] = {
            "target_accuracy": accuracy[label],
            "source_risk": list(own.source_risk),
            **{name: list(own.validators[name]) for name in BELIEVED},
        }
        if label != SOURCE_ONLY:
            verdict = judge_adaptation(signals[SOURCE_ONLY], own, shift)
            gain = fmean(accuracy[label]) - fmean(accuracy[SOURCE_ONLY])
            methods[label] |= {"supported": verdict.supported, "verdict": verdict.sentence, "gain": gain}
    estimate = None if shift is None else {"distance": shift.distance, "low": shift.low, "high": shift.high}
    return {"label_shift": estimate, "methods": methods}


def cases_of_tuning(folder: Path) -> Iterator[tuple[str, dict[str, Any], list[int]]]:
    """Yield the names of the tuning benchmark's data sets, their experiments, and their seeds."""
    for name in DATA:
        if not name.startswith(ON_A_GPU):
            first = 40 if name in GROUPS["confirming"] else 30
            yield name, tables_of(name, folder), list(range(first, first + 3))


def measure_as_given(tables: Mapping[str, Any], seeds: list[int]) -> dict[str, Any]:
    """Return the same for an experiment as given, and for source only."""
    candidates, rounds, cache = derive_candidates(tables), tables["run"]["rounds"], DataCache()
    runs = {"evaluate_every": rounds, "best_by": ""}
    given = [
        replace(candidate, run=replace(candidate.run, label=label, seed=seed, **runs))
        for label, candidate in ((label, candidates[label]) for label in ALWAYS)
        for seed in seeds
    ]
    return compare(train_all(given, cache), cache.pair(given[0], torch.device("cpu")))


def count(results: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Count how often each verdict was given, and how often adapting then helped."""
    found = {word: {"given": 0, "helped": 0} for word in WORDS.values()}
    for result in results.values():
        for own in result["methods"].values():
            if "gain" in own:
                counted = found[WORDS[own["supported"]]]
                counted["given"] += 1
                counted["helped"] += own["gain"] > 0
    return found


def table(results: dict[str, Any]) -> str:
    """Return a Markdown table with a line per target: source only, and every method's gain and verdict."""
    adapted = [label for label in next(iter(results.values()))["methods"] if label != SOURCE_ONLY]
    lines = [f"| target | {SOURCE_ONLY} | {' | '.join(adapted)} |", "|---" * (2 + len(adapted)) + "|"]
    for name, result in results.items():
        methods = result["methods"]
        cells = [f"{100 * methods[label]['gain']:+.1f}, {WORDS[methods[label]['supported']]}" for label in adapted]
        lines.append(f"| {name} | {fmean(methods[SOURCE_ONLY]['target_accuracy']):.1%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = seeds_and_rounds(RESULTS)
    parser.add_argument("--of-tuning", action="store_true", help="the data sets on which fedmm tune was judged")
    options = parser.parse_args()
    load, began = os.getloadavg()[0], time.perf_counter()
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        listed: Iterable[tuple[str, Callable[[], dict[str, Any]]]] = (
            ((name, partial(measure_as_given, tables, seeds)) for name, tables, seeds in cases_of_tuning(Path(folder)))
            if options.of_tuning
            else (
                (name, partial(measure, tables, options.seeds)) for name, tables in cases(Path(folder), options.rounds)
            )
        )
        for name, run in listed:
            results[name] = run()
            sys.stderr.write(f"{name}: {time.perf_counter() - began:.0f} s\n")
    sys.stdout.write(f"{table(results)}\n{json.dumps(count(results))}\n")
    seconds = round(time.perf_counter() - began, 1)
    about = {**measured_on(typed_command(), load), "seeds": options.seeds, "seconds": seconds}
    content = {**about, "counts": count(results), "data": results}
    kept = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {}
    part = "of_tuning" if options.of_tuning else "of_methods"
    options.out.write_text(json.dumps({**kept, part: content}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
