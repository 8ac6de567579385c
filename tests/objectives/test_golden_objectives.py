"""Every recorded case of golden/objectives.json: losses and gradients of the objectives, for every kind of client."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from problems import FLOAT64, InOrder, golden
from torch import Tensor, nn

import fedmm
from fedmm.core.objective import SOURCE, TARGET, Objective, Outputs, row_weights
from fedmm.data.rows import TensorRows
from fedmm.models import FlatNetwork
from fedmm.training.clients import ClientData

CASES = golden("objectives")["cases"]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c['objective']}-{c['client']}-nu={c['nu']}")


def tensor(case: dict[str, Any], name: str) -> Tensor:
    return torch.tensor(case[name], dtype=FLOAT64)


def objective_of(case: dict[str, Any]) -> Objective:
    return fedmm.OBJECTIVES[case["objective"]](nu=case["nu"])


def assert_same(value: Tensor, expected: Any) -> None:
    torch.testing.assert_close(value, torch.as_tensor(expected, dtype=FLOAT64), rtol=0, atol=1e-10)


@each_case
def test_losses_and_gradients_are_the_recorded_ones(case: dict[str, Any]) -> None:
    objective = objective_of(case)
    names = ("extractor", "task_head", "adversary_head")
    extractor, task_head, adversary_head = weights = [tensor(case, name).requires_grad_() for name in names]
    sources, targets = len(case["x_source"]), len(case["x_target"])
    x = torch.tensor(case["x_source"] + case["x_target"], dtype=FLOAT64)
    labels = torch.tensor(case["labels"] + [0] * targets)
    domain = torch.tensor([SOURCE] * sources + [TARGET] * targets)

    features = torch.tanh(x @ extractor)
    logits = features @ task_head
    adversary = objective.adversary_input(features, logits, {}) @ adversary_head
    row_weight = row_weights(domain, torch.ones(len(x), dtype=FLOAT64))
    task, domain_loss = objective.losses(Outputs(features, logits, adversary), labels, row_weight)
    f = task - objective.nu * domain_loss
    gradients = torch.autograd.grad(f, weights, allow_unused=True, materialize_grads=True)

    assert_same(task, case["task_loss"])
    assert_same(domain_loss, case["domain_loss"])
    assert_same(f, case["f"])
    for name, gradient in zip(names, gradients, strict=True):
        assert_same(gradient, case[f"grad_{name}"])


@each_case
def test_an_adaptation_client_has_the_recorded_signed_field(case: dict[str, Any]) -> None:
    client, function = client_of(case)

    local = client.open_round(0, 1, 1, function.statistics)
    field = {block.name: part for block, part in function.layout.tensors(local.field(function.start, 0))}
    report = local.close()

    # nn.Linear keeps [outputs, inputs]; psi's part is the negative gradient.
    assert_same(field["features.0.weight"].T, case["grad_extractor"])
    assert_same(field["task_head.weight"].T, case["grad_task_head"])
    assert_same(-field["adversary.weight"].T, case["grad_adversary_head"])
    assert_same(torch.tensor(report.metrics["loss"], dtype=FLOAT64), case["f"])
    assert_same(torch.tensor(report.metrics["domain_loss"], dtype=FLOAT64), case["domain_loss"])
    # A client without source rows reports no task loss, so that the clients' mean is one over those that have any.
    assert report.metrics.get("task_loss") == (pytest.approx(case["task_loss"]) if case["x_source"] else None)


def client_of(case: dict[str, Any]) -> tuple[InOrder, FlatNetwork]:
    def linear(name: str) -> nn.Linear:
        weight = tensor(case, name).T.contiguous()
        layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, dtype=FLOAT64)
        layer.weight.data.copy_(weight)
        return layer

    model = fedmm.Network(
        nn.Sequential(linear("extractor"), nn.Tanh()),
        len(case["task_head"][0]),
        task_head=linear("task_head"),
        adversary=linear("adversary_head"),
    )
    source = TensorRows(tensor(case, "x_source"), torch.tensor(case["labels"])) if case["x_source"] else None
    target = TensorRows(tensor(case, "x_target")) if case["x_target"] else None
    client_data = ClientData("client", source, target, 1.0)
    function = FlatNetwork(model, objective_of(case), client_data.sample, seed=0, dtype=FLOAT64)
    count = len(case["x_source"]) + len(case["x_target"])
    return InOrder(client_data, function, objective_of(case), seed=0, batch_size=count), function
