"""Weights of the target clients alone (``weighs = "target"``), on a game with a known answer and on every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any

import pytest
import torch
from problems import FLOAT64, FieldClient, adapt, mixed_client, played, source_client, target_client
from torch import Tensor

import fedmm
from fedmm import FedmmError, Messaging, Terms
from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import Update
from fedmm.remote.messaging import Exchange

TARGET: Any = {"weighs": "target"}
KINDS = (fedmm.AFL, fedmm.AgnosticFedMM, fedmm.DRFA)
PULLS = {"source": 0.0, "target-1": 2.0, "target-2": -1.0}


def value(pull: float, z: Tensor) -> Tensor:
    return 0.5 * (z[0] - pull) ** 2 + z[0] * z[1] - 0.5 * z[1] ** 2


def field(pull: float, z: Tensor) -> Tensor:
    return torch.stack([z[0] - pull + z[1], z[1] - z[0]])


def game() -> FederatedProblem:
    """f_i = (omega - a_i)^2 / 2 + omega psi - psi^2 / 2, with a = 0 of the source, 2 and -1 of the targets.

    The sum is f_0 + 2 (lambda_1 f_1 + lambda_2 f_2). Its saddle has psi = omega and
    6 omega = 2 (2 lambda_1 - lambda_2), so that omega = lambda_1 - 1/3; and f_1 - f_2 = 3/2 - 3 omega
    = 5/2 - 3 lambda_1 is the regulariser's slope: 0; 2 s (2 lambda_1 - 1); or s log(lambda_1 / lambda_2).
    """
    layout = Layout.of(torch.zeros(1, dtype=FLOAT64), torch.zeros(1, dtype=FLOAT64))
    clients = [FieldClient(name, partial(field, a), partial(value, a)) for name, a in PULLS.items()]
    groups = {name: name.split("-")[0] for name in PULLS}
    return FederatedProblem(layout, torch.zeros(2, dtype=FLOAT64), clients, groups=groups)


ANSWERS = {"none": (0.0, 5 / 6), "chi_square": (1.0, 4.5 / 7), "kl": (0.5 / math.log(2), 2 / 3)}
"""Of each regulariser: s, and lambda_1."""


@pytest.mark.parametrize("regulariser", ANSWERS)
@pytest.mark.parametrize(
    ("algorithm", "rounds"),
    [
        (fedmm.AFL(0.1, 0.1, lr_weights=0.1, **TARGET), 700),
        (fedmm.DRFA(0.1, 0.1, local_steps=1, lr_weights=0.1, **TARGET), 1000),
        (fedmm.AgnosticFedMM(0.05, 0.05, 4.0, 4.0, local_steps=10, lr_weights=0.1, **TARGET), 500),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_the_saddle_of_a_source_and_two_targets_is_found(algorithm: Any, rounds: int, regulariser: Any) -> None:
    strength, first = ANSWERS[regulariser]
    algorithm = replace(algorithm, regulariser=regulariser, regulariser_weight=strength)
    *_, (state, _) = played(InProcess(game(), algorithm, rounds), rounds)
    expected = torch.tensor([1 / 3, 2 / 3 * first, 2 / 3 * (1 - first)], dtype=FLOAT64)
    torch.testing.assert_close(state.server["weights"], expected, rtol=0, atol=1e-8)
    torch.testing.assert_close(state.z, torch.full_like(state.z, first - 1 / 3), rtol=0, atol=1e-8)


# One step -------------------------------------------------------------------------------------------------------------

LOSSES = torch.tensor([0.7, -0.3, -0.5, -0.9, -0.4], dtype=FLOAT64)
WEIGHTS = torch.tensor([0.2, 0.25, 0.2, 0.15, 0.2], dtype=FLOAT64)
IS_TARGET = torch.tensor([False, True, True, True, True])
RATE = torch.tensor(0.05, dtype=FLOAT64)
OPTIONS: list[Any] = [
    {},
    {"regulariser": "chi_square", "regulariser_weight": 0.5},
    {"regulariser": "kl", "regulariser_weight": 0.5},
]


def step(algorithm: Any, counted: list[bool] | Tensor, target: Tensor = IS_TARGET, weights: Tensor = WEIGHTS) -> Tensor:
    counted = torch.as_tensor(counted)
    c = Coefficients(regulariser_weight=torch.tensor(algorithm.regulariser_weight, dtype=FLOAT64))
    heard = {"loss": torch.where(counted, LOSSES[: len(weights)], 0.0)}
    return algorithm.ascended(weights, Aggregated({}, {}, heard, counted, target), RATE, c)


@pytest.mark.parametrize("options", OPTIONS, ids=["none", "chi_square", "kl"])
def test_where_all_are_there_the_targets_are_weighed_as_if_they_were_alone(options: dict[str, Any]) -> None:
    together = step(fedmm.AFL(**TARGET, **options), [True] * 5)
    alone = fedmm.AFL(**options)
    c = Coefficients(regulariser_weight=torch.tensor(alone.regulariser_weight, dtype=FLOAT64))
    heard = Aggregated({}, {}, {"loss": LOSSES[1:]}, torch.ones(4, dtype=torch.bool))
    expected = alone.ascended(WEIGHTS[1:] / 0.8, heard, RATE, c)
    torch.testing.assert_close(together, torch.cat([WEIGHTS[:1], 0.8 * expected]), rtol=0, atol=1e-15)


@pytest.mark.parametrize("there", [2, 3])
def test_over_all_draws_of_targets_the_mean_step_is_that_of_all(there: int) -> None:
    algorithm = fedmm.AFL(**TARGET)
    steps = [
        step(algorithm, torch.tensor([True, *(place in drawn for place in range(4))]))
        for drawn in combinations(range(4), there)
    ]
    torch.testing.assert_close(torch.stack(steps).mean(dim=0), step(algorithm, [True] * 5), rtol=0, atol=1e-15)


@pytest.mark.parametrize("options", OPTIONS, ids=["none", "chi_square", "kl"])
@pytest.mark.parametrize("counted", [[True, False, False, False, False], [True, False, True, False, False]])
def test_fewer_than_two_targets_say_nothing_of_which_is_worse(counted: list[bool], options: dict[str, Any]) -> None:
    assert torch.equal(step(fedmm.AFL(**TARGET, **options), counted), WEIGHTS)


@pytest.mark.parametrize("options", OPTIONS, ids=["none", "chi_square", "kl"])
def test_without_a_target_and_with_one_the_weights_stay(options: dict[str, Any]) -> None:
    algorithm = fedmm.AFL(**TARGET, **options)
    for target in (torch.zeros(5, dtype=torch.bool), torch.arange(5) == 2):
        assert torch.equal(step(algorithm, [True] * 5, target), WEIGHTS)


def test_a_target_that_stays_away_neither_gains_nor_loses_against_targets_that_are_alike() -> None:
    # All losses are below 0: were an absent one taken for 0, it would end with all of the weight.
    algorithm, weights = fedmm.AFL(**TARGET), torch.full((4,), 0.25, dtype=FLOAT64)
    target, counted = torch.tensor([False, True, True, True]), torch.tensor([True, True, True, False])
    heard = Aggregated({}, {}, {"loss": torch.tensor([0.5, -0.6, -0.6, 0.0], dtype=FLOAT64)}, counted, target)
    for _ in range(200):
        weights = algorithm.ascended(weights, heard, RATE, Coefficients())
    torch.testing.assert_close(weights, torch.full((4,), 0.25, dtype=FLOAT64), rtol=0, atol=1e-13)


def test_a_huge_rate_puts_all_on_one_target_and_nothing_else_moves() -> None:
    for rate in (1e6, 1e30, 1e300):
        algorithm = fedmm.AFL(lr_weights=rate, **TARGET)
        c = algorithm.coefficients(Layout({"x": (1,)}, {"y": (1,)}, dtype=FLOAT64), 0, 1)
        heard = Aggregated({}, {}, {"loss": LOSSES}, torch.ones(5, dtype=torch.bool), IS_TARGET)
        after = algorithm.ascended(WEIGHTS, heard, c.lr_weights, c)
        torch.testing.assert_close(after, torch.tensor([0.2, 0.8, 0.0, 0.0, 0.0], dtype=FLOAT64))


# Engines --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("share", [1.0, 0.67])
def test_messages_and_one_process_agree_to_the_bit(kind: type[Algorithm], share: float) -> None:
    algorithm, terms = kind(0.05, 0.05, local_steps=2, **TARGET), Terms(participation=share)
    engines = [each(game(), algorithm, 12, terms) for each in (Messaging, InProcess)]
    for (one, _), (other, _) in zip(*(played(engine, 12) for engine in engines), strict=True):
        assert all(torch.equal(vector, other.server[name]) for name, vector in one.server.items())


@dataclass
class NoNumber(Exchange):
    """A target whose loss is not a number."""

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        return [replace(each, scalars={"loss": math.nan}) if each.client == "target-2" else each for each in answers]


@pytest.mark.parametrize("kind", [fedmm.AFL, fedmm.AgnosticFedMM], ids=lambda kind: kind.name)
def test_a_target_whose_loss_is_no_number_is_left_out_and_the_weights_stay(kind: type[Algorithm]) -> None:
    engine = Messaging(game(), kind(0.05, 0.05, **TARGET), 3, Terms(on_bad_update="skip"), NoNumber())
    for state, record in played(engine, 3):
        assert [refusal.client for refusal in record.refused] == ["target-2"]
        assert state.server["weights"].tolist() == [1 / 3] * 3


def test_with_one_target_it_is_fedmm() -> None:
    clients, rates = [source_client(), target_client()], {"lr_min": 0.1, "lr_max": 0.1, "local_steps": 2}
    weighed = adapt(clients, algorithm=fedmm.AgnosticFedMM(**rates, lr_weights=10.0, **TARGET), rounds=4)
    assert torch.equal(weighed.state.z, adapt(clients, algorithm=fedmm.FedMM(**rates), rounds=4).state.z)
    assert weighed.state.server["weights"].tolist() == [0.5, 0.5]


def test_a_run_that_is_resumed_ends_with_the_same_weights(tmp_path: Any) -> None:
    clients = [source_client(), target_client("t1", 2), target_client("t2", 5)]
    algorithm = fedmm.AgnosticFedMM(0.1, 0.1, local_steps=2, lr_weights=0.5, **TARGET)

    def stop(row: Any) -> None:
        if row["round"] == 4:
            raise KeyboardInterrupt

    whole = adapt(clients, algorithm=algorithm, rounds=8)
    adapt(clients, algorithm=algorithm, rounds=8, resume=tmp_path, checkpoint_every=1, on_round=stop)
    resumed = adapt(clients, algorithm=algorithm, rounds=8, resume=tmp_path, checkpoint_every=1)
    assert resumed.state.round == 8
    weights = whole.state.server["weights"]
    assert torch.equal(weights, resumed.state.server["weights"])
    assert torch.equal(whole.state.z, resumed.state.z)
    assert float(weights[0]) == pytest.approx(1 / 3)
    assert float(weights[1]) != float(weights[2])


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_clients_without_target_rows_are_refused(kind: type[Algorithm]) -> None:
    for objective in (fedmm.SourceOnly(), fedmm.DANN()):
        clients = [source_client(), target_client()]
        if objective.adapts:
            assert adapt(clients, objective=objective, algorithm=kind(**TARGET), rounds=2).status == "completed"
            continue
        with pytest.raises(FedmmError, match=f"weighs = 'target' of {kind.name} needs clients with target rows"):
            adapt(clients, objective=objective, algorithm=kind(**TARGET), rounds=1)
    start = (torch.zeros(1), torch.zeros(1))
    with pytest.raises(FedmmError, match="needs clients with target rows"):
        fedmm.solve([lambda x, y: (x**2 - y**2).sum()] * 2, start, kind(**TARGET), 1)


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        (
            [source_client(), target_client("t"), mixed_client("u")],
            "client 'u' holds source and target where 't' holds target; give them the same domains",
        ),
        (
            [source_client(), target_client("t"), target_client("u", weight=2.0)],
            "of unequal weight for 'u' and 't'; give all targets the same weight",
        ),
    ],
    ids=["domains", "weights"],
)
def test_targets_whose_losses_cannot_be_compared_are_refused(clients: Any, told: str) -> None:
    with pytest.raises(FedmmError, match=told):
        adapt(clients, algorithm=fedmm.AgnosticFedMM(**TARGET), rounds=1)


def test_targets_that_all_hold_labelled_rows_too_are_weighed_with_both() -> None:
    clients = [source_client(), mixed_client("t"), mixed_client("u", seed=8)]
    algorithm = fedmm.AFL(0.1, 0.1, local_steps=2, lr_weights=0.5, **TARGET)
    weights = adapt(clients, algorithm=algorithm, rounds=3).state.server["weights"]
    assert float(weights[0]) == pytest.approx(1 / 3)
    assert float(weights.sum()) == pytest.approx(1.0)
