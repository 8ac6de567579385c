"""Every number of a table can be worked out by hand from the folders."""

from __future__ import annotations

import json
from io import StringIO
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from fedmm.reporting import comparison_rows, markdown_table, read_comparison, rich_table
from fedmm.reporting.compared import rich_compared
from fedmm.reporting.tables import FittedRow, fit_table
from fedmm.reporting.tuned import TunedRow, TuningResult, rich_tuned


def test_numbers_over_seeds(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.1, 0.8], [0.1, 0.9]], "source only": [[0.5]]})
    ours, baseline = comparison_rows(read_comparison(folder))
    assert (ours.label, ours.seeds) == ("FedMM", (0, 1))
    assert ours.accuracy == pytest.approx(0.85)
    assert (ours.low, ours.high) == (0.8, 0.9)
    assert ours.std == pytest.approx(0.1 / sqrt(2))  # deviations of 0.05 on both sides, n - 1 = 1
    assert ours.seconds == 1.0  # two rounds of half a second
    assert ours.megabytes == 6.0  # two rounds of 1 MB up and 2 MB down
    assert (baseline.accuracy, baseline.low, baseline.high, baseline.std) == (0.5, None, None, None)


def test_seconds_and_bytes_are_means_of_one_run(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8], [0.9]]})
    _change(folder / "runs/1", seconds=2.5, bytes_up=3_000_000, bytes_down=0)
    (row,) = comparison_rows(read_comparison(folder))
    assert row.seconds == 1.5
    assert row.megabytes == 3.0


def test_runs_without_an_accuracy_are_left_out_of_the_mean_and_told(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8], [None], [0.9]], "FedAvgGDA": [[None]]})
    _change(folder / "runs/1", status="diverged")
    ours, other = comparison_rows(read_comparison(folder))
    assert ours.accuracy == pytest.approx(0.85)
    assert ours.note == "1 of 3 runs diverged"
    assert (other.accuracy, other.note) == (None, "")
    assert "FedMM (1 of 3 runs diverged)" in markdown_table([ours, other])


def test_markdown(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8], [0.9]], "a|b": [[0.5]]})
    assert markdown_table(comparison_rows(read_comparison(folder))).splitlines() == [
        "| method | target (%) | min to max | std | seeds | seconds | MB |",
        "| :-- | --: | --: | --: | --: | --: | --: |",
        "| FedMM | 85.0 | 80.0 to 90.0 | 7.1 | 2 | 0.50 | 3.00 |",
        "| a\\|b | 50.0 | - | - | 1 | 0.50 | 3.00 |",
    ]


def test_one_seed_needs_no_columns_of_spread(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8]]})
    table = markdown_table(comparison_rows(read_comparison(folder)))
    assert table.splitlines()[0] == "| method | target (%) | seeds | seconds | MB |"


def test_the_terminal_shows_the_same_cells_and_takes_no_label_for_markup(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8], [0.9]], "[red]odd[/] label": [[0.5]]})
    console = Console(width=120, record=True, file=StringIO())
    console.print(rich_table(comparison_rows(read_comparison(folder)), title="[bold]two moons"))
    text = console.export_text()
    for cell in ("[bold]two moons", "[red]odd[/] label", "85.0", "80.0 to 90.0", "7.1"):
        assert cell in text


NAMES = ["federated averaging, balanced classes", "fedmm_agnostic lr_weights=0.003 penalty=0.5", "q_ffl", "Süd 学"]


def rendered(table: Any, width: int) -> list[str]:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text().splitlines()


def words_of(lines: list[str], column: int) -> list[str]:
    """What one column of a table says, without the lines of its frame."""
    cells = [line.strip("│").split("│")[column] for line in lines if line.startswith("│")]
    return " ".join(cells).split()


@pytest.mark.parametrize("width", [30, 60, 80, 100, 120])
def test_names_and_numbers_stay_whole_in_a_narrow_terminal(width: int) -> None:
    headings = [
        "validation\nworst\naccuracy\u00a0(%)",
        "validation\naccuracy\u00a0(%)",
        "source\nrisk",
        "source\nAUROC",
    ]
    rows = [FittedRow(name, [f"{10.5 + n} ±2.5", "62.5 ±1.2", "0.84 ±0.02", "0.907"]) for n, name in enumerate(NAMES)]
    lines = rendered(fit_table("candidate", headings, rows, width), width)
    assert all(cell_len(line) <= width for line in lines)
    assert "…" not in "".join(lines)
    assert words_of(lines, 1) == [word for row in rows for word in row.cells[0].split()]
    if width >= 60:
        assert words_of(lines, 0) == " ".join(NAMES).split()
    left_out = " ".join(lines).partition("a wider terminal also shows")[2]
    assert ("AUROC" in left_out) == (width < 80)


@pytest.mark.parametrize("width", [80, 100])
def test_a_comparison_for_the_worst_site_fits_a_terminal(width: int) -> None:
    shown = [
        "validation_worst_accuracy", "validation_accuracy", "source_risk", "source_worst_accuracy", "source_accuracy",
    ]  # fmt: skip
    entries = [
        {"label": name, "runs": ["a", "b"], "diverged": 0, "measures": {column: [0.196, 0.221] for column in shown}}
        for name in ("federated averaging", "fedmm_agnostic")
    ]
    lines = rendered(
        rich_compared({"shown": shown, "candidates": entries, "metric": "worst_site", "verdict": {"use": ""}}, width),
        width,
    )
    assert words_of(lines, 0) == ["federated", "averaging", "fedmm_agnostic"]
    assert words_of(lines, 1) == ["20.9", "±1.8"] * 2
    assert "…" not in "".join(lines)


def test_a_tuning_fits_a_terminal() -> None:
    signals = ["0.280 (0.250 to 0.321)", "0.908 (0.895 to 0.911)", "0.220 (0.215 to 0.229)"]
    row = TunedRow("fedmm_restrained lr_max=0.01 nu=0.3", 2, 1200, 3, signals, 1.3, "", True, "0.92, 0.88")
    lines = rendered(rich_tuned(TuningResult("", "", (), (), [row]), 80), 80)
    assert words_of(lines, 0) == row.candidate.split()
    assert words_of(lines, 4) == ["0.280", "0.250-0.321"]
    assert "…" not in "".join(lines)


def _change(folder: Path, **values: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
