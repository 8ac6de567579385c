"""AFL, FedMM with AFL's weights, DRFA and q-FFL, on problems whose answers are known."""

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
from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.core.projections import Simplex
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
    found = solution(problem, fedmm.AFL(0.05, 0.05, lr_weights=0.05, **options(regulariser)), 400)
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


@pytest.mark.parametrize("regulariser", ["chi_square", "kl"])
def test_drfa_finds_it_with_one_local_step_and_all_clients(regulariser: str) -> None:
    problem, z = solved_game(regulariser)
    algorithm = fedmm.DRFA(0.05, 0.05, local_steps=1, lr_weights=0.05, **options(regulariser))
    found = solution(problem, algorithm, 600)
    torch.testing.assert_close(found["z"], z, rtol=0, atol=1e-8)
    torch.testing.assert_close(found["weights"], WEIGHTS, rtol=0, atol=1e-8)


def test_a_pair_of_drfa_by_hand() -> None:
    # Fields 1, 2 and 3 in omega, losses x, 2 x and 3 x + 1, three steps of 0.1 from 0, all clients, equal weights: they
    # go to -0.3, -0.6 and -0.9, by a third of that in each step. Then all tell their losses at the mean after t' steps,
    # and the weights take a step of 3 times 0.1 along them.
    layout = Layout.of(torch.zeros(1, dtype=FLOAT64), torch.zeros(0, dtype=FLOAT64))
    clients = [
        FieldClient(f"c{k}", partial(torch.full_like, fill_value=k), partial(line, k, float(k == 3))) for k in (1, 2, 3)
    ]
    problem = FederatedProblem(layout, torch.zeros(1, dtype=FLOAT64), clients)
    engine = InProcess(problem, fedmm.DRFA(0.1, 0.1, local_steps=3, lr_weights=0.1), 2)
    (first, one), (second, two) = played(engine, 2)
    assert float(first.z) == pytest.approx(-0.6, abs=1e-15)
    snapshot = float(first.server["asked"])
    assert min(abs(snapshot - mean) for mean in (-0.2, -0.4, -0.6)) < 1e-15
    assert torch.equal(second.z, first.z)
    raised_by = 0.3 * torch.tensor([snapshot, 2 * snapshot, 3 * snapshot + 1], dtype=FLOAT64)
    torch.testing.assert_close(second.server["weights"], Simplex().project(1 / 3 + raised_by), rtol=0, atol=1e-15)
    assert (one.bytes_up, two.bytes_up) == (3 * 8 * (2 + 1), 3 * 8)
    assert (one.bytes_down, two.bytes_down) == (3 * 8 * 2, 3 * 8 * 2)


def line(slope: float, constant: float, z: Tensor) -> Tensor:
    return slope * z.sum() + constant


def test_snapshots_are_of_every_local_step_alike() -> None:
    layout = Layout.of(torch.zeros(1, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
    algorithm = fedmm.DRFA(local_steps=4)
    chosen = [int(float(algorithm.coefficients(layout, t, 400).snapshot) * 4) for t in range(0, 400, 2)]
    assert all(30 <= chosen.count(step) <= 70 for step in range(4))  # 50 on average, and always the same numbers


@pytest.mark.parametrize("share", [0.34, 0.67])
def test_with_equal_weights_drfa_draws_clients_that_count_alike(share: float) -> None:
    engine = InProcess(random_game(3).problem(), fedmm.DRFA(local_steps=2), 1, Terms(participation=share))
    invitations = engine.server.invitations(engine.start())
    assert len(invitations) == round(3 * share)
    assert all(each.importance == pytest.approx(1.0, abs=1e-12) for each in invitations.values())


def test_q_ffl_finds_the_least_sum_of_powers() -> None:
    # Of (x - 0)^2 / 2 twice and (x - 3)^2 / 2 with q = 1: the sum of their squares has the derivative
    # 2 x^3 + (x - 3)^3 up to a factor, which is 0 at 3 / (1 + 2^(1/3)).
    functions = [lambda x, y, a=a: 0.5 * ((x - a) ** 2).sum() for a in (0.0, 0.0, 3.0)]
    start = (torch.full((1,), 2.0, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
    found = fedmm.solve(functions, start, fedmm.QFFL(0.2, 0.2, local_steps=1, q=1.0), 300)
    assert float(found.omega) == pytest.approx(3 / (1 + 2 ** (1 / 3)), abs=1e-8)


def test_q_ffl_with_q_0_is_fedavg_gda() -> None:
    game = random_game(4)
    rates = {"lr_min": 0.05, "lr_max": 0.03, "local_steps": 3}
    one = solution(game.problem(), fedmm.QFFL(q=0.0, **rates), 5)["z"]
    torch.testing.assert_close(one, solution(game.problem(), fedmm.FedAvgGDA(**rates), 5)["z"], rtol=1e-13, atol=1e-13)


def test_a_step_of_q_ffl_by_hand() -> None:
    # From x = 1 with a rate of 0.1, losses 0.5 and 2, gradients 1 and -2: the paper's Delta_i is f_i^q times those,
    # h_i is q f_i^(q-1) |gradient|^2 + 10 f_i^q, and the step is minus the sum of Delta_i over that of h_i.
    functions = [lambda x, y, a=a: 0.5 * ((x - a) ** 2).sum() for a in (0.0, 3.0)]
    start = (torch.ones(1, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
    found = fedmm.solve(functions, start, fedmm.QFFL(0.1, 0.1, local_steps=1, q=2.0), 1)
    delta = 0.5**2 * 1 + 2.0**2 * -2
    h = (2 * 0.5 * 1 + 10 * 0.5**2) + (2 * 2.0 * 4 + 10 * 2.0**2)
    assert float(found.omega) == pytest.approx(1 - delta / h, abs=1e-14)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lr_weights": 0.0}, "lr_weights"),
        ({"regulariser": "entropy"}, "regulariser"),
        ({"weighs": "source"}, "weighs must be one of all, target, not 'source'"),
        ({"regulariser": "kl", "regulariser_weight": -1.0}, "regulariser_weight"),
        ({"regulariser_weight": 1.0}, "regulariser_weight must be 0 if regulariser is 'none'"),
        ({"regulariser": "kl", "regulariser_weight": 200.0}, "must be at most 1 with the regulariser 'kl'"),
    ],
)
@pytest.mark.parametrize("kind", [fedmm.AFL, fedmm.AgnosticFedMM, fedmm.DRFA])
def test_options_that_cannot_be_are_refused(kind: type[Algorithm], given: dict[str, Any], told: str) -> None:
    with pytest.raises(fedmm.FedmmError, match=told):
        kind(**given)


def test_clients_that_are_away_count_by_those_who_are_there() -> None:
    # One of two tells its loss 1.5: it counts twice, and the other's weight falls as much as its own rises.
    counted = torch.tensor([True, False])
    uploads = Aggregated({}, {}, {"loss": torch.tensor([1.5, 0.0])}, counted)
    algorithm, weights = fedmm.AFL(), torch.tensor([0.5, 0.5])
    after = algorithm.ascended(weights, uploads, torch.tensor(0.1), Coefficients())
    torch.testing.assert_close(after, torch.tensor([0.65, 0.35]))
