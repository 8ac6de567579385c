"""Office-31 with a term on target rows: settings chosen as ``fedmm tune`` chooses, then confirmed on other seeds.

    FEDMM_CACHE=... python benchmarks/choose_office31_as_tune.py choose [--seeds 10,11]
    FEDMM_CACHE=... python benchmarks/choose_office31_as_tune.py confirm [--seeds 400,...,407]
        [--objectives dann,mdd,cdan,alone] [--rounds 200] [--device cuda] [--precision tf32] [--at-once GB] [--out FILE]
        [--quick]
    python benchmarks/choose_office31_as_tune.py table

The third rule for choosing these settings; the first two are those of choose_office31_terms.py, whose network, batches,
local steps and term are kept. It was written after their tables had been seen, and before any of its own runs:

1. A method is not held to penalties of 1 and rates up to 0.1. FedMM, plain or restrained with an averaged server's
   model, chooses from rates and penalties at which a round goes one, two or three times as far as (1/mu) F; FedAvgGDA
   from rates up to 0.2 and two server rates; centralised training from the same rates; all from the same trade-offs.
2. The code of ``fedmm tune`` judges: its vetoes, beside training with the term alone; then the half of a method's
   candidates whose predictions agree best, with those of near pictures or of another seed; of these the best mean rank
   of its validators, over six tasks and two seeds. No label of a target is looked at.

``choose`` computes no target accuracy. ``confirm`` runs the choice once on other seeds and reads the accuracy of the
last round; the objective ``alone`` is DANN's choice without an adversary. ``table`` prints what was confirmed. All
tasks of an objective run as one program, as many runs at once as fit.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from choose_office31 import STEPS, TEXT_NU, objective, tasks_of_features
from choose_office31_terms import FAMILIES, OBJECTIVES, Candidate, adaptation, table, with_term, write
from common import processor, typed_command
from torch import Tensor

import fedmm
from fedmm.config.schema import SOURCE_ONLY
from fedmm.core.algorithm import Algorithm
from fedmm.core.metrics import Information, NuclearNorm, Risk, Seen
from fedmm.core.signals.agreement import find_neighbours
from fedmm.data import DomainPair
from fedmm.runs.tuning.agreement import agreement_of
from fedmm.runs.tuning.ranking import (
    RANKED_BY,
    Measured,
    believed_agreement,
    find_vetoes,
    keep_agreeing,
    rank_candidates,
)
from fedmm.training.batched import StackRun, StackSettings

RESULTS = Path(__file__).parent / "results"
CLASSES = 31
NEAREST, MOST_ROWS = 5, 1000
STAGES = 4
"""A run is judged after each of so many equal parts, so that a collapse is seen."""
VECTORS = 16
"""About how many vectors like z a client of a run takes in memory."""


class Planned(NamedTuple):
    """A run: of which candidate, on which task, with which seed."""

    label: str
    candidate: Candidate
    task: str
    seed: int


def candidates(name: str) -> dict[str, Candidate]:
    """The settings of an objective, all with the term, by a label that says all of them."""
    found: dict[str, Candidate] = {}
    for nu in (TEXT_NU[name], 2 * TEXT_NU[name], 4 * TEXT_NU[name]):
        played = objective(name, nu)
        rules: list[tuple[str, Algorithm]] = []
        for rate, mu in ((0.05, 1.0), (0.1, 1.0), (0.1, 0.5), (0.2, 0.5), (0.1, 0.3)):
            rules.append(("fedmm", fedmm.FedMM(rate, rate, mu, mu, 1.0, STEPS)))
            rules.append(("fedmm", fedmm.RestrainedFedMM(rate, rate, mu, mu, 1.0, STEPS, average_rate=0.05)))
        for rate in (0.05, 0.1, 0.2):
            rules += [("fedavg_gda", fedmm.FedAvgGDA(rate, rate, STEPS, server_lr=far)) for far in (1.0, 2.0)]
            rules.append(("centralised", fedmm.FedAvgGDA(rate, rate, STEPS)))
        for family, rule in rules:
            given = played.restrain() if rule.restrains else played
            found[f"{describe(family, rule)} nu {nu:g}"] = with_term(Candidate(family, given, rule))
    return found


def describe(family: str, rule: Algorithm) -> str:
    """A rule in words."""
    if isinstance(rule, fedmm.FedAvgGDA):
        server = f" server rate {rule.server_lr:g}" if rule.server_lr != 1.0 else ""
        return f"{family} rate {rule.lr_min}{server}"
    assert isinstance(rule, fedmm.FedMM)
    return f"{rule.name} rate {rule.lr_min} penalty {rule.penalty_min}"


def term_alone() -> dict[str, Candidate]:
    """Training without an adversary, as which ``fedmm tune`` has source only."""
    return {SOURCE_ONLY: with_term(Candidate("alone", fedmm.SourceOnly(), fedmm.FedAvgGDA(0.1, 0.1, STEPS)))}


def run_all(
    pairs: dict[str, DomainPair], listed: Sequence[Planned], options: argparse.Namespace
) -> Iterator[tuple[Planned, list[tuple[Tensor, Tensor]]]]:
    """The logits of the target's and of the held-out source rows after every stage; fewer of a run that diverged."""
    groups: dict[Any, list[Planned]] = {}
    for each in sorted(listed, key=lambda planned: planned.candidate.algorithm.name):
        alike = (each.candidate.objective.structure(), each.candidate.family == "centralised")
        groups.setdefault(alike, []).append(each)
    for group in groups.values():
        size = adaptation(pairs[group[0].task], group[0].candidate, group[0].seed, options).function.layout.size
        most = max(1, int(options.at_once * 1e9 / (2 * VECTORS * 4 * size)))
        for first in range(0, len(group), most):
            some = group[first : first + most]
            stack = StackRun(
                [adaptation(pairs[each.task], each.candidate, each.seed, options) for each in some],
                options.precision,
                StackSettings(capture=options.device != "cpu"),
            )
            said: list[list[tuple[Tensor, Tensor]]] = [[] for _ in some]
            for stage in range(1, STAGES + 1):
                after = options.rounds * stage // STAGES
                status = stack.run(after, after)
                for replica, each in enumerate(some):
                    adapted, diverged = stack.adapted(replica, status)
                    if diverged is None:
                        pair = pairs[each.task]
                        assert pair.source_validation is not None
                        said[replica].append(
                            (adapted.logits(pair.target.x).cpu(), adapted.logits(pair.source_validation.x).cpu())
                        )
                sys.stdout.write(f"  {len(some)} runs, round {after}, {time.perf_counter() - options.began:.0f} s\n")
                sys.stdout.flush()
            del stack
            yield from zip(some, said, strict=True)


