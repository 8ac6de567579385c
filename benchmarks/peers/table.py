"""The tables of docs/peers.md, from the results of mnist_auc.py."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers_mnist_auc.json"
PAGE = ROOT / "docs" / "peers.md"

HEAD = (
    "| program | method | clients a round | floats sent | last AUC, mean | last AUC of each run "
    "| floats to 0.99 | floats to its best AUC |"
)
SPEED_HEAD = (
    "| machine | its method | ours | clients a round | its s a round | ours, processor | ours, GPU | times as fast |"
)


def load() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return content


def target(results: dict[str, Any]) -> float:
    """Return the highest final AUC of the public program's runs."""
    return max((run["auc"][-1][1] for each in results["theirs"].values() for run in each["runs"]), default=1.0)


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Return rows for its methods and ours, highest mean final AUC first."""
    found: list[tuple[float, list[str]]] = []
    best = target(results)
    theirs = [("federated-minimax", label, each) for label, each in results["theirs"].items()]
    ours = [("fedmm", label, each) for label, each in results["ours"].items()]
    for program, label, each in theirs + ours:
        runs = each["runs"]
        last = [run["auc"][-1][1] for run in runs]
        cells = [program, f"`{label}`", f"{each['clients_a_round']:g}"]
        cells += [f"{max(run['floats'] for run in runs) / 1e6:.1f} M", f"{fmean(last):.4f}"]
        cells += [", ".join(f"{value:.4f}" for value in last), *(_sent_until(runs, goal) for goal in (0.99, best))]
        found.append((-fmean(last), cells))
    return [cells for _, cells in sorted(found)]


def _sent_until(runs: list[dict[str, Any]], goal: float) -> str:
    """Return the range of floats that runs had sent when they reached the goal, and how many reached it."""
    sent = [floats / 1e6 for run in runs if (floats := floats_to(run, goal)) is not None]
    span = dict.fromkeys(f"{floats:.1f}" for floats in (min(sent), max(sent))) if sent else {}
    return " to ".join(span) + " M, " * bool(sent) + f"{len(sent)} of {len(runs)}"


def floats_to(run: dict[str, Any], goal: float) -> float | None:
    """Return the floats sent until the AUC first reached the goal; the program's rounds all count alike."""
    so_far = run.get("floats_so_far") or [run["floats"] * t / max(1, run["rounds"]) for t, _ in run["auc"]]
    return next((sent for (_, auc), sent in zip(run["auc"], so_far, strict=True) if auc >= goal), None)


def speed_rows(results: dict[str, Any]) -> list[list[str]]:
    found = []
    for each in results["speed"].values():
        seconds, where = each["seconds"], each["measured"]
        ours = [seconds.get(device) for device in ("cpu", "cuda")]
        cells = [f"{where['cores']} cores" + (f", {where['gpu']}" if "gpu" in where else "")]
        cells += [f"`{each['theirs_is']}`", f"`{each['ours_is']}`", "{:g} and {:g}".format(*each["clients"])]
        its = seconds["theirs"]
        cells += ["not run" if its is None else f"{its:.2f}", *("" if each is None else f"{each:.4f}" for each in ours)]
        found.append([*cells, " and ".join(f"{its / each:.0f}" for each in ours if its and each)])
    return found


def markdown(head: str, body: list[list[str]]) -> str:
    line = "|" + "---|" * head.count(" |")
    return "\n".join([head, line, *(f"| {' | '.join(cells)} |" for cells in body)])


def printed(results: dict[str, Any]) -> str:
    """Return both tables as text."""
    return "\n\n".join(markdown(head, body) for head, body in _tables(results) if body)


def _tables(results: dict[str, Any]) -> list[tuple[str, list[list[str]]]]:
    return [(HEAD, rows(results)), (SPEED_HEAD, speed_rows(results))]


def write_table() -> None:
    """Replace the tables on the page."""
    text = PAGE.read_text(encoding="utf-8")
    for head, body in _tables(load()):
        before, _, after = text.partition(head)
        _, gap, rest = after.partition("\n\n")
        text = before + markdown(head, body) + gap + rest
    PAGE.write_text(text, encoding="utf-8")
