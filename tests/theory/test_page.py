"""The tables of docs/theory.md are what benchmarks/theory.py measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
WHO = {
    "theorem": "the theorem",
    "rederived": "its lemmas, derived again",
    "mended": "the mended proof",
    "mended, measured constants": "the same, with kappa and L_Phi as measured",
}


def measured() -> dict[str, Any]:
    return json.loads((ROOT / "benchmarks" / "results" / "theory.json").read_text(encoding="utf-8"))


def swept(found: dict[str, Any]) -> list[str]:
    return [f"| {run['mu1']:g} | {run['reached'] or 'diverges'} |" for run in found["sweep"]]


def asked(found: dict[str, Any]) -> list[str]:
    """How far above what is needed each proof asks for mu_1, and the rounds that takes."""
    good = [run for run in found["sweep"] if run["reached"]]
    needed, last = good[0]["mu1"], good[-1]
    rows = []
    for name, run in found["proofs"].items():
        rounds = run["reached"] or f"about {last['reached'] * run['mu1'] / last['mu1']:.0e}"
        rows.append(f"| {WHO[name]} | {run['mu1']:.3g} | {run['mu2']:.3g} | {run['mu1'] / needed:.2g} x | {rounds} |")
    return rows


def test_the_tables_are_what_was_measured() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    found = measured()
    for rows in (swept(found), asked(found)):
        assert "\n".join(rows) + "\n" in page


def test_what_is_said_of_slow_runs_and_of_averaging_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    found = measured()
    for name in ("theorem", "rederived"):
        assert f"{found['proofs'][name]['moved']:.1g}" in page
    for run in found["averaged"]:
        assert f"{run['gradient_norms'][-1]:.3g}" in page