def measure(pair: DomainPair, said: Sequence[tuple[Tensor, Tensor]]) -> Measured:
    """What ``fedmm tune`` would read of a run."""
    if len(said) < STAGES:
        return Measured(diverged=True)
    assert pair.source_validation is not None
    target, held_out = (logits.double() for logits in said[-1])
    seen, told = Seen(target, torch.zeros(len(target), dtype=torch.int64)), Seen(held_out, pair.source_validation.y)
    signals = {
        name: float(metric.value(metric.sums(rows), len(rows.logits)))
        for name, metric, rows in (
            ("target_information", Information(), seen),
            ("target_bnm", NuclearNorm(), seen),
            ("source_risk", Risk(), told),
        )
    }
    return Measured(signals, max(_information(logits) for logits, _ in said))


def _information(logits: Tensor) -> float:
    seen = Seen(logits.double(), torch.zeros(len(logits), dtype=torch.int64))
    return float(Information().value(Information().sums(seen), len(logits)))


def choose(pairs: dict[str, DomainPair], seeds: list[int], options: argparse.Namespace, result: dict[str, Any]) -> None:
    """The choice for every objective, by the rule above, into ``result``."""
    spread = {
        task: torch.linspace(0, len(pair.target.x) - 1, min(len(pair.target.x), MOST_ROWS)).round().long()
        for task, pair in pairs.items()
    }
    near = {task: find_neighbours(pair.target.x[spread[task]], NEAREST) for task, pair in pairs.items()}

    def measured(listed: dict[str, Candidate]) -> tuple[dict[str, list[Measured]], dict[str, dict[str, float]]]:
        planned = [
            Planned(label, each, task, seed) for label, each in listed.items() for task in pairs for seed in seeds
        ]
        runs: dict[tuple[str, str, int], Measured] = {}
        predicted: dict[tuple[str, str], list[list[Tensor]]] = {}
        for each, said in run_all(pairs, planned, options):
            runs[each.label, each.task, each.seed] = measure(pairs[each.task], said)
            if len(said) == STAGES:
                own = said[-1][0].argmax(dim=-1)[spread[each.task]]
                predicted.setdefault((each.label, each.task), []).append([own])
        agreement: dict[str, dict[str, float]] = {}
        for label in listed:
            if all(len(predicted.get((label, task), [])) == len(seeds) for task in pairs):
                by_task = [agreement_of(predicted[label, task], [near[task]], CLASSES) for task in pairs]
                agreement[label] = {name: fmean(own[name] for own in by_task) for name in by_task[0]}
        return {label: [runs[label, task, seed] for task in pairs for seed in seeds] for label in listed}, agreement

    plain, _ = measured(term_alone())
    for name in options.objectives.split(","):
        listed = candidates(name)
        field, agreement = measured(listed)
        vetoes = find_vetoes({**plain, **field}, SOURCE_ONLY, CLASSES)
        best = {
            family: choose_of(
                [label for label, each in listed.items() if each.family == family], field, agreement, vetoes
            )
            for family in FAMILIES
        }
        result["chosen"][name] = best
        result["judged"][name] = {
            label: {
                **{signal: fmean(run.signals[signal] for run in own) for signal in RANKED_BY if label in agreement},
                **agreement.get(label, {}),
                "diverged": sum(run.diverged for run in own),
                "veto": vetoes.get(label, ""),
            }
            for label, own in field.items()
        }
        sys.stdout.write(f"{name}: {best}\n")
        write(result, options)


