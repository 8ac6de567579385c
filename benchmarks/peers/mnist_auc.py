"""The MNIST AUC setting of the public program federated-minimax: its methods and fedmm's side by side.

    python benchmarks/peers/mnist_auc.py --checkout PATH        its methods, fedmm's, and seconds a round of both
    python benchmarks/peers/mnist_auc.py --part table           write the tables of docs/peers.md

500 clients with 120 rows of label-sorted MNIST each, 0 against the other digits, LeNet, 12 local steps with batches of
10, AUC of the server's model on the test set every 10 rounds. The program draws how many clients take part in a round:
5 to 8 (6.5 in the mean) or 9 to 16 (12.5). With fedmm 6 do, in every round; for seconds a round, as many as in the
program, rounded down. Both run 400 rounds, the program with the step sizes of its script, fedmm with those that are
chosen by successive halving on the training objective, with a seed of its own: the test set has no part in it.

A part that benchmarks/results/peers_mnist_auc.json has is not run again; remove it there to do so.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from auc import AucProblem, BinaryRows, load_mnist
from federated_minimax import BATCH, CLIENTS, METHODS, ROUNDS, SEED, prepare
from federated_minimax import run as run_theirs
from round_stack import RoundStack
from table import write_table

from fedmm import ALGORITHMS, Diverged, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.core.compression import Encoding
from fedmm.core.files import data_folder

sys.path.append(str(Path(__file__).parents[1]))
from common import measured_on, typed_command

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers_mnist_auc.json"
STEPS, EVALUATED = 12, 10
SEARCH_SEED, SEEDS = 1, (11, 12, 13)
RUNGS = ((30, 2), (90, 1))
"""Of the search: rounds, and how many candidates are left after them."""

RATES = {"lr_min": (0.1, 0.3162, 1.0), "lr_schedule": ("constant", "cosine_decay")}
PENALTIES = {"lr_min": (0.1, 0.3162, 1.0), "penalty": (0.03, 0.3)}
COSINE = {"lr_schedule": "cosine_decay"}
"""What is searched: six candidates each. psi's rate is 0.3162, or omega's where there are penalties."""


@dataclass(frozen=True)
class Entry:
    """A method of fedmm's, and what is searched for it. clients: of a round."""

    algorithm: str
    clients: int = 6
    uploads: Encoding = "exact"
    fixed: dict[str, Any] = field(default_factory=dict)
    grid: dict[str, tuple[Any, ...]] = field(default_factory=lambda: RATES)
    label: str = ""

    def candidates(self) -> list[dict[str, Any]]:
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def make(self, options: dict[str, Any]) -> Algorithm:
        given = {"lr_max": 0.3162, **self.fixed, **options}
        if "penalty" in given:
            penalty = given.pop("penalty")
            given |= {"penalty_min": penalty, "penalty_max": penalty, "lr_max": given["lr_min"]}
        return ALGORITHMS[self.algorithm](local_steps=STEPS, **given)  # type: ignore[call-arg]


STAGES = {"stage_rounds": 333, "smoothing_min": 0.0}
OURS = {
    entry.label or entry.algorithm: entry
    for entry in (
        Entry("fedavg_gda"),
        Entry("fedmm", fixed=COSINE, grid=PENALTIES),
        Entry("codasca", fixed=STAGES),
        Entry("fedmm_smoothed", fixed=COSINE, grid=PENALTIES),
        Entry("fedgda_gt"),
        Entry("scaffold_gda"),
        Entry("extragradient"),
        Entry("sgda_plus"),
        Entry("coda_plus", fixed=STAGES),
    )
}


def engine(problem: AucProblem, entry: Entry, algorithm: Algorithm, rounds: int) -> RoundStack:
    terms = Terms(participation=entry.clients / CLIENTS, uploads=entry.uploads)
    return RoundStack(problem.federated, algorithm, rounds, terms, problem.open_stack)


