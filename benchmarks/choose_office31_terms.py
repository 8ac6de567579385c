"""Office-31 with a term on target rows: settings chosen without target labels, then confirmed on other seeds.

    FEDMM_DATA=... python benchmarks/choose_office31_terms.py choose [--seeds 10,11] [--with-term]
    FEDMM_DATA=... python benchmarks/choose_office31_terms.py confirm [--seeds 100,101,102] [--choice FILE]
        [--objectives dann,mdd,cdan,alone] [--rounds 200] [--device cuda] [--precision tf32] [--out FILE] [--quick]
    python benchmarks/choose_office31_terms.py table

Frozen features, network, batches and local steps are those of choose_office31.py. The rule, written before any run:

1. Algorithm, rates and nu are chosen without the term, since the term raises the very signals that judge. As in
   choose_office31.py the choice is the highest information on the target among the candidates whose risk on held-out
   source pictures is at most RISK times that of source-only training, both means over tasks and seeds at the end.
   FedMM (plain, smoothed, ascent, restrained with penalties 1 and 2), FedAvgGDA and centralised training choose apart,
   from the same trade-offs and rates.
2. The term is fixed beforehand and the same for all: minimum class confusion with its authors' temperature of 2.5 and
   weight of 1. Unlike the other terms it does not ask for equally frequent classes, which Office-31 does not have.

With ``--with-term`` point 1 is another rule, written after the first was confirmed and had chosen badly for FedMM: all
candidates, and source-only training, have the term while they are judged, as they will when they are used. Its choice
is for seeds that the first has not seen (200, 201, 202).

``choose`` makes such a choice from more candidates than choose_office31.py; it computes no target accuracy. ``confirm``
runs a choice, by default that of choose_office31.py (seed 0; centralised training as FedAvgGDA), once on other seeds
and reads the accuracy of the last round; runs that its file already holds are not run again. The objective ``alone`` is
DANN's choice with nu = 0: what the term does without an adversary. ``table`` prints what was confirmed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from choose_office31 import (
    BATCH,
    BOTTLENECK,
    PULL,
    RATE,
    RATES,
    RISK,
    STEPS,
    TEXT_NU,
    TEXT_PSI,
    objective,
    tasks_of_features,
)
from common import processor, typed_command

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.objective import Objective
from fedmm.data import DomainPair
from fedmm.models import MLP
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results"
OBJECTIVES = ("dann", "mdd", "cdan")
FAMILIES = ("fedmm", "fedavg_gda", "centralised")
TERM: dict[str, Any] = {"target_loss": "mcc", "target_weight": 1.0}
SIGNALS = ("target_information", "source_risk")


class Candidate(NamedTuple):
    """A setting, and among which others it is chosen."""

    family: str
    objective: Objective
    algorithm: Algorithm


class Planned(NamedTuple):
    """A run: of which candidate, with which seed."""

    label: str
    candidate: Candidate
    seed: int


def candidates(name: str) -> dict[str, Candidate]:
    """The settings of an objective, by a label that says all of them."""
    if name == "source_only":
        listed = [("fedavg_gda", fedmm.FedAvgGDA(lr, lr, local_steps=STEPS)) for lr in RATES]
        return {
            f"{family} rates {rule.lr_min}, {rule.lr_max}": Candidate(family, fedmm.SourceOnly(), rule)
            for family, rule in listed
        }
    found: dict[str, Candidate] = {}
    for nu in (TEXT_NU[name], 2 * TEXT_NU[name], 4 * TEXT_NU[name]):
        for rates in ((0.01, TEXT_PSI[name]), (0.05, 0.05), (0.1, 0.1)):
            averaging = fedmm.FedAvgGDA(*rates, local_steps=STEPS)
            rules: dict[str, Algorithm] = {
                "fedavg_gda": averaging,
                "centralised": averaging,
                "fedmm": fedmm.FedMM(*rates, 1.0, 1.0, 1.0, STEPS),
                "fedmm_smoothed": fedmm.SmoothedFedMM(
                    *rates, 1.0, 1.0, 1.0, STEPS, smoothing_max=PULL, centre_rate=RATE
                ),
                "fedmm_ascent": fedmm.AscentFedMM(*rates, 1.0, 1.0, 1.0, STEPS),
                **{
                    f"fedmm_restrained penalties {mu:g}": fedmm.RestrainedFedMM(*rates, mu, mu, 1.0, STEPS)
                    for mu in (1.0, 2.0)
                },
            }
            for method, rule in rules.items():
                label = f"{method} rates {rates[0]}, {rates[1]} nu {nu:g}"
                played = objective(name, nu)
                found[label] = Candidate(
                    method if rule is averaging else "fedmm", played.restrain() if rule.restrains else played, rule
                )
    return found


def with_term(candidate: Candidate) -> Candidate:
    """The candidate with the term on target rows; source-only training has it as DANN whose adversary does nothing."""
    played = candidate.objective if candidate.objective.adapts else objective("dann", 0.0)
    return candidate._replace(objective=replace(played, **TERM))


def adaptation(
    pair: DomainPair, candidate: Candidate, seed: int, options: argparse.Namespace, probe_rows: int = 0, **rows: Any
) -> Adaptation:
    """A run, prepared. probe_rows, rows: what is measured while it trains; by default nothing is."""
    clients = [fedmm.Client(source=pair.source, name="source-1"), fedmm.Client(target=pair.target.x, name="target-1")]
    if candidate.family == "centralised":
        clients = [fedmm.Client(source=pair.source, target=pair.target.x, name="all")]
    return Adaptation(
        clients,
        MLP(hidden=(BOTTLENECK,), adversary_hidden=(256,), centre="none").build((1280,), 31, seed),
        candidate.objective,
        candidate.algorithm,
        fedmm.TrainOptions(
            rounds=options.rounds,
            batch_size=BATCH,
            seed=seed,
            device=options.device,
            precision=options.precision,
            probe_rows=probe_rows,
            best_by="",
        ),
        **rows,
    )


def run_all(
    pair: DomainPair, listed: list[Planned], options: argparse.Namespace, *, accuracy: bool
) -> Iterator[tuple[Planned, dict[str, Any]]]:
    """What was measured of each run in its last round; runs that can share a program do."""
    groups: dict[Any, list[Planned]] = {}
    for each in sorted(listed, key=lambda planned: planned.candidate.algorithm.name):
        alike = (each.candidate.objective.structure(), each.candidate.family == "centralised")
        groups.setdefault((*alike, each.label, each.seed) if options.device == "cpu" else alike, []).append(each)
    columns = (*SIGNALS, "target_accuracy") if accuracy else SIGNALS
    for group in groups.values():
        rows = {"source_validation": pair.source_validation, "validation": pair.target if accuracy else None}
        prepared = [adaptation(pair, each.candidate, each.seed, options, 10_000, **rows) for each in group]
        stack = StackRun(prepared, options.precision, StackSettings(capture=options.device != "cpu"))
        stack.run(options.rounds, options.rounds)
        for replica, each in enumerate(group):
            history = list(stack.histories[replica])
            ended = len(history) == options.rounds
            row = history[-1] if ended else {}
            yield each, {"status": "completed" if ended else "diverged", **{name: row.get(name) for name in columns}}


def judge(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """Mean information and source risk of a candidate's runs; a run that diverged makes them the worst."""
    if any(run["status"] != "completed" for run in runs):
        return -math.inf, math.inf
    information, risk = (fmean(run[name] for run in runs) for name in SIGNALS)
    return information, risk


