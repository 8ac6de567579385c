"""Small, made-up items of the paper and results of their runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

PROVENANCE = {
    "command": "fedmm reproduce figure_5",
    "commit": "abc1234",
    "hardware": {"gpu": "NVIDIA H200", "cpus": 16},
    "versions": {"fedmm": "0.1.0", "torch": "2.11.0"},
    "seconds": 12.5,
    "precision": "tf32",
    "engine": {"name": "batched", "replicas": 12},
    "date": "2026-01-02",
}


def line(panel: str, curve: str, accuracies: Sequence[float | None], **values: Any) -> dict[str, Any]:
    """Return the line of a results file for a finished run that was evaluated every 25 rounds."""
    rounds = [25 * (i + 1) for i in range(len(accuracies))]
    measured = [value for value in accuracies if value is not None]
    return {
        "item": "figure_5",
        "panel": panel,
        "curve": curve,
        "label": curve,
        "role": "method",
        "objective": "dann",
        "algorithm": curve,
        "seed": 0,
        "scale": "full",
        "rounds": rounds[-1] if rounds else 0,
        "status": "completed",
        "target_accuracy": measured[-1] if measured else None,
        "source_accuracy": 0.97,
        "source_risk": 0.1,
        "target_information": 2.1,
        "series": {"round": rounds, "target_accuracy": list(accuracies), "source_risk": [None] * len(rounds)},
        "digest": "0123",
        "provenance": PROVENANCE,
    } | values


class Paper:
    """Write the folder of an item and its results below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.results = root / "results.jsonl"
        self.out = root / "out"

    def item(self, toml: str, name: str = "figure_5") -> Path:
        folder = self.root / "paper" / name
        folder.mkdir(parents=True)
        (folder / "item.toml").write_text(toml, "utf-8")
        return folder

    def write(self, *lines: dict[str, Any]) -> Path:
        self.results.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
        return self.results


@pytest.fixture(name="line")
def _line() -> Callable[..., dict[str, Any]]:
    return line


@pytest.fixture
def paper(tmp_path: Path) -> Paper:
    return Paper(tmp_path)
