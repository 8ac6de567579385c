"""Every method's options are chosen with the same budget, by training signals alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pytest
from torch import Tensor

from fedmm import ALGORITHMS
from fedmm.leaderboard.games import QuadraticGame
from fedmm.leaderboard.play import Game, Played, play
from fedmm.leaderboard.search import SPACE, draw_candidates, judge, search
from fedmm.leaderboard.trials import SEARCH_SEED, Goal, Trace, Trial, compared_methods, count_gradients, uploads


@dataclass(frozen=True)
class Blind(Played):
    """A game whose metric must not be looked at."""

    name: ClassVar[str] = "blind"
    title: ClassVar[str] = "blind"
    goal: ClassVar[Goal] = Goal("nothing", 0.0)
    rates: ClassVar[tuple[float, float]] = (0.01, 1.0)
    rounds: int = 9

    def build(self, seed: int) -> Game:
        assert seed == SEARCH_SEED

        def measure(*_: object) -> float:
            raise AssertionError("the search looked at the metric")

        return replace(QuadraticGame(9).build(seed), measure=measure)


def test_a_search_never_looks_at_the_metric_or_at_a_seed_that_is_shown() -> None:
    problem = Blind()
    found = search(problem, "fedmm", draw_candidates(problem, "fedmm", 9, 9), 9)
    assert found.signal is not None
    assert found.rounds == 9 * 1 + 3 * 3 + 1 * 9


def test_a_search_keeps_the_best_third_of_each_rung_by_the_signal() -> None:
    seen: list[list[Trial]] = []

    class Told(Blind):
        def search(self, trials: Sequence[Trial]) -> list[Trace]:
            seen.append(list(trials))
            return [Trace(signals=[abs(math.log(trial.options["lr_min"] / 0.1))]) for trial in trials]

    tried = draw_candidates(Told(), "fedavg_gda", 9, 90)
    found = search(Told(), "fedavg_gda", tried, 90)
    assert [(len(trials), trials[0].stop) for trials in seen] == [(9, 10), (3, 30), (1, 90)]
    assert found.options == min(tried, key=lambda options: abs(math.log(options["lr_min"] / 0.1)))


def test_where_every_candidate_diverges_the_search_says_so() -> None:
    class Hopeless(Blind):
        def search(self, trials: Sequence[Trial]) -> list[Trace]:
            return [Trace(signals=[1.0], diverged=True) for _ in trials]

    assert search(Hopeless(), "fedsgda", draw_candidates(Hopeless(), "fedsgda", 3, 9), 9).signal is None
    assert judge(Trace(signals=[math.nan])) == math.inf


def test_methods_that_weigh_clients_are_not_compared() -> None:
    assert set(ALGORITHMS) - set(compared_methods()) == {"afl", "fedmm_agnostic", "drfa", "q_ffl"}


@pytest.mark.parametrize("method", compared_methods())
def test_candidates_of_every_method_can_be_built_and_share_their_step_sizes(method: str) -> None:
    problem = QuadraticGame(90)
    candidates = draw_candidates(problem, method, 18, 90)
    rates = [(each["lr_min"], each["lr_max"]) for each in draw_candidates(problem, "fedsgda", 18, 90)]
    assert [(each["lr_min"], each["lr_max"]) for each in candidates] == rates
    assert len({Trial(method, each, 0, 90).algorithm for each in candidates}) == 18
    for name, values in SPACE.get(method, {}).items():
        if name in candidates[0]:
            assert {each[name] for each in candidates} == set(values)


def test_every_row_of_the_space_is_a_method() -> None:
    assert set(SPACE) <= set(ALGORITHMS)


def test_what_a_method_costs_is_counted() -> None:
    """Two gradients where a method looks; one step and 9 others in two rounds; drawn numbers of steps."""

    def gradients(method: str) -> list[int]:
        return count_gradients(Trial(method, {}, 0, 4).algorithm, 5, 7, 4)

    assert gradients("fedsgda") == [5, 5, 5, 5]
    assert gradients("fedmm") == [50, 50, 50, 50]
    assert gradients("extragradient") == gradients("sgda_plus") == gradients("fedsgda_m") == [100, 100, 100, 100]
    assert gradients("fedgda_gt") == [5, 45, 5, 45]
    assert len(set(gradients("proxskip_sgda"))) > 1
    twice = {name for name in compared_methods() if uploads(name) == 2}
    assert twice == {"scaffold_gda", "codasca", "momentum_gda", "fedsgda_m"}


@pytest.mark.parametrize("method", ["fedmm", "scaffold_gda", "fedgda_gt", "extragradient", "proxskip_sgda"])
def test_gradients_and_bytes_of_a_run_are_what_its_clients_did(method: str) -> None:
    game, calls = QuadraticGame(9).build(0), []

    def counted(field: Callable[[Tensor, int], Tensor], z: Tensor, batch: int) -> Tensor:
        calls.append(batch)
        return field(z, batch)

    watched = replace(game, fields=[partial(counted, field) for field in game.fields])
    trace = play(watched, Trial(method, {"lr_min": 0.01, "lr_max": 0.01}, 0, 20, 2), measured=True)
    signals = 2 * len(game.fields)  # at the start, and after the last round
    assert sum(trace.gradients) == len(calls) - signals
    assert trace.bytes_up == [uploads(method) * 5 * 20 * 8] * 2
    assert len(trace.values) == 2


def test_a_run_that_explodes_has_diverged() -> None:
    trace = play(QuadraticGame(9).build(0), Trial("fedsgda", {"lr_min": 9.0, "lr_max": 9.0}, 0, 9), measured=True)
    assert trace.diverged
