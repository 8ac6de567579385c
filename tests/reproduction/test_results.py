"""Results come back as they were written, and a line that is wrong is named by file and number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedmm.core.errors import FedmmError
from fedmm.reproduction import read_results, results_table


def test_a_run_reads_back(paper: Any, line: Any) -> None:
    (run,) = read_results(paper.write(line("p", "fedmm", [0.5, None, 0.75], label="FedMM", seed=3, status="diverged")))
    assert (run.panel, run.curve, run.label, run.role, run.seed) == ("p", "fedmm", "FedMM", "method", 3)
    assert (run.rounds, run.target_accuracy, run.diverged) == (75, 0.75, True)
    assert run.series("target_accuracy") == ([25, 75], [0.5, 0.75])
    assert run.series("source_risk") == run.series("no such quantity") == ([], [])
    assert run.provenance["commit"] == "abc1234"


def test_of_two_lines_for_one_run_the_last_counts(paper: Any, line: Any) -> None:
    lines = [line("p", "c", [0.1]), line("p", "c", [0.2], seed=1), line("p", "c", [0.3], scale="quick")]
    runs = read_results(paper.write(*lines, line("p", "c", [0.9])))
    assert [(run.seed, run.scale, run.target_accuracy) for run in runs] == [
        (0, "full", 0.9),
        (1, "full", 0.2),
        (0, "quick", 0.3),
    ]


def test_a_torn_last_line_is_dropped(paper: Any, line: Any) -> None:
    path = paper.write(line("p", "c", [0.1]))
    with path.open("a") as file:
        file.write(json.dumps(line("p", "d", [0.1]))[:-40])
    assert [run.curve for run in read_results(path)] == ["c"]


def test_a_broken_line_before_the_last_is_refused(paper: Any, line: Any) -> None:
    path = paper.write(line("p", "c", [0.1]), line("p", "d", [0.1]))
    path.write_text('{"item": "fig\n' + path.read_text())
    with pytest.raises(FedmmError, match=r"results\.jsonl, line 1, is not a result of a run"):
        read_results(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("label", None),
        ("role", "rival"),
        ("seed", -1),
        ("seed", 0.5),
        ("status", "running"),
        ("target_accuracy", 88.1),
        ("provenance", None),
        ("series", []),
        ("series", {"round": [2, 1], "target_accuracy": [0.1, 0.2]}),
        ("series", {"round": [1, 2], "target_accuracy": [0.1]}),
        ("series", {"round": [1], "target_accuracy": [88.1]}),
        ("series", {"round": ["one"]}),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_key(paper: Any, line: Any, key: str, value: object) -> None:
    path = paper.write(line("p", "c", [0.1]), line("p", "d", [0.1]) | {key: value})
    with pytest.raises(FedmmError) as error:
        read_results(path)
    message = str(error.value)
    assert "results.jsonl, line 2," in message
    assert f"'{key}" in message
    assert "\n" not in message


def test_a_line_that_is_no_object_is_refused_even_as_the_last(paper: Any) -> None:
    paper.results.write_text("[1]\n")
    with pytest.raises(FedmmError, match="line 1, is not a result of a run"):
        read_results(paper.results)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"nowhere\.jsonl is missing"):
        read_results(tmp_path / "nowhere.jsonl")


def test_the_summary_has_a_row_for_each_curve_of_each_panel(paper: Any, line: Any) -> None:
    lines = [line("p", "fedmm", [0.8]), line("p", "fedmm", [0.9], seed=1, status="diverged", rounds=3000)]
    lines += [line("q", "source", [], role="bound", label="source | only")]
    assert results_table(paper.write(*lines)).splitlines() == [
        "| panel | curve | seeds | target (%) | min to max | rounds | status |",
        "| :-- | :-- | --: | --: | --: | --: | :-- |",
        "| p | fedmm | 2 | 85.0 | 80.0 to 90.0 | 25 to 3,000 | 1 of 2 diverged |",
        "| q | source \\| only (bound) | 1 | – | – | 0 | completed |",  # noqa: RUF001
    ]


def test_the_summary_keeps_scales_apart(paper: Any, line: Any) -> None:
    table = results_table(paper.write(line("p", "c", [0.2]), line("p", "c", [0.8], scale="quick")))
    assert [part in table for part in ("Scale: full", "Scale: quick", "| 20.0 |", "| 80.0 |")] == [True] * 4
