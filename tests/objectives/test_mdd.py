from __future__ import annotations

import math

import pytest
import torch
from problems import FLOAT64
from torch import Tensor

from fedmm import MDD
from fedmm.core.objective import SOURCE, TARGET, Outputs

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
    assert MDD().adversary_shape(100, 7) == (100, 7, True)
