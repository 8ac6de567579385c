"""Every recorded case of golden/games.json, through ``fedmm.solve``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import FLOAT64, golden, golden_game

import fedmm
from fedmm.core.algorithm import Algorithm

CASES = golden("games")["cases"]


def algorithm_of(case: dict[str, Any]) -> Algorithm:
    rates = {"lr_min": case["lr"], "lr_max": case["lr"]}
    steps = {"local_steps": case["local_steps"]}
    penalties = {"penalty_min": case.get("mu"), "penalty_max": case.get("mu")}
    match case["algorithm"]:
        case "sgda":
            return fedmm.FedSGDA(**rates)
        case "avg":
            return fedmm.FedAvgGDA(**rates, **steps)
        case "prox":
            return fedmm.FedProxGDA(**rates, **steps, **penalties)
        case "fedmm":
            return fedmm.FedMM(**rates, **steps, **penalties, dual_decay=case.get("eta3", 1.0))
        case "scaffold":
            return fedmm.ScaffoldGDA(**rates, **steps)
    raise AssertionError(case["algorithm"])


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['algorithm']}-eta3={case.get('eta3', 1.0):.2f}-{case['rounds']}"
)
def test_solve_ends_at_the_recorded_point(case: dict[str, Any]) -> None:
    game = golden_game()

    solution = fedmm.solve(game.clients, game.start, algorithm_of(case), case["rounds"])

    expected = torch.tensor(case["z"], dtype=FLOAT64)
    torch.testing.assert_close(torch.cat([solution.omega, solution.psi]), expected, rtol=0, atol=1e-10)


def test_the_recorded_saddle_is_where_the_mean_field_vanishes() -> None:
    saddle = torch.tensor(golden("games")["saddle"], dtype=FLOAT64)
    torch.testing.assert_close(golden_game().saddle, saddle, rtol=0, atol=1e-12)


def test_the_closed_form_field_of_the_test_problems_is_the_gradient_that_solve_takes() -> None:
    game = golden_game()
    algorithm = fedmm.FedMM(0.02, 0.03, 1.5, 0.5, dual_decay=0.9, local_steps=5)

    solution = fedmm.solve(game.clients, game.start, algorithm, 4, names=game.names)

    state = game.play(algorithm, 4)
    torch.testing.assert_close(torch.cat([solution.omega, solution.psi]), state.z, rtol=0, atol=1e-13)
    for own, name in zip(solution.clients, game.names, strict=True):
        torch.testing.assert_close(own["dual"], state.clients[name]["dual"], rtol=0, atol=1e-13)
