"""AFL and FedMM with AFL's weights, on games whose saddles are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from problems import FLOAT64, FieldClient, generator, played, random_game
from torch import Tensor

import fedmm
from fedmm import Terms
from fedmm.core.algorithm import Algorithm, State
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import InProcess

STRENGTH = 2.0
WEIGHTS = torch.tensor([0.5, 0.3, 0.2], dtype=FLOAT64)


def solved_game(regulariser: str, weights: Tensor = WEIGHTS) -> tuple[FederatedProblem, Tensor]:
    """A problem whose saddle is z* with these weights, for the given regulariser, and z*.

    z*: the weighted fields in omega sum to 0 there, and in psi all are 0: the sum of weights[i] f_i is no concave
    function of psi and the weights together, but about such a point it is.
    weights: f_i(z*) less the regulariser's derivative is the same for all i, because each f_i's constant is chosen so.
    """
    clients = list(random_game(5, clients=len(weights)).clients)
    z = torch.randn(5, dtype=FLOAT64, generator=generator(6))
    fields = [client.field(z) for client in clients]
    clients = [replace(q, a=q.a - 0.75 * F[:3], c=q.c - F[3:]) for q, F in zip(clients, fields, strict=True)]
    pull = sum((w * each.field(z)[:3] for w, each in zip(weights, clients, strict=True)), torch.zeros(3, dtype=FLOAT64))
    clients[-1] = replace(clients[-1], a=clients[-1].a - pull / weights[-1])
    count = len(weights)
    slopes = {
        "chi_square": STRENGTH * (count * weights - 1),
        "kl": STRENGTH * (count * weights).log(),
        "none": torch.zeros_like(weights),
    }[regulariser]
    layout = Layout.of(torch.zeros(3, dtype=FLOAT64), torch.zeros(2, dtype=FLOAT64))
    named = [
        FieldClient(f"c{i}", client.field, partial(raised, client.value, slope - client.value(z)))
        for i, (client, slope) in enumerate(zip(clients, slopes, strict=True))
    ]
    return FederatedProblem(layout, torch.zeros(5, dtype=FLOAT64), named), z


def raised(value: Callable[[Tensor], Tensor], constant: Tensor, z: Tensor) -> Tensor:
    return value(z) + constant


def solution(problem: FederatedProblem, algorithm: Algorithm, rounds: int, terms: Terms | None = None) -> State:
    *_, (state, _) = played(InProcess(problem, algorithm, rounds, terms or Terms()), rounds)
    return state.server


def options(regulariser: str) -> dict[str, Any]:
    return {"regulariser": regulariser, "regulariser_weight": 0.0 if regulariser == "none" else STRENGTH}


@pytest.mark.parametrize(
    ("regulariser", "shares"), [("none", [0.6, 0.4]), ("chi_square", [0.5, 0.3, 0.2]), ("kl", [0.5, 0.3, 0.2])]
)
def test_afl_finds_the_saddle_of_a_game_with_known_weights(regulariser: str, shares: list[float]) -> None:
    weights = torch.tensor(shares, dtype=FLOAT64)
    problem, z = solved_game(regulariser, weights)
    found = solution(problem, fedmm.AFL(0.05, 0.05, lr_weights=0.05, **options(regulariser)), 600)
    torch.testing.assert_close(found["z"], z, rtol=0, atol=1e-8)
    torch.testing.assert_close(found["weights"], weights, rtol=0, atol=1e-8)


@pytest.mark.parametrize("regulariser", ["chi_square", "kl"])
def test_fedmm_finds_it_with_many_local_steps_where_afl_does_not(regulariser: str) -> None:
    problem, z = solved_game(regulariser)
    rates = {"lr_min": 0.05, "lr_max": 0.05, "local_steps": 10, "lr_weights": 0.05, **options(regulariser)}
    found = solution(problem, fedmm.AgnosticFedMM(penalty_min=4.0, penalty_max=4.0, **rates), 300)
    torch.testing.assert_close(found["z"], z, rtol=0, atol=1e-8)
    torch.testing.assert_close(found["weights"], WEIGHTS, rtol=0, atol=1e-8)
    drifted = solution(problem, fedmm.AFL(**rates), 300)
    assert float((drifted["z"] - z).norm()) > 0.01
