"""FedGDA-GT: the papers' rule in pairs of rounds, its linear rate, and clients that miss one round of a pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import Game, games, played, random_game
from torch import Tensor

import fedmm
from fedmm import FedAvgGDA, FedGDAGT, FedmmError, Terms
from fedmm.core.engine import FederatedState
from fedmm.core.federation import taking_part
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Update
from fedmm.training.solve import default_names


def test_two_rounds_are_the_papers_rule_worked_out_by_hand() -> None:
    # z_i <- z_i - eta (F_i(z_i) - F_i(z_0) + mean of F_j(z_0)), M_i times from z_0; z_0 <- mean of z_i
    game = random_game(1)
    eta, steps, iterations = 0.05, [4, 2, 5], 6
    state = game.play(FedGDAGT(eta, eta, steps), 2 * iterations)
    z = torch.cat(game.start)
    for _ in range(iterations):
        mean = torch.stack([client.field(z) for client in game.clients]).mean(0)
        ends = []
        for client, number in zip(game.clients, steps, strict=True):
            own = z
            for _ in range(number):
                own = own - eta * (client.field(own) - client.field(z) + mean)
            ends.append(own)
        z = torch.stack(ends).mean(0)
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)


def one_pair(game: Game, eta: float, steps: int) -> Tensor:
    """What a pair of rounds multiplies the distance to the saddle with: I - eta (mean of S_i) A.

    F_i = A_i z + b_i and A is the mean A_i, so that A z_0 + b = A (z_0 - z*) and a local step is z - z_0 <-
    (I - eta A_i) (z - z_0) - eta A (z_0 - z*); S_i is the sum of (I - eta A_i)^k over the steps k < M.
    """
    matrices = torch.stack([client.matrix for client in game.clients])
    eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    powers = [torch.linalg.matrix_power(eye - eta * matrices, k) for k in range(steps)]
    return eye - eta * torch.stack(powers).sum(0).mean(0) @ matrices.mean(0)


def constants(game: Game) -> tuple[float, float]:
    """mu, for which the mean field is strongly monotone, and L, for which every client's is Lipschitz."""
    matrices = torch.stack([client.matrix for client in game.clients])
    mean = matrices.mean(0)
    mu = float(torch.linalg.eigvalsh((mean + mean.T) / 2).min())
    return mu, float(torch.linalg.matrix_norm(matrices, 2).max())


@given(games, st.integers(2, 6), st.floats(0.05, 0.95))
@settings(max_examples=25, deadline=None)
def test_its_rate_on_strongly_convex_concave_quadratics(game: Game, steps: int, share: float) -> None:
    """With x = eta M L, the distance shrinks by the root of 1 - 2 x mu / L + x^2, and by what S_i / M is off I.

    ||S_i - M I|| is at most e = the sum of (1 + eta L)^k - 1 over k < M. So the rate is below 1 for a constant step
    size, and has no term for how unlike the clients are; the step sizes are those of the published theorem, as the
    authors of ProxSkip give it: M mu eta > 2 (M L eta)^2 + (M L eta)^4, and eta below 2 mu / L^2 and 1 / (2 M mu).
    """
    mu, L = constants(game)
    x = share * root(lambda x: mu / L - 2 * x - x**3)
    eta = min(x / (steps * L), 2 * mu / L**2, 1 / (2 * steps * mu))
    x = eta * steps * L
    e = sum((1 + eta * L) ** k - 1 for k in range(steps))
    rate = math.sqrt(1 - 2 * x * mu / L + x * x) + eta * L * e
    factor, pairs = one_pair(game, eta, steps), 4
    assert torch.linalg.matrix_norm(factor, 2) <= rate * (1 + 1e-12)
    assert rate < 1
    *_, (state, _) = played(InProcess(game.problem(), FedGDAGT(eta, eta, steps), 2 * pairs), 2 * pairs)
    expected = torch.linalg.matrix_power(factor, pairs) @ -game.saddle
    torch.testing.assert_close(state.z - game.saddle, expected, rtol=1e-9, atol=1e-11 * float(game.saddle.norm()))
    assert game.error(state) <= rate**pairs * (1 + 1e-9)


