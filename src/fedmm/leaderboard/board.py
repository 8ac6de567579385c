"""The leaderboard's runs; those in the results file already are not repeated."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.core.errors import FedmmError, Say
from fedmm.leaderboard.adaptations import AdaptationProblem
from fedmm.leaderboard.auc import LabelSortedAuc
from fedmm.leaderboard.games import GaussianGan, QuadraticGame, RobustLeastSquares
from fedmm.leaderboard.results import append_line, find_line, identify, make_folder, read_lines, run_line
from fedmm.leaderboard.search import draw_candidates, search
from fedmm.leaderboard.trials import Problem, Trial, uploads
from fedmm.training.progress import bars


@dataclass(frozen=True)
class Scale:
    """The size of a leaderboard: candidates per method, seeds of the reported runs, and rounds of the problems."""

    candidates: int
    seeds: int
    game_rounds: int
    digits_rounds: int
    mnist_m_rounds: int = 0


SCALES = {"smoke": Scale(9, 2, 18, 18), "full": Scale(12, 5, 54, 300, 1000)}


def list_problems(scale: str, kappa: float, heterogeneity: float, device: str = "cpu") -> dict[str, Problem]:
    """Return the problems of a scale by name. device: for those that train networks."""
    size = SCALES[scale]
    found: list[Problem] = [
        QuadraticGame(size.game_rounds, kappa, heterogeneity),
        RobustLeastSquares(size.game_rounds),
        LabelSortedAuc(size.game_rounds, "digits"),
        GaussianGan(size.game_rounds),
        AdaptationProblem("turned_digits", size.digits_rounds, device),
    ]
    if scale == "full":
        found += [LabelSortedAuc(size.game_rounds, "mnist"), AdaptationProblem("mnist_m", size.mnist_m_rounds, device)]
    return {problem.name: problem for problem in found}


@dataclass(frozen=True)
class Board:
    """Runs every method on every problem with the same budget, and writes the results.

    scale: its name, part of every line. about: what the lines record about the machine and the command.
    """

    scale: str
    candidates: int
    seeds: int
    results: Path
    about: Mapping[str, Any]

    def run(self, problems: Sequence[Problem], methods: Sequence[str], *, progress: bool, say: Say) -> None:
        """Search for the options of every method on every problem, then run it with each seed."""
        make_folder(self.results)
        ready = [problem for problem in problems if _is_ready(problem, say)]
        with bars(progress, "note") as bar:
            planned = [(problem, method) for problem in ready for method in methods if _differs(problem, method, say)]
            task = bar.add_task("leaderboard", total=len(planned), note="")
            for problem, method in planned:
                bar.update(task, note=f"{method} on {problem.name}")
                self._run_method(problem, method)
                bar.advance(task)

    def _run_method(self, problem: Problem, method: str) -> None:
        rounds = max(1, problem.rounds // uploads(method))
        options = self._search(problem, method, rounds)
        lines = read_lines(self.results)
        identities = {
            seed: identify("run", problem, method, scale=self.scale, options=options, seed=seed, planned=rounds)
            for seed in range(self.seeds)
        }
        missing = [seed for seed, identity in identities.items() if find_line(lines, identity) is None]
        for seeds in [missing] if problem.stacked and missing else [[seed] for seed in missing]:
            began = time.perf_counter()
            traces = problem.run([Trial(method, options, seed, rounds) for seed in seeds])
            seconds = (time.perf_counter() - began) / len(seeds)
            for seed, trace in zip(seeds, traces, strict=True):
                append_line(self.results, run_line(identities[seed], problem, trace, seconds, self.about))

    def _search(self, problem: Problem, method: str, rounds: int) -> dict[str, Any]:
        """Return the options that the search chooses, or chose earlier from the same candidates."""
        tried = draw_candidates(problem, method, self.candidates, rounds)
        identity = identify("search", problem, method, scale=self.scale, candidates=_digest(tried), planned=rounds)
        known = find_line(read_lines(self.results), identity)
        if known is None:
            began = time.perf_counter()
            found = search(problem, method, tried, rounds)
            known = {
                **identity,
                "title": problem.title,
                "chosen": dict(found.options),
                "signal": found.signal,
                "rounds": found.rounds,
                "seconds": round(time.perf_counter() - began, 2),
                "about": dict(self.about),
            }
            append_line(self.results, known)
        return dict(known["chosen"])


def _differs(problem: Problem, method: str, say: Say) -> bool:
    if isinstance(problem, AdaptationProblem) or not ALGORITHMS[method].restrains:
        return True
    say(f"{method} is skipped on {problem.name}, which has no features to restrain: it would equal fedmm")
    return False


def _digest(candidates: Sequence[Mapping[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(candidates).encode()).hexdigest()[:16]


def _is_ready(problem: Problem, say: Say) -> bool:
    try:
        problem.require_ready()
    except FedmmError as missing:
        say(f"{problem.name} is skipped: {missing}")
        return False
    return True
