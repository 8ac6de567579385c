"""A paper with two figures and a table, small enough to run in a test."""

from __future__ import annotations

import time
import types
from pathlib import Path
from typing import Any

import pytest

FILES = {
    "common.toml": """
        [run]
        rounds = 6
        batch_size = 8
        evaluate_every = 2
        dtype = "float64"
        threads = 1
        probe_rows = 20

        [data]
        name = "moons"
        rows = 40
        test_rows = 40

        [model]
        name = "mlp"
        hidden = [4]
        adversary_hidden = [4]

        [objective]
        name = "dann"

        [sweep]
        "run.seed" = [0, 1]
    """,
    "figure_1/item.toml": """
        title = "Figure 1: two panels"
        form = "curves"
        panels = ["even", "uneven"]
        curves = ["fedmm", "fedavg_gda"]

        [scale.smoke.run]
        rounds = 2
        [scale.smoke.data]
        test_rows = 20
        [scale.smoke.sweep]
        "run.seed" = [5]
    """,
    "figure_1/even/panel.toml": 'extends = "../../common.toml"\n',
    "figure_1/even/fedmm.toml": """
        extends = "panel.toml"
        [run]
        label = "FedMM"
        [algorithm]
        name = "fedmm"
        local_steps = 2
    """,
    "figure_1/even/fedavg_gda.toml": """
        extends = "panel.toml"
        [run]
        label = "FedAvgGDA"
        [algorithm]
        name = "fedavg_gda"
        local_steps = 2
    """,
    "figure_1/uneven/panel.toml": """
        extends = "../../common.toml"
        [partition]
        name = "source_target"
        target_clients = 2
    """,
    "figure_1/uneven/fedmm.toml": 'extends = "../even/fedmm.toml"\n[partition]\ntarget_clients = 2\n',
    "figure_1/uneven/source_only.toml": """
        extends = "panel.toml"
        [reproduce]
        role = "bound"
        [run]
        label = "source only"
        [objective]
        name = "source_only"
        [algorithm]
        name = "fedavg_gda"
        local_steps = 2
    """,
    "figure_2/item.toml": """
        title = "Figure 2: one of the same experiments"
        form = "rates"
        panels = ["rates"]
    """,
    "figure_2/rates/fedmm_again.toml": """
        extends = "../../figure_1/even/fedmm.toml"
        [run]
        label = "FedMM, again"
    """,
    "table_1/item.toml": """
        title = "Table 1: the same in rounds"
        form = "rounds_table"
        runs_of = "figure_1"
        panels = ["even", "uneven"]
        [columns_of]
        dann = ["fedmm", "fedavg_gda"]
    """,
}
RUNS = {"figure_1": 8, "figure_2": 2}
"""The number of runs at full scale."""


def dedented(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def write_paper(folder: Path, **changes: str) -> Path:
    """Write the paper's folder. changes: replacement text of a file, by its name without folders and extension."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedented(changes.get(path.stem, text)), encoding="utf-8")
    return folder


def changed(path: Path, old: str, new: str) -> None:
    """Replace ``old``, which must be in the file, with ``new``."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def numbers(line: dict[str, Any]) -> dict[str, Any]:
    """Return a result without when and where it was computed."""
    return {key: value for key, value in line.items() if key != "provenance"}


def tick_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch the clock to advance by a second at each reading: once per round, and once before each stack."""
    ticks = iter(range(10_000))
    monkeypatch.setattr("fedmm.training.batched._FLUSH_SECONDS", 0.0)
    fake = types.SimpleNamespace(monotonic=lambda: next(ticks), perf_counter=time.perf_counter)
    monkeypatch.setattr("fedmm.reproduction.run.time", fake)