def search(entry: Entry, train: BinaryRows, watched: BinaryRows) -> list[dict[str, Any]]:
    """The candidates with the training objective after each rung they were in, the chosen one first."""
    left: list[dict[str, Any]] = [{"options": options, "objective": []} for options in entry.candidates()]
    tried = list(left)
    for rounds, kept in RUNGS:
        for candidate in left:
            problem = AucProblem(train, CLIENTS, BATCH, SEARCH_SEED)
            runs = engine(problem, entry, entry.make(candidate["options"]), rounds)
            state, value = runs.start(), None
            try:
                for _ in range(rounds):
                    state, _ = runs.run_round(state)
                value = problem.objective(state.model, watched)
            except Diverged:
                pass
            candidate["objective"].append(value)
        left = sorted(left, key=lambda candidate: _or_worst(candidate["objective"][-1]))[:kept]
    return left + [candidate for candidate in tried if candidate not in left]


def _or_worst(objective: float | None) -> float:
    """Of a candidate that diverged."""
    return float("inf") if objective is None else objective


def run_ours(
    entry: Entry, options: dict[str, Any], train: BinaryRows, test: BinaryRows, seed: int, rounds: int = ROUNDS
) -> dict[str, Any]:
    """One run: AUC every ten rounds, floats (four bytes each) that clients sent, seconds a round without evaluation."""
    problem = AucProblem(train, CLIENTS, BATCH, seed)
    runs = engine(problem, entry, entry.make(options), rounds)
    state = runs.start()
    curve, bytes_up, seconds, cpu = [[0, problem.auc(state.model, test), 0.0]], 0, 0.0, 0.0
    for t in range(1, rounds + 1):
        began, cpu_began = time.perf_counter(), time.process_time()
        state, record = runs.run_round(state)
        seconds, cpu = seconds + time.perf_counter() - began, cpu + time.process_time() - cpu_began
        bytes_up += record.bytes_up
        if t % EVALUATED == 0:
            curve.append([t, problem.auc(state.model, test), bytes_up / 4])
    return {
        "seed": seed,
        "rounds": rounds,
        "floats": bytes_up / 4,
        "seconds_a_round": seconds / rounds,
        "cpu_seconds_a_round": cpu / rounds,
        "auc": [[t, value] for t, value, _ in curve],
        "floats_so_far": [sent for _, _, sent in curve],
    }


def in_int8(done: dict[str, Any]) -> tuple[str, Entry, dict[str, Any]]:
    """The method that the search found best, with uploads of a quarter of the bytes."""
    searched = [label for label in OURS if label in done]
    best = min(searched, key=lambda label: _or_worst(done[label]["search"][0]["objective"][-1]))
    return f"{best}, int8 uploads", replace(OURS[best], uploads="int8"), done[best]["searched"]


PAIRS = {
    "Local_SGDA_Plus": "sgda_plus",
    "Extra_Step_Local_SGD": "extragradient",
    "CODA_Plus": "coda_plus",
    "CODASCA": "codasca",
}
"""The methods that both have, for seconds a round."""