def root(decreasing: Callable[[float], float]) -> float:
    """Where a function that falls from a positive value at 0 passes 0, below 1."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if decreasing(middle) > 0 else (low, middle)
    return low


def test_it_converges_linearly_to_the_saddle_where_averaging_stops_short_of_it() -> None:
    game = random_game(2)
    errors = [game.error(game.play(FedGDAGT(0.05, 0.05, 5), rounds)) for rounds in (30, 60, 200)]
    assert errors[2] < 1e-12
    assert errors[1] < errors[0] ** 2 * 10  # as many rounds again take away as many digits again
    assert game.error(game.play(FedAvgGDA(0.05, 0.05, 5), 1000)) > 1e-3


def test_a_first_round_has_one_step_and_the_next_round_the_others() -> None:
    algorithm = FedGDAGT(local_steps=7)
    assert [algorithm.steps_in(7, 0, t) for t in range(4)] == [1, 6, 1, 6]
    assert algorithm.most_steps(7) == 6


@pytest.mark.parametrize("steps", [1, [2, 1], {"a": 1}])
def test_fewer_than_two_local_steps_are_refused(steps: object) -> None:
    with pytest.raises(FedmmError, match="local_steps of fedgda_gt must be at least 2"):
        FedGDAGT(local_steps=steps)  # type: ignore[arg-type]


def test_a_schedules_rate_is_the_same_in_both_rounds_of_a_pair() -> None:
    game = random_game(1)
    algorithm = FedGDAGT(lr_schedule="dann_decay")
    rates = [algorithm.coefficients(game.layout, t, 10).lr for t in range(6)]
    assert all(torch.equal(rates[t], rates[t + 1]) for t in (0, 2, 4))
    assert not torch.equal(rates[1], rates[2])


# Clients that are not there -------------------------------------------------------------------------------------------


def counted_in(state: FederatedState) -> set[str]:
    """Whose update counted in the last round."""
    return {name for name, at in state.counted.items() if at == state.round - 1}


def test_the_clients_of_a_first_round_are_those_of_the_steps() -> None:
    game = random_game(3, clients=6)
    engine = InProcess(replace(game.problem(), seed=5), FedGDAGT(0.02, 0.02, 3), 40, Terms(participation=0.5))
    pairs = []
    for state, record in played(engine, 40):
        assert record.clients == 3
        pairs.append(counted_in(state))
    assert all(pairs[t] == pairs[t + 1] for t in range(0, 40, 2))
    assert len({frozenset(each) for each in pairs}) > 5
    assert pairs[0] == set(taking_part(engine.server.names, 0.5, 5, 0))


class Absent(InProcess):
    """Loses the updates of some clients in some rounds."""

    def __init__(self, *args: object, missing: dict[int, set[str]]) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.missing = missing

    def run_round(self, state: FederatedState):  # type: ignore[no-untyped-def]
        gone = self.missing.get(state.round, set())
        settle = self.server.settle_round

        def lossy(state, invitations, updates, **options):  # type: ignore[no-untyped-def]
            arriving = [update for update in updates if isinstance(update, Update) and update.client not in gone]
            return settle(state, invitations, arriving, **options)

        self.server.settle_round = lossy  # type: ignore[method-assign]
        try:
            return super().run_round(state)
        finally:
            self.server.settle_round = settle  # type: ignore[method-assign]


def states_without(missing: dict[int, set[str]], rounds: int = 4) -> list[FederatedState]:
    game = random_game(4)
    engine = Absent(game.problem(), FedGDAGT(0.05, 0.05, 3), rounds, Terms(), missing=missing)
    return [state for state, _ in played(engine, rounds)]


def test_who_missed_the_first_round_is_not_asked_for_the_steps_and_returns_with_the_next() -> None:
    states = states_without({0: {"client-1"}})
    everyone = set(states[-1].clients)
    assert counted_in(states[0]) == counted_in(states[1]) == everyone - {"client-1"}
    assert counted_in(states[2]) == counted_in(states[3]) == everyone


def test_who_answers_the_first_round_and_then_dies_is_left_out_of_the_mean_of_the_steps_alone() -> None:
    whole, missing = states_without({}), states_without({1: {"client-1"}})
    assert torch.equal(whole[0].z, missing[0].z)
    assert counted_in(missing[1]) == set(whole[1].clients) - {"client-1"}
    assert not torch.equal(whole[1].z, missing[1].z)
    assert counted_in(missing[2]) == set(whole[2].clients)


def test_a_first_round_that_nobody_answers_leaves_all_as_it_was_and_nobody_is_asked_for_the_steps() -> None:
    states = states_without({2: {"client-0", "client-1", "client-2"}}, rounds=6)
    assert torch.equal(states[2].z, states[1].z)
    assert torch.equal(states[3].z, states[1].z)
    assert counted_in(states[3]) == set()
    assert counted_in(states[5]) == set(states[5].clients)


def test_at_a_saddle_it_stays_whoever_dies_after_the_first_round() -> None:
    game = random_game(4)
    problem = replace(game.problem(), start=game.saddle)
    engine = Absent(problem, FedGDAGT(0.05, 0.05, 3), 4, Terms(), missing={1: {"client-0"}, 3: {"client-2"}})
    *_, (state, _) = played(engine, 4)
    torch.testing.assert_close(state.z, game.saddle, rtol=0, atol=1e-12)


def test_noise_is_accounted_for_in_both_rounds_of_a_pair() -> None:
    pytest.importorskip("dp_accounting")
    game = random_game(3, clients=4)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return x.square().sum() - y.square().sum() + (x.sum() * y.sum())

    terms = Terms(
        participation=0.5, transmission=fedmm.GaussianUpdate(norm_min=1.0, norm_max=1.0, noise_min=4.0, noise_max=4.0)
    )
    start = (torch.ones(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64))
    solution = fedmm.solve([loss] * len(game.clients), start, FedGDAGT(0.01, 0.01, 2), 8, terms=terms, seed=1)
    epsilons = [float(each) for each in solution.history["epsilon"]]
    attended = [set(taking_part(default_names(4), 0.5, 1, t - t % 2)) for t in range(8)]
    most = [max(sum(name in each for each in attended[: t + 1]) for name in set().union(*attended)) for t in range(8)]
    assert most[1] == 2
    for t in range(1, 8):
        assert (epsilons[t] > epsilons[t - 1]) == (most[t] > most[t - 1])