def choose_of(
    labels: Sequence[str],
    field: dict[str, list[Measured]],
    agreement: dict[str, dict[str, float]],
    vetoes: dict[str, str],
) -> str:
    """The choice of one method among its candidates, as ``fedmm tune`` makes it among finalists."""
    ruled_out = {label: why for label, why in vetoes.items() if label in labels}
    ranked = list(rank_candidates({label: field[label] for label in labels}, ruled_out))
    free = [label for label in ranked if label not in ruled_out]
    believed = believed_agreement(free, agreement)
    assert believed is not None
    return keep_agreeing(free, {label: agreement[label][believed] for label in free})[0]


def confirm(
    pairs: dict[str, DomainPair], seeds: list[int], options: argparse.Namespace, result: dict[str, Any]
) -> None:
    """The chosen settings on these seeds with their target accuracies, into ``result``."""
    choice = json.loads(options.choice.read_text(encoding="utf-8"))["chosen"]
    for name in options.objectives.split(","):
        listed = (
            without_adversary(choice)
            if name == "alone"
            else {each: candidates(name)[each] for each in choice[name].values()}
        )
        planned = [
            Planned(label, each, task, seed) for label, each in listed.items() for task in pairs for seed in seeds
        ]
        for each, said in run_all(pairs, planned, options):
            ended = len(said) == STAGES
            hits = said[-1][0].argmax(dim=-1) == pairs[each.task].target.y if said else torch.zeros(1)
            run = {"objective": name, "family": each.candidate.family, "setting": each.label, "task": each.task}
            status = "completed" if ended else "diverged"
            result["runs"].append(
                {**run, "seed": each.seed, "status": status, "target_accuracy": float(hits.double().mean())}
            )
        write(result, options)


def leads(runs: list[dict[str, Any]]) -> str:
    """By how many points FedMM's averages over the tasks differ from the others' of the same seed."""
    lines = [
        "| objective | FedMM less FedAvgGDA | of the first three seeds | FedMM less centralised |",
        "|---|---|---|---|",
    ]
    for name in dict.fromkeys(run["objective"] for run in runs):
        by_family: dict[str, dict[int, list[float]]] = {family: {} for family in FAMILIES}
        for run in runs:
            if run["objective"] == name:
                by_family[run["family"]].setdefault(run["seed"], []).append(100 * run["target_accuracy"])
        ours, averaging, centralised = ([fmean(own) for own in each.values()] for each in by_family.values())
        ahead, beyond = ([a - b for a, b in zip(ours, other, strict=True)] for other in (averaging, centralised))
        cells = (f"{fmean(each):+.2f} ± {stdev(each) / len(each) ** 0.5:.2f}" for each in (ahead, beyond))
        lines.append(f"| {name.upper()} | {next(cells)} | {fmean(ahead[:3]):+.2f} | {next(cells)} |")
    return "\n".join(lines)


def without_adversary(choice: dict[str, dict[str, str]]) -> dict[str, Candidate]:
    """What was chosen for DANN, with nu = 0."""
    found = {}
    for label in choice["dann"].values():
        played = candidates("dann")[label]
        silent = replace(played.objective, nu=0.0)
        found[f"{label[: label.rindex(' nu ')]} nu 0"] = played._replace(objective=silent)
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("mode", choices=("choose", "confirm", "table"))
    arguments.add_argument("--seeds")
    arguments.add_argument("--objectives", default=",".join(OBJECTIVES))
    arguments.add_argument("--choice", type=Path, default=RESULTS / "choose_office31_as_tune.json")
    arguments.add_argument("--rounds", type=int, default=200)
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--precision", default="fp32")
    arguments.add_argument("--at-once", type=float, default=60.0, help="GB that the runs of one program may take")
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--quick", action="store_true", help="four rounds of two tasks, not written")
    options = arguments.parse_args()
    options.out = (
        options.out or RESULTS / f"{'choose' if options.mode == 'choose' else 'confirm'}_office31_as_tune.json"
    )
    if options.mode == "table":
        runs = json.loads(options.out.read_text(encoding="utf-8"))["runs"]
        print(f"{table(runs)}\n\n{leads(runs)}")
        return
    options.began = time.perf_counter()
    seeds = [
        int(seed)
        for seed in (
            options.seeds or ("10,11" if options.mode == "choose" else "400,401,402,403,404,405,406,407")
        ).split(",")
    ]
    home = os.environ.get("FEDMM_CACHE") or Path.home() / ".cache" / "fedmm"
    pairs = tasks_of_features(Path(home), options.device)
    if options.quick:
        pairs, options.rounds = {task: pairs[task] for task in list(pairs)[:2]}, STAGES
    result: dict[str, Any] = {
        "command": typed_command(),
        "rounds": options.rounds,
        "seeds": seeds,
        "hardware": torch.cuda.get_device_name() if options.device == "cuda" else processor(),
        "torch": torch.__version__,
        "precision": options.precision,
    }
    if options.mode == "choose":
        choose(pairs, seeds, options, {**result, "chosen": {}, "judged": {}})
    else:
        confirm(pairs, seeds, options, {**result, "runs": []})


if __name__ == "__main__":
    main()
