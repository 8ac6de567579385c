"""Local SGDA+ against its rule, and its snapshot."""

from __future__ import annotations

import pytest
import torch
from problems import FLOAT64, Game, random_game

from fedmm import FedAvgGDA, FedmmError, SGDAPlus


def by_hand(game: Game, eta: tuple[float, float], steps: int, every: int, rounds: int) -> torch.Tensor:
    split = game.sizes[0]
    z = torch.cat(game.start)
    snapshot = z
    for t in range(rounds):
        ends = []
        for client in game.clients:
            own = z
            for _ in range(steps):
                omega = own[:split] - eta[0] * client.field(own)[:split]
                there = torch.cat([snapshot[:split], own[split:]])
                own = torch.cat([omega, own[split:] - eta[1] * client.field(there)[split:]])
            ends.append(own)
        z = torch.stack(ends).mean(0)
        if (t + 1) % every == 0:
            snapshot = z
    return z


@pytest.mark.parametrize("every", [1, 3])
def test_it_is_the_rule_worked_out_by_hand(every: int) -> None:
    game = random_game(1)
    state = game.play(SGDAPlus(0.05, 0.1, 4, snapshot_every=every), 7)
    torch.testing.assert_close(state.z, by_hand(game, (0.05, 0.1), 4, every, 7), rtol=1e-12, atol=1e-13)


def test_with_one_step_and_a_new_snapshot_each_round_it_is_descent_ascent() -> None:
    game = random_game(2)
    plus, plain = SGDAPlus(0.05, 0.1, 1, snapshot_every=1), FedAvgGDA(0.05, 0.1, 1)
    torch.testing.assert_close(game.play(plus, 20).z, game.play(plain, 20).z, rtol=1e-12, atol=1e-13)


def test_under_one_snapshot_psi_finds_its_best_answer_there() -> None:
    # f = 1/2 x'A x + x'B y - 1/2 y'C y + a'x - c'y is largest in y at C^-1 (B'x - c). The snapshot stays at 0.
    game = random_game(4, clients=1)
    client = game.clients[0]
    state = game.play(SGDAPlus(0.05, 0.2, 10, snapshot_every=1000), 40)
    best = torch.linalg.solve(client.C, -client.c)
    torch.testing.assert_close(state.z[game.sizes[0] :], best, rtol=0, atol=1e-10)


def test_one_clients_saddle_is_reached() -> None:
    game = random_game(5, clients=1)
    assert game.error(game.play(SGDAPlus(0.05, 0.2, 10, snapshot_every=2), 300)) < 1e-8


def test_a_snapshot_that_is_never_renewed_is_refused() -> None:
    with pytest.raises(FedmmError, match="snapshot_every must be at least 1, not 0"):
        SGDAPlus(snapshot_every=0)


def test_the_snapshot_is_sent_to_whoever_takes_part() -> None:
    sent = SGDAPlus().broadcast(SGDAPlus().init_server(torch.ones(3, dtype=FLOAT64)))
    assert set(sent) == {"z", "snapshot"}
