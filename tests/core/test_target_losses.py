"""Every loss on target rows against its formula in plain Python, and what a batch may be made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from problems import FLOAT64, generator
from torch import Tensor

from fedmm import TARGET_LOSSES, BatchNuclearNorm, FedmmError, InformationMaximisation, MinimumClassConfusion
from fedmm.core.target_losses import NoTargetLoss, TargetLoss, as_target_loss, polar_factor

Matrix = Sequence[Sequence[float]]

TERMS = [MinimumClassConfusion(), MinimumClassConfusion(1.0), InformationMaximisation(), BatchNuclearNorm()]
each_term = pytest.mark.parametrize("term", TERMS, ids=["mcc", "mcc, 1", "im", "bnm"])
SURE = 1e3


def logits_of(p: Matrix) -> Tensor:
    return torch.tensor(p, dtype=FLOAT64).log()


def ones(rows: int) -> Tensor:
    return torch.ones(rows, dtype=FLOAT64)


def sure(classes: Sequence[int], count: int) -> Tensor:
    """Logits of rows that are certain of these classes."""
    return SURE * torch.nn.functional.one_hot(torch.tensor(classes), count).to(FLOAT64)


# Formulas -------------------------------------------------------------------------------------------------------------


def entropy(p: Sequence[float]) -> float:
    return -sum(each * math.log(each) for each in p)


def confusion(p: Matrix) -> float:
    """Correlations of classes over rows weighted by certainty, each row of them scaled to 1; off-diagonal / classes."""
    classes = range(len(p[0]))
    certainty = [1.0 + math.exp(-entropy(row)) for row in p]
    weight = [len(p) * each / sum(certainty) for each in certainty]
    c = [[sum(w * row[j] * row[k] for w, row in zip(weight, p, strict=True)) for k in classes] for j in classes]
    return sum(c[j][k] / sum(c[j]) for j in classes for k in classes if j != k) / len(p[0])


def minus_information(p: Matrix) -> float:
    mean = [sum(column) / len(p) for column in zip(*p, strict=True)]
    return sum(map(entropy, p)) / len(p) - entropy(mean)


def minus_nuclear_norm(p: Matrix) -> float:
    """With two classes, (s_1 + s_2)^2 = s_1^2 + s_2^2 + 2 s_1 s_2 = trace(G) + 2 sqrt(det(G)) of the Gram matrix G."""
    (a, b), (_, d) = [[sum(row[j] * row[k] for row in p) for k in (0, 1)] for j in (0, 1)]
    return -math.sqrt(a + d + 2.0 * math.sqrt(a * d - b * b)) / len(p)


TWO_CLASSES = {
    "two rows": [[0.8, 0.2], [0.4, 0.6]],
    "three rows": [[0.9, 0.1], [0.5, 0.5], [0.25, 0.75]],
    "one class": [[0.9, 0.1], [0.8, 0.2], [0.99, 0.01], [0.7, 0.3]],
}
THREE_CLASSES = {
    "two rows, three classes": [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]],
    "four rows, three classes": [[0.7, 0.2, 0.1], [0.1, 0.3, 0.6], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1]],
}
FORMULAS: list[tuple[TargetLoss, Callable[[Matrix], float], Matrix]] = [
    *((MinimumClassConfusion(1.0), confusion, p) for p in (TWO_CLASSES | THREE_CLASSES).values()),
    *((InformationMaximisation(), minus_information, p) for p in (TWO_CLASSES | THREE_CLASSES).values()),
    *((BatchNuclearNorm(), minus_nuclear_norm, p) for p in TWO_CLASSES.values()),
]


@pytest.mark.parametrize(("term", "formula", "p"), FORMULAS)
def test_a_loss_is_what_its_formula_says(term: TargetLoss, formula: Callable[[Matrix], float], p: Matrix) -> None:
    assert float(term(logits_of(p), ones(len(p)))) == pytest.approx(formula(p), rel=1e-9)


@pytest.mark.parametrize("p", (TWO_CLASSES | THREE_CLASSES).values())
def test_the_temperature_divides_the_logits(p: Matrix) -> None:
    # The softmax of log(p) / 2 is the square root of p, scaled to sum 1.
    flat = [[math.sqrt(each) / sum(map(math.sqrt, row)) for each in row] for row in p]
    assert float(MinimumClassConfusion(2.0)(logits_of(p), ones(len(p)))) == pytest.approx(confusion(flat), rel=1e-9)


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_predictions_that_say_nothing_are_the_worst(classes: int) -> None:
    flat = torch.zeros(4, classes, dtype=FLOAT64)
    # Every class is confused with the others in all but 1 / classes; no information; one singular value of 2/sqrt(c).
    assert float(MinimumClassConfusion()(flat, ones(4))) == pytest.approx((classes - 1) / classes, rel=1e-12)
    assert float(InformationMaximisation()(flat, ones(4))) == pytest.approx(0.0, abs=1e-12)
    assert float(BatchNuclearNorm()(flat, ones(4))) == pytest.approx(-0.5 / math.sqrt(classes), rel=1e-9)


def test_sure_and_balanced_predictions_are_the_best() -> None:
    balanced = sure([0, 1, 2, 0, 1, 2], 3)
    assert float(MinimumClassConfusion()(balanced, ones(6))) == pytest.approx(0.0, abs=1e-12)
    assert float(InformationMaximisation()(balanced, ones(6))) == pytest.approx(-math.log(3.0), rel=1e-12)
    assert float(BatchNuclearNorm()(balanced, ones(6))) == pytest.approx(-3.0 * math.sqrt(2.0) / 6.0, rel=1e-9)


def test_sure_predictions_of_one_class_have_no_information_and_a_small_norm() -> None:
    collapsed = sure([1, 1, 1, 1], 3)
    assert float(InformationMaximisation()(collapsed, ones(4))) == pytest.approx(0.0, abs=1e-12)
    assert float(BatchNuclearNorm()(collapsed, ones(4))) == pytest.approx(-2.0 / 4.0, rel=1e-9)
    # Classes that no row predicts count 1 each.
    assert float(MinimumClassConfusion()(collapsed, ones(4))) == pytest.approx(2.0 / 3.0, rel=1e-9)


@pytest.mark.parametrize("shape", [(64, 10), (8, 31), (5, 5)])
@pytest.mark.parametrize("spread", [0.01, 1.0, 10.0])
def test_the_nuclear_norm_is_as_exact_as_it_says(shape: tuple[int, int], spread: float) -> None:
    logits = spread * torch.randn(shape, generator=generator(1), dtype=FLOAT64)
    values = torch.linalg.svdvals(logits.softmax(dim=-1))
    bound = 1e-5 * float(values.square().sum().sqrt()) * shape[1]
    found = -float(BatchNuclearNorm()(logits, ones(shape[0]))) * shape[0]
    assert float(values.sum()) - bound <= found <= float(values.sum()) * (1.0 + 1e-12)


def test_the_polar_factor_is_that_of_a_singular_value_decomposition() -> None:
    a = torch.randn(2, 7, 4, generator=generator(2), dtype=FLOAT64)
    u, _, vh = torch.linalg.svd(a, full_matrices=False)
    torch.testing.assert_close(polar_factor(a), u @ vh, rtol=0, atol=1e-12)
    assert not polar_factor(torch.zeros(3, 2)).any()


# Gradients ------------------------------------------------------------------------------------------------------------


def without_detaching(term: TargetLoss, at: Tensor) -> Callable[[Tensor], Tensor]:
    """A function with the term's gradient at a point: certainties of rows are constants in that of mcc."""
    if not isinstance(term, MinimumClassConfusion):
        return lambda logits: term(logits, ones(len(logits)))
    p = (at / term.temperature).softmax(dim=-1)
    w = (1.0 + (p * p.log()).sum(dim=-1).exp()).unsqueeze(-1)

    def confused(logits: Tensor) -> Tensor:
        q = (logits / term.temperature).softmax(dim=-1)
        return ((w * q * (1.0 - q)).sum(dim=0) / (w * q).sum(dim=0)).mean()

    return confused


