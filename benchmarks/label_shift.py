"""Test whether the rule on adapting holds under label shift, where the validators mislead.

    python benchmarks/label_shift.py
    FEDMM_DATA=... python benchmarks/label_shift.py

scikit-learn's breast cancer as two sites, 45 % malignant in the source and 70 % (or 45 %) in the target; with
FEDMM_DATA also UCI heart disease (FEDMM_DATA/heart), each of the four hospitals as the target in turn, 36 to 93 % of
the patients sick, missing values filled with the source's median. For each: source only, FedAvgGDA and FedMM with DANN,
and FedMM with CDAN, three seeds. Target labels serve only to measure accuracy; the rule never sees them.

Results go to benchmarks/results/label_shift.json and are printed as a table.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from common import measured_on, seeds_and_rounds, typed_command
from numpy.typing import NDArray

from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import groups
from fedmm.core.signals.validators import BELIEVED, Signals, judge_adaptation
from fedmm.data.domains import DomainPair
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.evidence import shift_of_model
from fedmm.training.adaptation import Adapted
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results" / "label_shift.json"
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
METHODS = {
    "source only": ("source_only", "fedavg_gda"),
    "FedAvgGDA, DANN": ("dann", "fedavg_gda"),
    "FedMM, DANN": ("dann", "fedmm"),
    "FedMM, CDAN": ("cdan", "fedmm"),
}
STEPS = {"local_steps": 5, "lr_min": 0.05, "lr_max": 0.05}
"""Options of every algorithm."""
Arrays = dict[str, NDArray[Any]]


def cancer(mix: tuple[float, float], seed: int = 0) -> Arrays:
    """Split the patients into halves and subsample them to these shares of malignant tumours (source, target)."""
    from sklearn.datasets import load_breast_cancer  # noqa: PLC0415 - slow to import

    data = load_breast_cancer()
    malignant = 1 - data.target
    halves = np.array_split(np.random.default_rng(seed).permutation(len(malignant)), 2)
    found: Arrays = {}
    for name, half, share in zip(("source", "target"), halves, mix, strict=True):
        sick, well = half[malignant[half] == 1], half[malignant[half] == 0]
        rows = min(int(len(sick) / share), int(len(well) / (1 - share)))
        chosen = np.concatenate([sick[: round(rows * share)], well[: rows - round(rows * share)]])
        found |= _domain(name, data.data[chosen], malignant[chosen], [name] * len(chosen))
    return found


def heart(folder: Path, target: str) -> Arrays:
    """Return one hospital as the target and the others as sources; each is a site."""
    tables = {name: np.genfromtxt(folder / f"processed.{name}.data", delimiter=",") for name in HOSPITALS}
    sources = [name for name in HOSPITALS if name != target]
    median = np.nanmedian(np.concatenate([tables[name][:, :13] for name in sources]), axis=0)
    found: Arrays = {}
    for domain, names in (("source", sources), ("target", [target])):
        rows = np.concatenate([tables[name] for name in names])
        x = np.where(np.isnan(rows[:, :13]), median, rows[:, :13])
        site = [name for name in names for _ in tables[name]]
        found |= _domain(domain, x, (rows[:, 13] > 0).astype(np.int64), site)
    return found


def _domain(name: str, x: NDArray[Any], y: NDArray[Any], site: Sequence[str]) -> Arrays:
    return {f"{name}_x": x.astype(np.float32), f"{name}_y": y, f"{name}_site": np.array(site)}


def arrays_of(file: Path, arrays: Arrays, rounds: int) -> dict[str, Any]:
    """Write the arrays to the file; return the experiment on them, without objective and algorithm."""
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return {
        "run": {"rounds": rounds},
        "data": {"name": "arrays", "file": str(file), "held_out": 0.3},
        "partition": {"name": "by_site"},
        "model": {"name": "mlp", "hidden": [32], "adversary_hidden": [32]},
    }


def train(
    tables: Mapping[str, Any], steps: Mapping[str, Any], seeds: int
) -> tuple[dict[str, list[Adapted]], DomainPair]:
    """Return every method's models, one per seed, and the data. steps: options of every algorithm."""
    rounds = tables["run"]["rounds"]
    given = [
        experiment(
            {
                **tables,
                "run": {**tables["run"], "evaluate_every": rounds, "seed": seed, "best_by": "", "label": label},
                "objective": {"name": objective},
                "algorithm": {"name": algorithm, **steps},
            }
        )
        for label, (objective, algorithm) in METHODS.items()
        for seed in range(seeds)
    ]
    cache = DataCache()
    return train_all(given, cache), cache.pair(given[0], torch.device("cpu"))


