"""FedMM on the restrained field, which is the plain one where the adversary guesses, and for psi everywhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import (
    CLASSES,
    FLOAT64,
    WIDTH,
    adapt,
    generator,
    golden_game,
    mixed_client,
    network,
    source_client,
    target_client,
)
from torch import Tensor, nn

from fedmm import CDAN, DANN, MDD, FedMM, RestrainedFedMM, SourceOnly, Terms
from fedmm.core.objective import Objective
from fedmm.training.clients import domain_odds, take_stock

BATCH = 8
TELLING = pytest.mark.parametrize("kind", [DANN, CDAN])


def trained(algorithm: FedMM, objective: Objective, **options: Any) -> Tensor:
    clients = [source_client(), mixed_client(), target_client()]
    return adapt(
        clients=clients, algorithm=algorithm, objective=objective, **{"batch_size": BATCH, "dtype": FLOAT64, **options}
    ).state.z


@TELLING
def test_it_is_fedmm_with_penalties_2_on_the_restrained_objective(kind: type[Objective]) -> None:
    own = trained(RestrainedFedMM(0.3, 0.3), kind(nu=3.0), rounds=5)
    assert torch.equal(own, trained(FedMM(0.3, 0.3, 2.0, 2.0), kind(nu=3.0, restrained=True), rounds=5))
    assert torch.equal(own, trained(RestrainedFedMM(0.3, 0.3), kind(nu=3.0, restrained=True), rounds=5))
    assert not torch.equal(own, trained(FedMM(0.3, 0.3, 2.0, 2.0), kind(nu=3.0), rounds=5))


@pytest.mark.parametrize("objective", [MDD(), SourceOnly()], ids=lambda each: each.name)
def test_an_objective_whose_adversary_tells_no_domains_keeps_its_field(objective: Objective) -> None:
    assert torch.equal(trained(RestrainedFedMM(), objective), trained(FedMM(0.01, 0.01, 2.0, 2.0), objective))


@TELLING
def test_where_the_adversary_guesses_every_client_has_the_plain_field(kind: type[Objective]) -> None:
    # All rows have the features 0, so that a linear adversary answers with its bias, the domains' shares. What it would
    # make of other features is what pushes them, in full: a saddle there is FedMM's.
    clients_data = take_stock([source_client(), mixed_client(), target_client()], kind(), CLASSES)
    odds = domain_odds(clients_data, kind(), BATCH, standing_in=False)
    assert odds is not None
    layer, adversary = nn.Linear(WIDTH, 6), nn.Linear(6 if kind is DANN else 6 * CLASSES, 2)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    adversary.bias.data = torch.tensor([odds / 2, -odds / 2])
    options: dict[str, Any] = {"model": network(layer, nn.Tanh(), adversary=adversary), "rounds": 1}
    one = trained(RestrainedFedMM(0.1, 0.1, local_steps=1), kind(), **options)
    other = trained(FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1), kind(), **options)
    unpushed = trained(FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1), kind(nu=0.0), **options)
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)
    assert float((other - unpushed)[: 6 * WIDTH].abs().max()) > 1e-4


def test_near_a_saddle_with_a_flat_adversary_the_field_differs_in_second_order_alone() -> None:
    clients_data = take_stock([source_client(), mixed_client(), target_client()], DANN(), CLASSES)
    odds = domain_odds(clients_data, DANN(), BATCH, standing_in=False)
    assert odds is not None
    layer, slopes = nn.Linear(WIDTH, 6), torch.randn(2, 6, generator=generator(1))

    def apart(slope: float) -> float:
        adversary = nn.Linear(6, 2)
        adversary.weight.data, adversary.bias.data = slope * slopes, torch.tensor([odds / 2, -odds / 2])
        options: dict[str, Any] = {"model": network(layer, nn.Tanh(), adversary=adversary), "rounds": 1}
        one = trained(RestrainedFedMM(0.1, 0.1, local_steps=1), DANN(), **options)
        return float((one - trained(FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1), DANN(), **options)).norm())

    assert apart(0.0) < 1e-8
    assert apart(0.1) > 1e-5
    assert apart(0.01) < 0.02 * apart(0.1)  # a hundredth in the limit


@pytest.mark.parametrize("options", [{"participation": 0.4}, {"participation": 0.6, "restore": True}], ids=str)
def test_clients_that_are_away_are_treated_as_by_fedmm(options: dict[str, Any]) -> None:
    run: dict[str, Any] = {"rounds": 12, "terms": Terms(**options)}
    own = trained(RestrainedFedMM(0.1, 0.1), DANN(nu=2.0), **run)
    assert torch.equal(own, trained(FedMM(0.1, 0.1, 2.0, 2.0), DANN(nu=2.0, restrained=True), **run))
    assert not torch.equal(own, trained(RestrainedFedMM(0.1, 0.1), DANN(nu=2.0), rounds=12))


@TELLING
def test_the_adversary_has_the_plain_gradient_wherever_it_is(kind: type[Objective]) -> None:
    sides = {}
    for algorithm in (RestrainedFedMM(0.1, 0.1, local_steps=1), FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1)):
        result = adapt(
            clients=[source_client(), target_client()], algorithm=algorithm, objective=kind(nu=5.0), rounds=1,
            batch_size=BATCH, dtype=FLOAT64,
        )  # fmt: skip
        sides[algorithm.name] = {
            name: value for name, value in result.tensors().items() if name.startswith("adversary")
        }
    assert sides["fedmm_restrained"]
    for name, value in sides["fedmm_restrained"].items():
        torch.testing.assert_close(value, sides["fedmm"][name], rtol=1e-12, atol=1e-14)


def test_without_domains_it_goes_to_fedmms_saddle() -> None:
    game = golden_game()
    assert torch.equal(game.play(RestrainedFedMM(), 50).z, game.play(FedMM(0.01, 0.01, 2.0, 2.0), 50).z)