@each_term
def test_gradients_are_those_of_finite_differences(term: TargetLoss) -> None:
    at = torch.randn(6, 3, generator=generator(4), dtype=FLOAT64)
    logits = at.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(term(logits, ones(6)), logits)
    value, step = without_detaching(term, at), 1e-6
    torch.testing.assert_close(value(at), term(at, ones(6)), rtol=1e-12, atol=0)
    for place in [(row, column) for row in range(6) for column in range(3)]:
        shift = torch.zeros_like(at)
        shift[place] = step
        difference = float(value(at + shift) - value(at - shift)) / (2.0 * step)
        assert float(gradient[place]) == pytest.approx(difference, rel=1e-5, abs=1e-8)


EXTREMES = {
    "zero": torch.zeros(5, 3),
    "sure of one class": sure([0] * 5, 3).float() * 10,
    "never class 1": torch.tensor([1e4, -1e4, 1e4]).repeat(5, 1),
    "opposite": sure([0, 1, 0, 1, 0], 3).float() * 10,
    "one row repeated": torch.tensor([0.3, -0.2, 0.1]).repeat(5, 1),
}


@each_term
@pytest.mark.parametrize("logits", EXTREMES.values(), ids=EXTREMES)
@pytest.mark.parametrize("weight", [[1.0] * 5, [0.0, 1.0, 0.0, 1.0, 0.0], [0.0] * 5], ids=["all", "some", "none"])
def test_loss_and_gradient_are_finite_in_float32(term: TargetLoss, logits: Tensor, weight: list[float]) -> None:
    leaf = logits.clone().requires_grad_()
    loss = term(leaf, torch.tensor(weight))
    (gradient,) = torch.autograd.grad(loss, leaf)
    assert loss.dtype == torch.float32
    assert bool(loss.isfinite())
    assert bool(gradient.isfinite().all())


