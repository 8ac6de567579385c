from __future__ import annotations

import math

import pytest
import torch
from problems import FLOAT64
from torch import Tensor
from torch.nn import functional

from fedmm import MDD
from fedmm.core.objective import SOURCE, TARGET, AdversaryShape, Outputs, row_weights

CHOICE_OF_ROW = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=FLOAT64)
"""Logits by which the first classifier chooses class 0 for row 1 and class 1 for row 2."""
QUARTER = torch.tensor([[0.0, math.log(3.0)], [math.log(3.0), 0.0]], dtype=FLOAT64)
"""A second classifier that gives each of those choices probability 1/4."""


def domain_losses(objective: MDD, domain: int, adversary: Tensor = QUARTER) -> list[float]:
    outputs = Outputs(CHOICE_OF_ROW, CHOICE_OF_ROW, adversary)
    return objective.domain_losses(outputs, torch.full((2,), domain)).tolist()


@pytest.mark.parametrize("gamma", [1.0, 4.0])
def test_a_source_row_costs_gamma_times_minus_log_p(gamma: float) -> None:
    assert domain_losses(MDD(gamma=gamma), SOURCE) == pytest.approx([gamma * math.log(4.0)] * 2, abs=1e-12)


@pytest.mark.parametrize("epsilon", [1e-5, 0.25])
def test_a_target_row_costs_minus_log_of_one_plus_epsilon_minus_p(epsilon: float) -> None:
    expected = -math.log(0.75 + epsilon)
    assert domain_losses(MDD(epsilon=epsilon), TARGET) == pytest.approx([expected] * 2, abs=1e-12)


def test_gamma_does_not_touch_target_rows_nor_epsilon_source_rows() -> None:
    assert domain_losses(MDD(gamma=4.0), TARGET) == domain_losses(MDD(), TARGET)
    assert domain_losses(MDD(epsilon=0.25), SOURCE) == domain_losses(MDD(), SOURCE)


def test_a_target_row_on_which_both_agree_for_certain_costs_minus_log_epsilon() -> None:
    certain = 1e4 * CHOICE_OF_ROW
    assert domain_losses(MDD(epsilon=1e-5), TARGET, certain) == pytest.approx([-math.log(1e-5)] * 2, rel=1e-9)


@pytest.mark.parametrize(
    "epsilon",
    [
        1e-5,
        pytest.param(1e-8),
    ],
)
def test_epsilon_keeps_target_rows_finite_in_float32(epsilon: float) -> None:
    certain = (1e4 * CHOICE_OF_ROW).float().requires_grad_()
    outputs = Outputs(CHOICE_OF_ROW.float(), CHOICE_OF_ROW.float(), certain)
    losses = MDD(epsilon=epsilon).domain_losses(outputs, torch.full((2,), TARGET))
    (gradient,) = torch.autograd.grad(losses.sum(), certain)
    assert bool(losses.isfinite().all())
    assert bool(gradient.isfinite().all())


def test_the_adversary_is_a_twin_of_the_task_head() -> None:
    assert MDD().adversary_shape(100, 7) == AdversaryShape(100, 7, twin=True)


# Beside tllib's MarginDisparityDiscrepancy ----------------------------------------------------------------------------

ROWS, CLASSES = 6, 4


def tllibs_loss(outputs: Outputs, labels: Tensor, trade_off: float, margin: float) -> Tensor:
    """The task loss less the transfer loss times the trade-off; each of its terms is a mean over its own domain."""
    source, target = slice(0, ROWS), slice(ROWS, None)
    choice = outputs.logits.argmax(dim=-1)
    task = functional.cross_entropy(outputs.logits[source], labels[source])
    on_source = functional.cross_entropy(outputs.adversary[source], choice[source])
    p = outputs.adversary[target].softmax(dim=-1)
    on_target = -functional.nll_loss(torch.log(1.0 - p + 1e-6), choice[target])
    return task - trade_off * (margin * on_source - on_target)


def gradients(loss: Tensor, outputs: Outputs) -> list[Tensor]:
    return list(
        torch.autograd.grad(loss, [outputs.logits, outputs.adversary], allow_unused=True, materialize_grads=True)
    )


@pytest.fixture
def batch() -> tuple[Outputs, Tensor, Tensor]:
    """Outputs and labels of as many source as target rows, and their domains."""
    draw = torch.Generator().manual_seed(1)
    logits, adversary = (
        torch.randn(2 * ROWS, CLASSES, generator=draw, dtype=FLOAT64).requires_grad_() for _ in range(2)
    )
    labels = torch.arange(2 * ROWS) % CLASSES
    return Outputs(logits, logits, adversary), labels, torch.arange(2 * ROWS) // ROWS


def ours(objective: MDD, outputs: Outputs, labels: Tensor, domain: Tensor, rows: Tensor) -> Tensor:
    """f of a client that holds some of the rows."""
    weights = row_weights(domain, rows.to(FLOAT64))
    task, domain_loss = objective.losses(outputs, labels, weights)
    return task - objective.nu * domain_loss


def test_nu_is_twice_tllibs_trade_off_where_a_client_holds_both_domains_alike(
    batch: tuple[Outputs, Tensor, Tensor],
) -> None:
    outputs, labels, domain = batch
    trade_off, margin = 0.7, 4.0
    found = ours(MDD(nu=2 * trade_off, gamma=margin, epsilon=1e-6), outputs, labels, domain, torch.ones(2 * ROWS))
    expected = tllibs_loss(outputs, labels, trade_off, margin)
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    for mine, theirs in zip(gradients(found, outputs), gradients(expected, outputs), strict=True):
        assert torch.allclose(mine, theirs, rtol=1e-9, atol=1e-12)


def test_nu_is_the_trade_off_where_each_domain_has_a_client_of_its_own_and_gradients_are_half_as_large(
    batch: tuple[Outputs, Tensor, Tensor],
) -> None:
    outputs, labels, domain = batch
    trade_off, margin = 0.7, 4.0
    objective = MDD(nu=trade_off, gamma=margin, epsilon=1e-6)
    mean = sum(ours(objective, outputs, labels, domain, domain == held) for held in (SOURCE, TARGET)) / 2
    expected = tllibs_loss(outputs, labels, trade_off, margin)
    assert isinstance(mean, Tensor)
    for mine, theirs in zip(gradients(mean, outputs), gradients(expected, outputs), strict=True):
        assert torch.allclose(2 * mine, theirs, rtol=1e-9, atol=1e-12)
