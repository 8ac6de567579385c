"""Propositions 1 to 4 of the paper's appendix, "Basic Properties of FedMM", with local problems solved exactly.

In the signed field F_i, 1 and 2 (psi and omega) are one statement, and so are 3 and 4:

    1, 2:  sum z_i^{t+1} = sum z_i^t - (1/mu) sum F_i(z_i^{t+1})          from the first round, with z_i^0 = z_0^0
    3, 4:  mu (z_i^{t+1} - z_0^t) = F_i(z_i^t) - F_i(z_i^{t+1})           from the second round
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import Game, Quadratic, all_counted, games, random_game
from torch import Tensor

from fedmm import FedMM
from fedmm.core.algorithm import State

penalties = st.floats(0.3, 4.0)
ROUNDS = 4


class Round(NamedTuple):
    z_0: Tensor
    before: list[Tensor]
    after: list[Tensor]


def local_saddle(client: Quadratic, z_0: Tensor, dual: Tensor, mu: Tensor) -> Tensor:
    """Where F_i(z) + mu (z - z_0) + dual = 0: one linear system, as F_i(z) = H z + h."""
    return torch.linalg.solve(client.matrix + torch.diag(mu), mu * z_0 - dual - client.offset)


def exact_rounds(game: Game, algorithm: FedMM) -> Iterator[Round]:
    server = algorithm.init_server(torch.cat(game.start))
    own: list[State] = [algorithm.init_client(server["z"]) for _ in game.clients]
    points = [server["z"] for _ in game.clients]
    for t in range(ROUNDS):
        c = algorithm.coefficients(game.layout, t, ROUNDS)
        mu = c.penalty.expand(game.layout.size)
        after = [local_saddle(q, server["z"], state["dual"], mu) for q, state in zip(game.clients, own, strict=True)]
        yield Round(server["z"], points, after)
        finished = [algorithm.finish(z, server, state, c) for z, state in zip(after, own, strict=True)]
        came = all_counted(algorithm, {"z": torch.stack([upload["z"] for upload, _ in finished])}, server)
        server, own, points = algorithm.server_update(server, came, c), [state for _, state in finished], after


def mu_vector(game: Game, algorithm: FedMM) -> Tensor:
    return algorithm.coefficients(game.layout, 0, ROUNDS).penalty


@given(games, penalties, penalties)
def test_propositions_1_and_2_hold_from_the_first_round(game: Game, mu1: float, mu2: float) -> None:
    algorithm = FedMM(penalty_min=mu1, penalty_max=mu2)
    for step in exact_rounds(game, algorithm):
        fields = sum(q.field(z) for q, z in zip(game.clients, step.after, strict=True))
        expected = sum(step.before) - fields / mu_vector(game, algorithm)
        torch.testing.assert_close(sum(step.after), expected, rtol=1e-9, atol=1e-9)


@given(games, penalties, penalties)
def test_propositions_3_and_4_hold_from_the_second_round(game: Game, mu1: float, mu2: float) -> None:
    algorithm = FedMM(penalty_min=mu1, penalty_max=mu2)
    for step in list(exact_rounds(game, algorithm))[1:]:
        for q, before, after in zip(game.clients, step.before, step.after, strict=True):
            moved = mu_vector(game, algorithm) * (after - step.z_0)
            torch.testing.assert_close(moved, q.field(before) - q.field(after), rtol=1e-9, atol=1e-9)


def test_propositions_3_and_4_do_not_hold_in_the_first_round() -> None:
    # The duals start at 0 and not at -F_i(z_0): mu (z_i - z_0) = -F_i(z_i), short of the proposition by F_i(z_0).
    game, algorithm = random_game(0), FedMM()
    first = next(exact_rounds(game, algorithm))
    for q, after in zip(game.clients, first.after, strict=True):
        moved = mu_vector(game, algorithm) * (after - first.z_0)
        shortfall = q.field(first.z_0) - q.field(after) - moved
        torch.testing.assert_close(shortfall, q.field(first.z_0), rtol=1e-9, atol=1e-9)
        assert float(shortfall.norm()) > 1


@pytest.mark.parametrize("t", [1, 2])
def test_propositions_1_and_2_need_eta3_to_be_one(t: int) -> None:
    game, algorithm = random_game(0), FedMM(dual_decay=0.5)
    step = list(exact_rounds(game, algorithm))[t + 1]
    fields = sum(q.field(z) for q, z in zip(game.clients, step.after, strict=True))
    gap = sum(step.after) - sum(step.before) + fields / mu_vector(game, algorithm)
    assert float(gap.norm()) > 0.01


@given(games, penalties, penalties, st.integers(0, 2**31))
def test_a_local_step_stays_at_the_local_saddle(game: Game, mu1: float, mu2: float, seed: int) -> None:
    # so many tiny local steps, which contract, end there
    algorithm = FedMM(penalty_min=mu1, penalty_max=mu2)
    random = torch.Generator().manual_seed(seed)
    z_0, dual = (torch.randn(game.layout.size, dtype=torch.float64, generator=random) for _ in range(2))
    c = algorithm.coefficients(game.layout, 0, 1)
    for q in game.clients:
        z = local_saddle(q, z_0, dual, c.penalty.expand(game.layout.size))
        moved = algorithm.local_step(z, {"z": z_0}, {"dual": dual}, q.field(z), c)
        torch.testing.assert_close(moved, z, rtol=0, atol=1e-12)


def test_many_tiny_local_steps_reach_the_local_saddle() -> None:
    game = random_game(7, clients=1)
    algorithm = FedMM(0.02, 0.02, 0.5, 2.0, local_steps=1500)

    state = game.play(algorithm, 1)

    mu = mu_vector(game, algorithm)
    exact = local_saddle(game.clients[0], torch.cat(game.start), torch.zeros(game.layout.size, dtype=mu.dtype), mu)
    torch.testing.assert_close(state.clients["client-0"]["dual"], mu * exact, rtol=0, atol=1e-10)
