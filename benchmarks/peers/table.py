"""The tables of docs/peers.md, from what mnist_auc.py measured."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers_mnist_auc.json"
PAGE = ROOT / "docs" / "peers.md"

HEAD = "| program | method | clients a round | rounds | floats sent | best AUC of each run | last AUC of each run |"
SPEED_HEAD = "| its method | ours | clients a round | its s a round | ours | its processor's s a round | ours |"


def load() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return content


def rows(results: dict[str, Any]) -> list[list[str]]:
    """Its methods and ours, the one with the highest AUC in the last round first."""
    found: list[tuple[float, list[str]]] = []
    theirs = [("federated-minimax", label, each) for label, each in results["theirs"].items()]
    ours = [("fedmm", label, each) for label, each in results["ours"].items()]
    for program, label, each in theirs + ours:
        runs = each["runs"]
        best, last = [max(auc for _, auc in run["auc"]) for run in runs], [run["auc"][-1][1] for run in runs]
        rounds = ", ".join(dict.fromkeys(str(run["rounds"]) for run in runs))
        cells = [program, f"`{label}`", f"{each['clients_a_round']:g}", rounds]
        most = max(run["floats"] for run in runs)
        cells += [f"{most / 1e6:.1f} M", ", ".join(f"{x:.4f}" for x in best), ", ".join(f"{x:.4f}" for x in last)]
        found.append((-fmean(last), cells))
    return [cells for _, cells in sorted(found)]


def floats_to(run: dict[str, Any], target: float) -> float | None:
    """What clients had sent when the AUC was first as high."""
    pairs = zip(run["auc"], run["floats_so_far"], strict=True)
    return next((sent for (_, auc), sent in pairs if auc >= target), None)


def speed_rows(results: dict[str, Any]) -> list[list[str]]:
    found = []
    for label, each in results["speed"].items():
        cells = [f"`{label}`", f"`{each['ours_is']}`", "{:g} and {:g}".format(*each["clients"])]
        cells += [f"{value:.2f}" for value in (*each["seconds"], *each["cpu_seconds"])]
        found.append(cells)
    return found


def markdown(head: str, body: list[list[str]]) -> str:
    line = "|" + "---|" * head.count(" |")
    return "\n".join([head, line, *(f"| {' | '.join(cells)} |" for cells in body)])


def write_table() -> None:
    """Put the tables in the place of those that the page has."""
    results, text = load(), PAGE.read_text(encoding="utf-8")
    for head, body in ((HEAD, rows(results)), (SPEED_HEAD, speed_rows(results))):
        before, _, after = text.partition(head)
        _, gap, rest = after.partition("\n\n")
        text = before + markdown(head, body) + gap + rest
    PAGE.write_text(text, encoding="utf-8")