def train_all(given: Sequence[Experiment], cache: DataCache) -> dict[str, list[Adapted]]:
    """Train the experiments, stacking those of one shape; return their models by label, in the order given."""
    prepared = [prepare(each, cache) for each in given]
    found: dict[str, dict[int, Adapted]] = {each.label: {} for each in given}
    for group in groups(given, prepared):
        rounds = given[group.members[0]].run.rounds
        stack = StackRun([prepared[n] for n in group.members], given[0].run.precision, StackSettings())
        status = stack.run(rounds, rounds)
        for replica, number in enumerate(group.members):
            found[given[number].label][number] = stack.adapted(replica, status)[0]
    return {label: [models[number] for number in sorted(models)] for label, models in found.items()}


def measure(arrays: Arrays, seeds: int, rounds: int) -> dict[str, Any]:
    """Run all methods on one data set: accuracies, validators, the estimated shift, and the rule's verdicts."""
    with tempfile.TemporaryDirectory() as folder:
        tables = arrays_of(Path(folder) / "rows.npz", arrays, rounds)
        found, pair = train(tables, STEPS, seeds)
    plain = found["source only"][0]
    rows = pair.source_test
    shift = shift_of_model(plain.predict_proba, pair)
    assert shift is not None
    signals = {label: measured_signals(models) for label, models in found.items()}
    accuracies = {label: [float(m.history.last("target_accuracy") or 0.0) for m in ms] for label, ms in found.items()}
    verdicts = {
        label: judge_adaptation(signals["source only"], signals[label], shift) for label in METHODS if label in signals
    }
    return {
        "rows": {"source": len(pair.source.y), "held_out": len(rows.y), "target": len(pair.target.y)},
        "positive": {"source": float(pair.source.y.double().mean()), "target": float(pair.target.y.double().mean())},
        "estimate": {
            "positive": float(shift.target[1]), "distance": shift.distance, "low": shift.low, "high": shift.high,
            "reliable": shift.reliable, "sentence": shift.sentence(("healthy", "sick")),
        },
        "methods": {
            label: {
                "target_accuracy": accuracies[label],
                "source_risk": list(signals[label].source_risk),
                **{name: list(signals[label].validators[name]) for name in BELIEVED},
                "supported": verdicts[label].supported if label != "source only" else None,
                "verdict": verdicts[label].sentence if label != "source only" else "",
            }
            for label in METHODS
        },
    }  # fmt: skip


def measured_signals(models: Sequence[Adapted]) -> Signals:
    """Return the models' last signals, which use no target labels."""

    def column(name: str) -> list[float]:
        return [float(model.history.last(name) or 0.0) for model in models]

    return Signals({name: column(name) for name in BELIEVED}, column("source_risk"))


def table(results: dict[str, Any]) -> str:
    """Return the results as a Markdown table: means over seeds, and the range of target accuracies."""
    lines = [
        "| target (share of positives, source to target) | estimated | method | target accuracy | "
        "`target_information` | `source_risk` | supported |",
        "|---" * 7 + "|",
    ]
    for name, result in results.items():
        mix, shift = result["positive"], result["estimate"]
        data = f"{name} ({mix['source']:.0%} to {mix['target']:.0%})"
        estimate = f"{shift['positive']:.0%}, differs in {shift['low']:.0%} to {shift['high']:.0%}"
        for label, own in result["methods"].items():
            accuracy = own["target_accuracy"]
            believed = {None: "unclear" if own["verdict"] else "", True: "yes", False: "no"}[own["supported"]]
            lines.append(
                f"| {data} | {estimate} | {label} | {fmean(accuracy):.1%} ({min(accuracy):.1%} to {max(accuracy):.1%})"
                f" | {fmean(own['target_information']):.3f} | {fmean(own['source_risk']):.3f} | {believed} |"
            )
            data = estimate = ""
    return "\n".join(lines)


def main() -> None:
    options = seeds_and_rounds(RESULTS).parse_args()
    load, began = os.getloadavg()[0], time.perf_counter()
    given = {"breast cancer": cancer((0.45, 0.70)), "breast cancer, same mix": cancer((0.45, 0.45))}
    folder = Path(os.environ.get("FEDMM_DATA", "")) / "heart"
    if "FEDMM_DATA" in os.environ and folder.is_dir():
        given |= {f"heart, {target}": heart(folder, target) for target in HOSPITALS}
    results = {name: measure(arrays, options.seeds, options.rounds) for name, arrays in given.items()}
    sys.stdout.write(table(results) + "\n")
    seconds = round(time.perf_counter() - began, 1)
    about = {**measured_on(typed_command(), load), "seeds": options.seeds, "rounds": options.rounds, "seconds": seconds}
    options.out.write_text(json.dumps({**about, "data": results}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
