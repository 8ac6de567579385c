"""CODA+ and CODASCA: the rule by hand, stages, and whose saddle they end at."""

from __future__ import annotations

import pytest
import torch
from problems import random_game

from fedmm import CODASCA, CODAPlus, FedAvgGDA, FedmmError, ScaffoldGDA


@pytest.mark.parametrize("kind", [CODAPlus, CODASCA])
def test_it_is_the_rule_worked_out_by_hand(kind: type[CODAPlus] | type[CODASCA]) -> None:
    game = random_game(1)
    eta, steps, rounds, length, gamma, decay = 0.05, 3, 5, 2, 2.0, 3.0
    algorithm = kind(eta, eta, steps, smoothing_min=1 / gamma, stage_rounds=length, stage_decay=decay)
    state = game.play(algorithm, rounds)
    z = v = torch.cat(game.start)
    in_omega = torch.cat([torch.ones_like(game.start[0]), torch.zeros_like(game.start[1])])
    controls = [torch.zeros_like(z) for _ in game.clients]
    for t in range(rounds):
        if t % length == 0:
            v = z
        rate = eta / decay ** (t // length)
        mean_control = torch.stack(controls).mean(0) if kind is CODASCA else torch.zeros_like(z)
        ends, renewed = [], []
        for client, control in zip(game.clients, controls, strict=True):
            own = z
            for _ in range(steps):
                pull = in_omega * (own - v) / gamma
                own = own - rate * (client.field(own) + pull - control + mean_control)
            ends.append(own)
            renewed.append(control - mean_control + (z - own) / (steps * rate))
        z = torch.stack(ends).mean(0)
        controls = renewed if kind is CODASCA else controls
    torch.testing.assert_close(state.z, z, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("kind", "plain"), [(CODAPlus, FedAvgGDA), (CODASCA, ScaffoldGDA)])
def test_one_stage_without_a_pull_is_the_method_without_stages(
    kind: type[CODAPlus] | type[CODASCA], plain: type[FedAvgGDA] | type[ScaffoldGDA]
) -> None:
    game = random_game(2)
    staged = game.play(kind(0.05, 0.05, 3, smoothing_min=0.0, stage_rounds=1000), 20)
    torch.testing.assert_close(staged.z, game.play(plain(0.05, 0.05, 3), 20).z, rtol=1e-12, atol=1e-12)


def test_codasca_ends_at_the_saddle_of_different_clients_and_coda_plus_does_not() -> None:
    game = random_game(3)
    options = {"smoothing_min": 0.1, "stage_rounds": 20, "stage_decay": 1.0}
    assert game.error(game.play(CODASCA(0.05, 0.05, 5, **options), 400)) < 1e-8  # type: ignore[arg-type]
    assert game.error(game.play(CODAPlus(0.05, 0.05, 5, **options), 400)) > 1e-3  # type: ignore[arg-type]


def test_many_stages_end_with_steps_of_0_and_not_in_an_error() -> None:
    game = random_game(3)
    state = game.play(CODASCA(0.05, 0.05, 2, stage_rounds=1, stage_decay=1e100), 10)
    assert bool(state.z.isfinite().all())


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stage_rounds": 0}, "stage_rounds"),
        ({"stage_decay": 0.5}, "stage_decay"),
        ({"smoothing_min": -1.0}, "smoothing"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, float], named: str) -> None:
    with pytest.raises(FedmmError, match=named):
        CODAPlus(**options)  # type: ignore[arg-type]
