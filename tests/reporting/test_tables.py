"""Every number of a table can be worked out by hand from the folders."""

from __future__ import annotations

import json
from io import StringIO
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedmm.reporting import comparison_rows, markdown_table, read_comparison, rich_table


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


def _change(folder: Path, **values: object) -> None:
    path = folder / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