class Results:
    """The file of results, written after every part."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[str, Any]:
        setting = {"clients": CLIENTS, "batch": BATCH, "local_steps": STEPS, "rounds": ROUNDS}
        empty = {"setting": setting, "theirs": {}, "ours": {}, "speed": {}}
        content: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else empty
        return content

    def part(self, name: str) -> dict[str, Any]:
        part: dict[str, Any] = self.read()[name]
        return part

    def put(self, part: str, label: str, value: dict[str, Any], load: float) -> None:
        content = self.read()
        content[part][label] = {**value, "measured": measured_on(typed_command(), load)}
        self.path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{part}: {label}", flush=True)


def measure_theirs(results: Results, folder: Path, checkout: Path, methods: list[str], seeds: list[int]) -> None:
    for method in METHODS:
        for seed in seeds if method.label in methods else []:
            runs = results.part("theirs").get(method.label, {}).get("runs", [])
            if seed not in [run["seed"] for run in runs]:
                load = os.getloadavg()[0]
                runs.append(run_theirs(method, ROUNDS, folder, checkout, seed=seed))
                about = {"clients_a_round": method.mean_clients, "options": method.options}
                results.put("theirs", method.label, {**about, "runs": runs}, load)


def measure_ours(results: Results, mnist: Path, labels: list[str]) -> None:
    train, test = load_mnist(mnist, "train", by_label=True), load_mnist(mnist, "t10k")
    watched = BinaryRows(train.x[::10], train.positive[::10])
    for label in labels:
        entry = OURS[label]
        if label not in results.part("ours"):
            found = search(entry, train, watched)
            options = found[0]["options"]
            chosen = {"options": {**entry.fixed, **options}, "searched": options, "search": found}
            results.put("ours", label, {**about(entry), **chosen, "runs": []}, os.getloadavg()[0])
        repeat(results, label, entry, train, test)
    label, entry, options = in_int8(results.part("ours"))
    if label not in results.part("ours"):
        chosen = {"options": {**entry.fixed, **options}, "searched": options}
        results.put("ours", label, {**about(entry), **chosen, "runs": []}, os.getloadavg()[0])
    repeat(results, label, entry, train, test)


def about(entry: Entry) -> dict[str, Any]:
    return {"algorithm": entry.algorithm, "clients_a_round": entry.clients, "uploads": entry.uploads}


def repeat(results: Results, label: str, entry: Entry, train: BinaryRows, test: BinaryRows) -> None:
    """Add the runs of those seeds that are missing."""
    for seed in SEEDS:
        done = results.part("ours")[label]
        if seed not in [run["seed"] for run in done["runs"]]:
            load = os.getloadavg()[0]
            done["runs"].append(run_ours(entry, done["searched"], train, test, seed))
            results.put("ours", label, done, load)


def measure_speed(
    results: Results, folder: Path, checkout: Path, mnist: Path, rounds: int, repeats: int, pairs: list[str]
) -> None:
    """Seconds a round of both, one after the other, and the processor's seconds, which others' work changes less.

    Of the program, the latter are the difference between a long run and one of 10 rounds.
    """
    train, test = load_mnist(mnist, "train", by_label=True), load_mnist(mnist, "t10k")
    for theirs, ours in PAIRS.items():
        if theirs not in pairs or theirs in results.part("speed"):
            continue
        load = os.getloadavg()[0]
        method = next(each for each in METHODS if each.name == theirs)
        entry = replace(OURS[ours], clients=int(method.mean_clients))
        short, long = (
            run_theirs(method, number, folder, checkout, evaluate_every=number) for number in (10, 10 + rounds)
        )
        runs = [run_ours(entry, {"lr_min": 0.3162}, train, test, repeat, rounds) for repeat in range(repeats)]
        found = {
            "ours_is": ours,
            "clients": [method.mean_clients, entry.clients],
            "rounds": [10 + rounds, rounds],
            "seconds": [long["seconds_a_round"], fmean(run["seconds_a_round"] for run in runs)],
            "cpu_seconds": [
                (long["cpu_seconds"] - short["cpu_seconds"]) / rounds,
                fmean(run["cpu_seconds_a_round"] for run in runs),
            ],
            "threads": torch.get_num_threads(),
        }
        results.put("speed", theirs, found, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="of github.com/xjiajiahao/federated-minimax")
    parser.add_argument("--part", choices=("all", "theirs", "ours", "speed", "table"), default="all")
    parser.add_argument("--their-seeds", nargs="+", type=int, default=[SEED], help="of the program's runs")
    labels = [method.label for method in METHODS]
    parser.add_argument("--methods", nargs="+", choices=labels, default=labels, help="of the program's, in all rounds")
    parser.add_argument("--ours", nargs="+", choices=OURS, default=list(OURS), help="of fedmm's methods")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), help="whose seconds are measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of fedmm's process")
    parser.add_argument("--speed-rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    if args.part == "table":
        write_table()
        return
    if args.part != "ours" and not (args.checkout and (args.checkout / "main_auc.py").exists()):
        print("Skipped: give a checkout of github.com/xjiajiahao/federated-minimax by --checkout PATH.")
        return
    torch.set_num_threads(args.threads)
    mnist, results = data_folder() / "mnist", Results(RESULTS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.part != "ours":
            prepare(folder, args.checkout.resolve(), mnist)
        if args.part in ("all", "theirs"):
            measure_theirs(results, folder, args.checkout.resolve(), args.methods, args.their_seeds)
        if args.part in ("all", "ours"):
            measure_ours(results, mnist, args.ours)
        if args.part in ("all", "speed"):
            measure_speed(results, folder, args.checkout.resolve(), mnist, args.speed_rounds, args.repeats, args.pairs)


if __name__ == "__main__":
    main()
