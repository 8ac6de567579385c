"""A leaderboard that is interrupted goes on where it stopped, and its page comes from the results alone."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedmm.core.errors import FedmmError
from fedmm.leaderboard.adaptations import AdaptationProblem
from fedmm.leaderboard.auc import LabelSortedAuc
from fedmm.leaderboard.board import Board
from fedmm.leaderboard.draw import draw_board
from fedmm.leaderboard.games import QuadraticGame
from fedmm.leaderboard.results import RESULTS, read_lines, read_results
from fedmm.leaderboard.tables import better_than_ours, overview, problem_table, standings
from fedmm.leaderboard.trials import Goal, Problem, Trace, Trial, cost_to

METHODS = ["fedmm", "scaffold_gda"]


def board(folder: Path, seeds: int = 2) -> Board:
    return Board("smoke", 3, seeds, folder / RESULTS, {"command": "fedmm leaderboard"})


def run(folder: Path, problems: list[Problem], methods: list[str] = METHODS, seeds: int = 2) -> list[str]:
    said: list[str] = []
    board(folder, seeds).run(problems, methods, progress=False, say=said.append)
    return said


def without_times(path: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "seconds"} for line in read_lines(path)]


def test_what_was_interrupted_goes_on_and_ends_with_the_same_results(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = QuadraticGame(9)
    run(tmp_path / "whole", [problem])
    lines = without_times(tmp_path / "whole" / RESULTS)
    assert [(line["kind"], line["method"], line.get("seed")) for line in lines] == [
        ("search", "fedmm", None), ("run", "fedmm", 0), ("run", "fedmm", 1),
        ("search", "scaffold_gda", None), ("run", "scaffold_gda", 0), ("run", "scaffold_gda", 1),
    ]  # fmt: skip

    original, left = QuadraticGame.run, [1]

    def killed(self: QuadraticGame, trials: list[Trial]) -> list[Trace]:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return original(self, trials)

    with monkeypatch.context() as patched:
        patched.setattr(QuadraticGame, "run", killed)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "cut", [problem])
    cut = tmp_path / "cut" / RESULTS
    assert len(read_lines(cut)) == 2
    with cut.open("ab") as file:
        file.write(b'{"kind": "run", "pro')  # a line that a crash cut short
    run(tmp_path / "cut", [problem])
    assert without_times(cut) == lines
    content = cut.read_bytes()
    run(tmp_path / "cut", [problem])
    assert cut.read_bytes() == content


def test_fedmm_by_another_name_is_left_out(tmp_path: Path) -> None:
    said = run(tmp_path, [QuadraticGame(9)], ["fedmm_restrained"])
    assert said == ["fedmm_restrained is skipped on quadratic, which has no features to restrain: it would equal fedmm"]
    assert read_lines(tmp_path / RESULTS) == []


def test_more_seeds_search_nothing_again(tmp_path: Path) -> None:
    run(tmp_path, [QuadraticGame(9)], ["fedmm"], seeds=1)
    run(tmp_path, [QuadraticGame(9)], ["fedmm"], seeds=2)
    assert [line["kind"] for line in read_lines(tmp_path / RESULTS)] == ["search", "run", "run"]


def test_methods_that_upload_two_vectors_have_half_the_rounds(tmp_path: Path) -> None:
    run(tmp_path, [QuadraticGame(18)], seeds=1)
    results = read_results(tmp_path / RESULTS)
    assert [(each.method, each.rounds) for each in results] == [("fedmm", 18), ("scaffold_gda", 9)]
    assert results[0].total_bytes == results[1].total_bytes


def test_a_problem_without_its_data_is_skipped_with_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path / "nothing"))
    said = run(tmp_path, [LabelSortedAuc(9, "mnist"), AdaptationProblem("mnist_m", 9)])
    assert said[0].startswith("auc_mnist is skipped: there is no folder")
    assert said[1] == "mnist_m is skipped: mnist_m is for a GPU; pass --device cuda"
    assert not (tmp_path / RESULTS).exists()


def test_an_adaptation_is_run_as_a_stack_of_its_seeds(tmp_path: Path) -> None:
    run(tmp_path, [AdaptationProblem("turned_digits", 3, evaluate_every=1)], ["fedmm"])
    results = read_results(tmp_path / RESULTS)
    assert [each.seed for each in results] == [0, 1]
    assert all(each.final is not None and 0 <= each.final <= 1 for each in results)
    assert results[0].total_gradients == 3 * 2 * 10


# Costs and tables -----------------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_the_first_round_that_is_good_enough() -> None:
    trace = Trace(values=[0.5, math.nan, 0.1, 0.3], bytes_up=[8, 8, 8, 8], gradients=[2, 2, 2, 2])
    cost = cost_to(Goal("error", 0.2), trace)
    assert cost is not None
    assert (cost.bytes_up, cost.gradients, cost.round) == (24, 6, 3)
    assert cost_to(Goal("error", 0.05), trace) is None
    assert cost_to(Goal("accuracy", 0.5, higher=True), trace) is not None


def line(
    method: str, seed: int, spent: int | None, final: float | None = 0.1, *, diverged: bool = False
) -> dict[str, Any]:
    return {
        "kind": "run", "problem": {"name": "game"}, "title": "a game", "method": method, "seed": seed, "scale": "full",
        "goal": {"metric": "error", "target": 0.2, "higher": False},
        "options": {"lr_min": 0.1, "penalty_min": 1.0, "penalty_max": 1.0},
        "diverged": diverged, "final": final,
        "to_target": spent and {"bytes_up": spent, "gradients": spent, "round": 1},
        "bytes_up": 9000, "gradients": 900, "rounds": 9, "seconds": 1.0, "about": {"command": "fedmm leaderboard"},
    }  # fmt: skip


def write(folder: Path, *lines: dict[str, Any]) -> Path:
    path = folder / RESULTS
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    return path


LINES = [
    line("fedmm", 0, 4000), line("fedmm", 1, 6000), line("fedmm", 2, 5000),
    line("slow", 0, 8000), line("slow", 1, None, 0.3), line("slow", 2, 7000),
    line("never", 0, None, 0.5), line("never", 1, None, 0.6), line("never", 2, None, 0.7),
    line("wild", 0, None, None, diverged=True), line("wild", 1, None, None, diverged=True),
    line("wild", 2, None, None, diverged=True),
    line("best", 0, 1000), line("best", 1, 1000), line("best", 2, 1000),
]  # fmt: skip


def test_methods_stand_by_the_bytes_they_need(tmp_path: Path) -> None:
    found = standings(read_results(write(tmp_path, *LINES)))
    own = found["a game"]
    assert [each.method for each in own] == ["best", "fedmm", "slow", "never", "wild"]
    rows = {cells[1].strip(" `"): cells for cells in (row.split("|") for row in problem_table(own).splitlines()[2:])}
    assert rows["fedmm"][2].strip() == "5 (4 to 6)"
    assert rows["best"][2].strip() == "1"
    assert rows["slow"][2:5] == [" 8 (7 to -) ", " 8,000 (7,000 to -) ", " 2 of 3 "]
    assert rows["never"][2].strip() == "-"
    assert rows["never"][5].strip() == "0.6 (0.5 to 0.7)"
    assert rows["wild"][5].strip() == "3 of 3 diverged"
    assert rows["fedmm"][6].strip() == "lr_min 0.1, penalty 1"
    assert "| `best` | **1** |" in overview(found)
    assert "| `wild` | diverged |" in overview(found)


def test_a_method_that_beats_fedmm_is_said_to(tmp_path: Path) -> None:
    [own] = standings(read_results(write(tmp_path, *LINES))).values()
    assert better_than_ours(own) == "1 method needs fewer bytes than `fedmm`: `best`."
    assert better_than_ours(own[1:]) == "No method needs fewer bytes than `fedmm`."
    assert better_than_ours(own[3:]) == ""


def test_the_page_and_the_pictures_come_from_the_results(tmp_path: Path) -> None:
    results = write(tmp_path, *LINES)
    written = draw_board(results, tmp_path / "out")
    assert {path.name for path in written} == {"leaderboard.png", "leaderboard.svg", "leaderboard.md"}
    page = (tmp_path / "out" / "leaderboard.md").read_text(encoding="utf-8")
    assert "## A game" in page
    assert "Target: error, at most 0.2." in page
    assert "    fedmm leaderboard\n" in page
    before = [path.read_bytes() for path in written]
    assert [path.read_bytes() for path in draw_board(results, tmp_path / "out")] == before


def test_a_file_that_holds_no_results_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="is missing"):
        read_results(tmp_path / RESULTS)
    with pytest.raises(FedmmError, match="no finished run"):
        read_results(write(tmp_path))
    with pytest.raises(FedmmError, match="line 1, is not a result of the leaderboard"):
        read_lines(write(tmp_path, {"kind": "else"}))
    with pytest.raises(FedmmError, match="'seed'"):
        read_results(write(tmp_path, {**LINES[0], "seed": -1}))
