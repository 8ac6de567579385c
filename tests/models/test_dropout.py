from __future__ import annotations

import math

import pytest
import torch
from problems import CLASSES, WIDTH, adapt, features, labels, network
from torch import Tensor, nn

import fedmm
from fedmm import FedmmError
from fedmm.core.seeding import key
from fedmm.data.rows import TensorRows
from fedmm.models import FlatNetwork
from fedmm.models.dropout import SeededDropout, seed_dropout
from fedmm.training.clients import ClientData
from fedmm.training.problem import AdaptationClient


def masked(x: Tensor, p: float, draw: int, *, layer: int = 0, per_channel: bool = False) -> Tensor:
    dropout = SeededDropout(p, layer, per_channel=per_channel)
    dropout.key.fill_(draw)
    return dropout(x)


# One layer ------------------------------------------------------------------------------------------------------------


def test_the_same_key_draws_the_same_mask_and_another_key_another() -> None:
    x = torch.ones(20, 30)
    assert torch.equal(masked(x, 0.5, 3), masked(x, 0.5, 3))
    assert not torch.equal(masked(x, 0.5, 3), masked(x, 0.5, 4))


def test_two_layers_draw_unlike_masks_from_one_key() -> None:
    x = torch.ones(20, 30)
    assert not torch.equal(masked(x, 0.5, 3, layer=0), masked(x, 0.5, 3, layer=1))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_a_share_p_is_dropped_and_the_rest_scaled_up(p: float) -> None:
    # 250,000 independent draws: the share dropped has deviation sqrt(p (1 - p) / 250000) <= 0.001.
    out = masked(torch.full((500, 500), 3.0), p, key(0, "dropout"))
    dropped = out == 0
    assert float(dropped.double().mean()) == pytest.approx(p, abs=5 * math.sqrt(p * (1 - p) / 250_000))
    torch.testing.assert_close(out[~dropped], torch.full_like(out[~dropped], 3.0 / (1.0 - p)))


@pytest.mark.parametrize("shape", [(40, 50, 7), (40, 50, 3, 4), (40, 50, 2, 3, 2)], ids=["1d", "2d", "3d"])
def test_per_channel_dropout_drops_whole_channels_of_a_row(shape: tuple[int, ...]) -> None:
    out = masked(torch.ones(shape), 0.5, 7, per_channel=True).flatten(2)
    assert bool((out == out[:, :, :1]).all())
    # 2,000 channels: the share dropped has deviation 0.0112.
    assert float((out[:, :, 0] == 0).double().mean()) == pytest.approx(0.5, abs=5 * 0.0112)
    assert not bool((out[0] == out[1]).all())  # rows differ


def test_nothing_is_dropped_in_evaluation_or_with_p_zero() -> None:
    x = torch.randn(4, 5)
    off = SeededDropout(0.5, 0).eval()
    assert torch.equal(off(x), x)
    assert torch.equal(masked(x, 0.0, 1), x)


def test_gradients_pass_where_values_do() -> None:
    x = torch.ones(8, 9, requires_grad=True)
    out = masked(x, 0.25, 1)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(gradient, out.detach())


def test_dropping_everything_has_no_gradient() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(masked(x, 1.0, 1).sum(), x)
    assert torch.equal(gradient, torch.zeros(2, 3))


# Layers of a network --------------------------------------------------------------------------------------------------


def test_every_dropout_layer_is_replaced_by_its_seeded_twin() -> None:
    block = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout2d(0.2)), nn.Dropout1d(0.3), nn.Dropout3d(0.4))
    seed_dropout(block)
    twins = [module for module in block.modules() if isinstance(module, SeededDropout)]
    assert [(twin.p, twin.per_channel) for twin in twins] == [(0.1, False), (0.2, True), (0.3, True), (0.4, True)]


def test_every_layer_of_a_network_draws_masks_of_its_own() -> None:
    block = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    seed_dropout(block)
    x = torch.ones(10, 10)
    assert not torch.equal(block[0](x), block[1](x))


@pytest.mark.parametrize("layer", [nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.RReLU()], ids=repr)
def test_layers_whose_draws_cannot_be_seeded_are_refused(layer: nn.Module) -> None:
    with pytest.raises(FedmmError, match=rf"layer 'features\.1' is {type(layer).__name__}"):
        adapt(model=network(nn.Linear(WIDTH, 6), layer))


class FunctionalDropout(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.linear(x), 0.5, self.training)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: network(FunctionalDropout(WIDTH, 32)), id="features"),
        pytest.param(lambda: network(task_head=FunctionalDropout(6, CLASSES)), id="task head"),
        pytest.param(
            lambda: network(adversary=FunctionalDropout(6, 2)),
            id="adversary",
        ),
    ],
)
def test_functional_dropout_is_refused(model: object) -> None:
    with pytest.raises(FedmmError, match=r"torch's global random generator \(functional dropout\?\); use nn.Dropout"):
        adapt(model=model())


def test_a_dropout_layer_may_stand_in_two_places() -> None:
    shared = nn.Dropout(0.5)
    assert adapt(model=network(nn.Linear(WIDTH, 6), shared, nn.Linear(6, 6), shared)).status == "completed"


# Seeded per client, round and step ------------------------------------------------------------------------------------


def field(name: str = "a", seed: int = 0, t: int = 0, step: int = 0) -> Tensor:
    """A client's field on rows that are all alike, so that nothing but the mask can differ."""
    model = network(task_hidden=(32,), head_dropout=0.5)
    objective = fedmm.SourceOnly()
    held = ClientData(name, TensorRows(torch.ones(8, WIDTH), torch.zeros(8, dtype=torch.int64)), None, 1.0)
    function = FlatNetwork(model, objective, held.sample, seed=0)
    client = AdaptationClient(held, function, objective, seed=seed, batch_size=8)
    return client.open_round(t, 10, 4, function.statistics).field(function.start, step)


def test_masks_are_drawn_for_seed_client_round_and_step() -> None:
    first = field()
    assert torch.equal(field(), first)
    for unlike in ({"seed": 1}, {"name": "b"}, {"t": 1}, {"step": 1}):
        assert not torch.equal(field(**unlike), first), unlike


def test_masks_do_not_depend_on_what_was_drawn_before() -> None:
    model = network(task_hidden=(32,), head_dropout=0.5)
    objective = fedmm.SourceOnly()
    held = ClientData("a", TensorRows(torch.ones(8, WIDTH), labels(1, 8)), None, 1.0)
    function = FlatNetwork(model, objective, held.sample, seed=0)
    client = AdaptationClient(held, function, objective, seed=0, batch_size=8)
    forward = [client.open_round(2, 10, 4, {}).field(function.start, step).clone() for step in range(4)]
    torch.rand(7)
    local = client.open_round(2, 10, 4, {})
    backward = [local.field(function.start, step).clone() for step in reversed(range(4))]
    assert all(torch.equal(one, other) for one, other in zip(forward, reversed(backward), strict=True))


def test_training_neither_reads_nor_moves_the_global_generator() -> None:
    model = network(task_hidden=(8,), head_dropout=0.5)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = adapt(model=model).state.z
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(adapt(model=model).state.z, first)


def test_predictions_drop_nothing() -> None:
    x = torch.ones(50, WIDTH)
    adapted = adapt(model=network(features(), nn.Dropout(0.5), task_hidden=(8,), head_dropout=0.5))
    assert torch.equal(adapted.predict_proba(x), adapted.predict_proba(x))
    assert torch.equal(adapted.features(x)[0], adapted.features(x)[1])