# Rows -----------------------------------------------------------------------------------------------------------------


@each_term
def test_a_batch_without_target_rows_costs_nothing(term: TargetLoss) -> None:
    logits = torch.randn(4, 3, generator=generator(5), dtype=FLOAT64).requires_grad_()
    loss = term(logits, torch.zeros(4, dtype=FLOAT64))
    (gradient,) = torch.autograd.grad(loss, logits)
    assert float(loss.detach()) == 0.0
    assert not gradient.any()


@each_term
def test_rows_that_fill_a_batch_change_nothing(term: TargetLoss) -> None:
    logits = torch.randn(5, 3, generator=generator(6), dtype=FLOAT64).requires_grad_()
    kept, fillers = [0, 1, 3], [2, 4]
    filled = term(logits, torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0], dtype=FLOAT64))
    (gradient,) = torch.autograd.grad(filled, logits)
    torch.testing.assert_close(filled, term(logits[kept], ones(3)), rtol=1e-12, atol=0)
    assert not gradient[fillers].any()
    assert bool(gradient[kept].all())


@each_term
def test_a_row_of_weight_two_is_there_twice(term: TargetLoss) -> None:
    logits = torch.randn(3, 3, generator=generator(7), dtype=FLOAT64)
    weighted = term(logits, torch.tensor([2.0, 1.0, 1.0], dtype=FLOAT64))
    torch.testing.assert_close(weighted, term(logits[[0, 0, 1, 2]], ones(4)), rtol=1e-9, atol=0)


@each_term
def test_a_stack_of_batches_is_the_same_as_one_by_one(term: TargetLoss) -> None:
    logits = torch.randn(2, 3, 6, 4, generator=generator(8), dtype=FLOAT64)
    weight = torch.randint(0, 2, (2, 3, 6), generator=generator(9)).to(FLOAT64)
    weight[0, 1] = 0.0
    losses = term(logits, weight)
    assert losses.shape == (2, 3)
    one_by_one = torch.stack([term(*pair) for pair in zip(logits.flatten(0, 1), weight.flatten(0, 1), strict=True)])
    torch.testing.assert_close(losses.flatten(), one_by_one, rtol=1e-9, atol=1e-12)


@each_term
def test_no_decision_depends_on_data(term: TargetLoss) -> None:
    # Tensors on the meta device have no values to look at.
    assert term(torch.empty(2, 5, 3, device="meta"), torch.empty(2, 5, device="meta")).shape == (2,)


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TARGET_LOSSES)
def test_a_target_loss_may_be_given_by_its_name(name: str) -> None:
    kind = TARGET_LOSSES[name]
    assert kind.name == name
    assert kind.summary
    assert as_target_loss("target_loss", name) == kind()
    assert as_target_loss("target_loss", kind()) == kind()


def test_no_loss_is_zero() -> None:
    assert not NoTargetLoss()(torch.ones(2, 5, 3), torch.ones(2, 5)).any()


@pytest.mark.parametrize("value", [1, None, ["mcc"], MinimumClassConfusion, "mmc", ""])
def test_what_is_no_target_loss_is_refused_in_one_sentence(value: Any) -> None:
    with pytest.raises(FedmmError, match="target_loss") as refused:
        as_target_loss("target_loss", value)
    assert ". " not in str(refused.value)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "hot", True])
def test_a_temperature_must_be_above_0(value: Any) -> None:
    with pytest.raises(FedmmError, match="temperature must be"):
        MinimumClassConfusion(value)
