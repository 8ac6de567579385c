"""Compare methods of the public program federated-minimax and of fedmm in the program's MNIST AUC setting.

    python benchmarks/peers/mnist_auc.py --checkout PATH        its methods, fedmm's, and seconds a round of both
    python benchmarks/peers/mnist_auc.py --part ours --device cuda
    python benchmarks/peers/mnist_auc.py --part table           write the tables of docs/peers.md

500 clients with 120 rows of label-sorted MNIST each, 0 against the other digits, LeNet, 12 local steps with batches of
10, AUC of the server's model on the test set every 10 rounds. The program draws how many clients take part in a round:
5 to 8 (6.5 on average) or 9 to 16 (12.5). With fedmm, 6 take part in every round; when seconds per round are measured,
as many as in the program on average, rounded down. Both run 400 rounds. The program uses the step sizes of its script;
fedmm uses the one of twelve candidates with the lowest training objective over the last quarter of full-length runs,
which have other seeds. The test set plays no part in this choice.

Entries in the results file are not run again; delete an entry to rerun it. ``--clients`` and ``--rounds`` are for
trying out the script.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from auc import load_mnist
from federated_minimax import BATCH, CLIENTS, METHODS, ROUNDS, SEED, prepare
from federated_minimax import run as run_theirs
from ours import OURS, SEEDS, STEPS, Entry, Setting, mean_last_auc, or_worst, run_seeds, search, seconds_a_round
from table import RESULTS, printed, write_table

from fedmm.core.files import data_folder

sys.path.append(str(Path(__file__).parents[1]))
from common import measured_on, typed_command

PAIRS = {
    "Local_SGDA_Plus": "sgda_plus",
    "Extra_Step_Local_SGD": "extragradient",
    "CODA_Plus": "coda_plus",
    "CODASCA": "codasca",
}
"""The methods that both have, whose seconds per round are compared."""


class Results:
    """The results file, written after every entry."""

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
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(content, indent=1) + "\n")
        print(f"{part}: {label}", flush=True)


def measure_theirs(results: Results, folder: Path, args: argparse.Namespace) -> None:
    for method in METHODS:
        for seed in args.their_seeds if method.label in args.methods else []:
            runs = results.part("theirs").get(method.label, {}).get("runs", [])
            if seed not in [run["seed"] for run in runs]:
                load = os.getloadavg()[0]
                checkout = args.checkout.resolve()
                runs.append(run_theirs(method, args.rounds, folder, checkout, seed=seed, limit=args.their_limit))
                about = {"clients_a_round": method.mean_clients, "options": method.options}
                results.put("theirs", method.label, {**about, "runs": runs}, load)


def measure_ours(results: Results, setting: Setting, labels: list[str], minutes: float) -> None:
    """Search and run one method after the other; start none after this many minutes."""
    began = time.perf_counter()
    for label in labels:
        if label not in results.part("ours") and time.perf_counter() - began < 60 * minutes:
            load, entry, start = os.getloadavg()[0], OURS[label], time.perf_counter()
            found = search(entry, setting)
            searched = time.perf_counter() - start
            measure_runs(results, label, entry, found[0]["options"], setting, load, found, searched)
    if time.perf_counter() - began < 60 * minutes:
        measure_int8(results, setting)


def measure_int8(results: Results, setting: Setting) -> None:
    """Run the method that the search found best with int8 uploads, a quarter of the bytes."""
    done = {label: each for label, each in results.part("ours").items() if "search" in each}
    if not done:
        return
    best = min(done, key=lambda label: or_worst(done[label]["search"][0]["objective"]))
    if f"{best}, int8 uploads" not in results.part("ours"):
        entry, load = replace(OURS[best], uploads="int8"), os.getloadavg()[0]
        measure_runs(results, f"{best}, int8 uploads", entry, done[best]["searched"], setting, load)


def measure_runs(
    results: Results,
    label: str,
    entry: Entry,
    options: dict[str, Any],
    setting: Setting,
    load: float,
    found: list[dict[str, Any]] | None = None,
    searched: float = 0.0,
) -> None:
    start = time.perf_counter()
    runs = run_seeds(entry, options, setting, SEEDS)
    about = {"algorithm": entry.algorithm, "clients_a_round": entry.clients, "uploads": entry.uploads}
    chosen: dict[str, Any] = {"options": {**entry.fixed, **options}, "searched": options}
    if found is not None:
        chosen |= {"search": found, "search_seconds": searched}
    results.put("ours", label, {**about, **chosen, "seconds": time.perf_counter() - start, "runs": runs}, load)
    print(f"  {options}: last AUC {mean_last_auc(runs):.4f} in the mean of {len(runs)}", flush=True)


def measure_speed(results: Results, folder: Path, settings: dict[str, Setting], args: argparse.Namespace) -> None:
    """Measure seconds per round of both, one after the other, with nothing running alongside."""
    for theirs, ours in PAIRS.items():
        label = f"{theirs} beside {args.device} and {os.cpu_count()} cores"
        if theirs not in args.pairs or label in results.part("speed"):
            continue
        load = os.getloadavg()[0]
        method = next(each for each in METHODS if each.name == theirs)
        entry = replace(OURS[ours], clients=int(method.mean_clients))
        rounds = args.speed_rounds
        seconds = {
            device: seconds_a_round(entry, setting, rounds * (10 if device == "cuda" else 1), args.repeats)
            for device, setting in settings.items()
        }
        print(f"speed: {ours} {seconds}", flush=True)
        its = run_theirs(method, rounds, folder, args.checkout.resolve(), limit=args.their_limit)
        found = {
            "theirs_is": theirs,
            "ours_is": ours,
            "clients": [method.mean_clients, entry.clients],
            "seconds": {"theirs": its["seconds_a_round"], **{device: fmean(each) for device, each in seconds.items()}},
            "repeats": seconds,
            "rounds": its["rounds"],
            "threads": torch.get_num_threads(),
        }
        results.put("speed", label, found, load)
        print(f"  {found['seconds']}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", type=Path, help="of github.com/xjiajiahao/federated-minimax")
    parser.add_argument("--part", choices=("all", "theirs", "ours", "speed", "table"), default="all")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file of results")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="of fedmm; for speed beside the CPU")
    parser.add_argument("--capture", choices=("none", "round", "step"), default="round", help="as CUDA graphs")
    parser.add_argument("--their-seeds", nargs="+", type=int, default=[SEED], help="of the program's runs")
    parser.add_argument("--their-limit", type=float, help="seconds after which a run of the program is ended")
    labels = [method.label for method in METHODS]
    parser.add_argument("--methods", nargs="+", choices=labels, default=labels, help="of the program's, in all rounds")
    parser.add_argument("--ours", nargs="+", choices=OURS, default=list(OURS), help="of fedmm's methods")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which none of those is begun")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=list(PAIRS), help="whose seconds are measured")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of fedmm's process")
    parser.add_argument("--speed-rounds", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser.parse_args()


def main() -> None:
    args = arguments()
    if args.part == "table":
        write_table()
        return
    if args.part != "ours" and not (args.checkout and (args.checkout / "main_auc.py").exists()):
        print("Skipped: give a checkout of github.com/xjiajiahao/federated-minimax by --checkout PATH.")
        return
    torch.set_num_threads(args.threads)
    mnist, results = data_folder() / "mnist", Results(args.out)
    train, test = load_mnist(mnist, "train", by_label=True), load_mnist(mnist, "t10k")
    settings = {
        device: Setting(
            train.to(device), test.to(device), args.clients, args.rounds, "none" if device == "cpu" else args.capture
        )
        for device in dict.fromkeys(("cpu", args.device))
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if args.part != "ours":
            prepare(folder, args.checkout.resolve(), mnist, args.pairs if args.part == "speed" else args.methods)
        if args.part in ("all", "speed"):
            measure_speed(results, folder, settings, args)
        if args.part in ("all", "theirs"):
            measure_theirs(results, folder, args)
        if args.part in ("all", "ours"):
            measure_ours(results, settings[args.device], args.ours, args.minutes)
    print(printed(results.read()))


if __name__ == "__main__":
    main()
