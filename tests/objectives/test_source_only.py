from __future__ import annotations

import pytest
import torch
from problems import (
    CLASSES,
    FLOAT64,
    WIDTH,
    adapt,
    mixed_client,
    network,
    rows,
    source_client,
    target_client,
    train_options,
)
from torch import nn

from fedmm import Client, FedAvgGDA, FedMM, FedmmError, Network, SourceOnly
from fedmm.models import FlatNetwork
from fedmm.training.adaptation import Adaptation


def test_there_is_no_psi() -> None:
    assert SourceOnly().adversary_shape(WIDTH, CLASSES) is None
    function = FlatNetwork(network(), SourceOnly(), torch.zeros(2, WIDTH), seed=0)
    assert function.layout.min_size == function.layout.size
    assert {block.side for block in function.layout.blocks} == {"min"}
    assert not [name for name in adapt(objective=SourceOnly()).tensors() if name.startswith("adversary")]


def test_target_rows_change_nothing() -> None:
    # A target-only client has nothing to add and leaves the federation; a mixed client keeps its source rows.
    algorithm = FedAvgGDA(0.1, 0.1, local_steps=2)
    alone = adapt([source_client()], objective=SourceOnly(), algorithm=algorithm)
    joined = adapt([source_client(), target_client()], objective=SourceOnly(), algorithm=algorithm)
    assert torch.equal(alone.state.z, joined.state.z)
    assert sorted(joined.state.clients) == ["source"]


def test_a_mixed_clients_batch_is_all_source() -> None:
    mixed = mixed_client()
    source = source_client("mixed", seed=3)
    algorithm = FedMM(0.1, 0.1, local_steps=2)
    with_target = adapt([mixed], objective=SourceOnly(), algorithm=algorithm)
    without = adapt([source], objective=SourceOnly(), algorithm=algorithm)
    assert torch.equal(with_target.state.z, without.state.z)


def test_the_domain_loss_is_nothing_whatever_nu_is() -> None:
    history = adapt(objective=SourceOnly(nu=7.0)).history
    assert history["domain_loss"] == [0.0, 0.0]
    assert history["loss"] == history["task_loss"]


def test_balanced_weights_are_those_of_the_shares_of_all_clients() -> None:
    # Class 1 is 3/4 of one client's rows and none of the other's, which counts twice: p_1 = (3/4 + 0) / 3, p_0 = 3/4.
    x, y = rows(1, 8).double(), torch.tensor([1, 1, 1, 0] * 2)
    clients = [Client(source=(x, y), name="a"), Client(source=(-x, 0 * y), name="b", weight=2.0)]
    model, options = Network(nn.Identity(), 2), train_options(FLOAT64, rounds=1, batch_size=8)
    adaptation = Adaptation(clients, model, SourceOnly(class_weights="balanced"), FedAvgGDA(), options)
    z = adaptation.problem.start.clone().requires_grad_()
    layout = adaptation.problem.layout
    expected = []
    for inputs, labels, alpha in ((x, y, 2 / 3), (-x, 0 * y, 4 / 3)):
        weight, bias = (tensor for _, tensor in layout.tensors(z))
        costs = nn.functional.cross_entropy(inputs @ weight.T + bias, labels, reduction="none")
        balanced = costs * torch.tensor([1 / (2 * 0.75), 1 / (2 * 0.25)], dtype=FLOAT64)[labels]
        expected.append(torch.autograd.grad(alpha * balanced.mean(), z)[0])
    for client, gradient in zip(adaptation.problem.clients, expected, strict=True):
        found = client.open_round(0, 1, 1, {}).field(z.detach(), 0)
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-14)


def test_class_weights_have_no_other_values() -> None:
    with pytest.raises(FedmmError, match="class_weights"):
        SourceOnly(class_weights="even")


def test_a_gradient_scale_of_the_adversary_says_nothing() -> None:
    assert SourceOnly(gradient_scale={"adversary": 2.0, "*": 0.5}).gradient_scale == {"*": 0.5}
    assert SourceOnly(gradient_scale={"adversary.last": 2.0}).gradient_scale == 1.0
    assert SourceOnly(gradient_scale={"features": 2.0, "*": 1.0}).gradient_scale == {"features": 2.0, "*": 1.0}
