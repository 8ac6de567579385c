"""ProxSkip-SGDA: the paper's rule, its fixed point, and rounds of drawn length."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from problems import played, random_game

import fedmm
from fedmm import FedmmError, ProxSkipSGDA
from fedmm.core.problem import FederatedProblem
from fedmm.core.schedules import GeometricSteps
from fedmm.engines.in_process import InProcess


def test_it_is_the_papers_rule_worked_out_by_hand() -> None:
    # zhat_i = z_i - g (F_i - h_i); where the coin falls: z = mean of zhat_i - (g / p) h_i, h_i += (p / g) (z - zhat_i)
    game = random_game(1)
    g, mean, rounds, seed = 0.05, 4, 8, 7
    p = 1 / mean
    algorithm = ProxSkipSGDA(g, g, mean)
    problem = FederatedProblem(game.layout, torch.cat(game.start), game.problem().clients, seed=seed)
    *_, (state, _) = played(InProcess(problem, algorithm, rounds), rounds)
    z = torch.cat(game.start)
    h = [torch.zeros_like(z) for _ in game.clients]
    taken = []
    for t in range(rounds):
        steps = GeometricSteps(mean).steps(1, seed, t)
        taken.append(steps)
        ends = []
        for client, control in zip(game.clients, h, strict=True):
            own = z
            for _ in range(steps):
                own = own - g * (client.field(own) - control)
            ends.append(own)
        z = torch.stack([end - (g / p) * control for end, control in zip(ends, h, strict=True)]).mean(0)
        h = [control + (p / g) * (z - end) for control, end in zip(h, ends, strict=True)]
    assert len(set(taken)) > 2
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)
    for own, control in zip(state.clients.values(), h, strict=True):
        torch.testing.assert_close(state.server["mean_dual"] - own["dual"], control, rtol=1e-10, atol=1e-11)


def test_it_converges_to_the_saddle_of_different_clients_and_its_controls_to_their_fields_there() -> None:
    game = random_game(2)
    state = game.play(ProxSkipSGDA(0.1, 0.1, 3), 300)
    assert game.error(state) < 1e-10
    for client, own in zip(game.clients, state.clients.values(), strict=True):
        control = state.server["mean_dual"] - own["dual"]
        torch.testing.assert_close(control, client.field(game.saddle), rtol=0, atol=1e-8)


def test_a_share_of_the_clients_reaches_the_saddle_too() -> None:
    game = random_game(3, clients=4)
    engine = InProcess(game.problem(), ProxSkipSGDA(0.03, 0.03, 2), 3000, fedmm.Terms(participation=0.5))
    *_, (state, _) = played(engine, 3000)
    assert game.error(state) < 1e-6
    duals = torch.stack([own["dual"] for own in state.clients.values()])
    torch.testing.assert_close(state.server["mean_dual"], duals.mean(0), rtol=0, atol=1e-9)


# Drawn numbers of steps -----------------------------------------------------------------------------------------------


def test_the_numbers_of_steps_are_geometric() -> None:
    # P(steps = k) = p (1 - p)^(k - 1): within 5 standard deviations of what 20,000 rounds would count
    drawn = GeometricSteps(5)
    counts = Counter(drawn.steps(1, 0, t) for t in range(20_000))
    for k in range(1, 12):
        chance = 0.2 * 0.8 ** (k - 1)
        assert abs(counts[k] - 20_000 * chance) < 5 * math.sqrt(20_000 * chance * (1 - chance))
    assert max(counts) <= drawn.most(1) == 50


def test_they_follow_from_seed_and_round_alone() -> None:
    first, other = ([GeometricSteps(5).steps(1, seed, t) for t in range(50)] for seed in (0, 1))
    assert first == [GeometricSteps(5).steps(1, 0, t) for t in range(50)]
    assert first != other


def test_a_mean_of_one_is_one_step() -> None:
    assert {GeometricSteps(1).steps(1, 0, t) for t in range(100)} == {1}


def test_every_client_takes_the_same_number() -> None:
    # F = 1 everywhere: a client goes as far as its number of steps.
    start = (torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64))
    found = fedmm.solve([lambda x, y: x - y] * 3, start, ProxSkipSGDA(0.1, 0.1, 4), 6, seed=3)
    expected = [0.1 * math.sqrt(2) * GeometricSteps(4).steps(1, 3, t) for t in range(6)]
    assert [row["drift"] for row in found.history] == pytest.approx(expected, rel=1e-12)
    assert [row["consensus_gap"] for row in found.history] == pytest.approx([0.0] * 6, abs=1e-12)


@pytest.mark.parametrize("mean", [0, 2.5, "many", True, [1, 2]])
def test_a_mean_that_is_no_number_of_steps_is_refused(mean: object) -> None:
    with pytest.raises(FedmmError, match="mean_steps"):
        ProxSkipSGDA(mean_steps=mean)  # type: ignore[arg-type]
