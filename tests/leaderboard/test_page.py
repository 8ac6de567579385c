"""The page in the docs shows what the committed results say."""

from __future__ import annotations

from pathlib import Path

from fedmm import ALGORITHMS
from fedmm.leaderboard.board import SCALES
from fedmm.leaderboard.results import RESULTS, read_results
from fedmm.leaderboard.tables import better_than_ours, overview, problem_table, standings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "leaderboard.md").read_text(encoding="utf-8")
FOUND = standings(read_results(ROOT / "benchmarks" / "results" / "leaderboard" / RESULTS))


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    assert overview(FOUND) in PAGE
    for own in FOUND.values():
        assert problem_table(own) in PAGE
        assert better_than_ours(own) in PAGE


def test_every_algorithm_was_run_with_every_seed() -> None:
    for own in FOUND.values():
        assert {each.method for each in own} <= set(ALGORITHMS)
        assert all(len(each.runs) == SCALES["full"].seeds for each in own)