def choose(pairs: dict[str, DomainPair], seeds: list[int], options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The choice for every objective, by the rule above, into ``result``."""

    def measured(listed: dict[str, Candidate]) -> dict[str, list[dict[str, Any]]]:
        if options.with_term:
            listed = {label: with_term(each) for label, each in listed.items()}
        runs: dict[str, list[dict[str, Any]]] = {label: [] for label in listed}
        for task, pair in pairs.items():
            planned = [Planned(label, each, seed) for label, each in listed.items() for seed in seeds]
            for each, row in run_all(pair, planned, options, accuracy=False):
                runs[each.label].append({"task": task, "seed": each.seed, **row})
            sys.stdout.write(f"{task}: {len(planned)} runs, {time.perf_counter() - options.began:.0f} s\n")
        return runs

    source_only = measured(candidates("source_only"))
    result["runs"]["source_only"] = source_only
    allowed = RISK * min(judge(runs)[1] for runs in source_only.values())
    for name in options.objectives.split(","):
        listed = candidates(name)
        runs = measured(listed)
        judged = {label: judge(each) for label, each in runs.items()}
        best: dict[str, str] = {}
        for family in FAMILIES:
            own = [label for label, each in listed.items() if each.family == family and judged[label][1] <= allowed]
            if own:
                best[family] = max(own, key=lambda label: judged[label][0])
        result["runs"][name] = runs
        result["chosen"][name] = best
        sys.stdout.write(f"{name}: {best}\n")
        write(result, options)


def confirm(
    pairs: dict[str, DomainPair], seeds: list[int], options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """The chosen settings on these seeds, seed by seed, with their target accuracies, into ``result``."""
    choice = json.loads(options.choice.read_text(encoding="utf-8"))
    runs: list[dict[str, Any]] = result["runs"]
    done = {(run["objective"], run["family"], run["task"], run["seed"]) for run in runs}
    at_once = [seeds] if options.device != "cpu" else [[seed] for seed in seeds]
    for some in at_once:
        for name in options.objectives.split(","):
            for task, pair in pairs.items():
                listed = [
                    Planned(label, played, seed)
                    for family, (label, played) in played_with_term(choice, name).items()
                    for seed in some
                    if (name, family, task, seed) not in done
                ]
                for each, row in run_all(pair, listed, options, accuracy=True):
                    run = {"objective": name, "family": each.candidate.family, "setting": each.label, "task": task}
                    runs.append({**run, "seed": each.seed, **row})
                    sys.stdout.write(f"{runs[-1]}\n")
                    write(result, options)


def table(runs: list[dict[str, Any]]) -> str:
    """Target accuracies of a confirmation: averages over the six tasks, mean and deviation over the seeds."""
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    heads = " | ".join(task.upper().replace("_", " -> ") for task in tasks)
    lines = [f"| objective | | setting | {heads} | average |", "|---|---|---|" + "---|" * (len(tasks) + 1)]
    named = {"fedmm": "FedMM", "fedavg_gda": "FedAvgGDA", "centralised": "centralised"}
    for game in dict.fromkeys(run["objective"] for run in runs):
        for family, name in named.items():
            own = [run for run in runs if (run["objective"], run["family"]) == (game, family)]
            by_task = [100 * fmean(run["target_accuracy"] for run in own if run["task"] == task) for task in tasks]
            seeds = sorted({run["seed"] for run in own})
            average = [100 * fmean(run["target_accuracy"] for run in own if run["seed"] == seed) for seed in seeds]
            setting = own[0]["setting"].removeprefix(f"{family} ")
            cells = " | ".join(f"{value:.1f}" for value in by_task)
            lines.append(
                f"| {game.upper()} | {name} | {setting} | {cells} | {fmean(average):.1f} ± {stdev(average):.1f} |"
            )
    return "\n".join(lines)


def chosen(choice: dict[str, Any], name: str) -> dict[str, str]:
    """The label of each family's choice; centralised training is FedAvgGDA's where it did not choose itself."""
    labels: dict[str, str] = dict(choice["chosen"][name])
    labels.setdefault("centralised", labels["fedavg_gda"].replace("fedavg_gda", "centralised"))
    return labels


def played_with_term(choice: dict[str, Any], name: str) -> dict[str, tuple[str, Candidate]]:
    """The choice of each family with its label; ``alone``: that of DANN, with nu = 0."""
    game = "dann" if name == "alone" else name
    known = candidates(game)
    found = {family: (label, with_term(known[label])) for family, label in chosen(choice, game).items()}
    if name == "alone":
        silent = replace(objective("dann", 0.0), **TERM)
        return {
            family: (f"{label[: label.rindex(' nu ')]} nu 0", candidate._replace(objective=silent))
            for family, (label, candidate) in found.items()
        }
    return found


def write(result: dict[str, Any], options: argparse.Namespace) -> None:
    result["seconds"] = round(time.perf_counter() - options.began, 1)
    if not options.quick:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("mode", choices=("choose", "confirm", "table"))
    arguments.add_argument("--seeds")
    arguments.add_argument("--objectives", default=",".join(OBJECTIVES))
    arguments.add_argument("--choice", type=Path, default=RESULTS / "choose_office31.json")
    arguments.add_argument("--with-term", action="store_true", help="candidates have the term while they are judged")
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--quick", action="store_true", help="two rounds of one task")
    options = arguments.parse_args()
    if options.mode == "table":
        confirmed = options.out or RESULTS / "confirm_office31_terms.json"
        print(table(json.loads(confirmed.read_text(encoding="utf-8"))["runs"]))
        return
    options.began = time.perf_counter()
    options.out = options.out or RESULTS / f"{options.mode}_office31_terms.json"
    confirms = options.mode == "confirm"
    seeds = [int(seed) for seed in (options.seeds or ("100,101,102" if confirms else "10,11")).split(",")]
    home = os.environ.get("FEDMM_CACHE") or Path.home() / ".cache" / "fedmm"
    pairs = tasks_of_features(Path(home), options.device)
    if options.quick:
        pairs, seeds, options.rounds = dict(list(pairs.items())[:1]), seeds[:1], 2
    result: dict[str, Any] = {
        "command": typed_command(),
        "rounds": options.rounds,
        "seeds": seeds,
        "hardware": torch.cuda.get_device_name() if options.device == "cuda" else processor(),
        "torch": torch.__version__,
        "precision": options.precision,
        "allowed_risk": RISK,
    }
    if confirms:
        before = json.loads(options.out.read_text(encoding="utf-8")) if options.out.exists() else {"runs": []}
        confirm(pairs, seeds, options, {**result, "runs": before["runs"]})
    else:
        choose(pairs, seeds, options, {**result, "chosen": {}, "runs": {}})


if __name__ == "__main__":
    main()
