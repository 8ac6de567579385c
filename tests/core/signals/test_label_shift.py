"""The estimate of the target's class mix, on predictions of a known model in known mixes."""

import pytest
import torch
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.core.signals.label_shift import LabelShift, estimate_label_shift


def drawn(mix: list[float], rows: int, seed: int, *, apart: float = 3.0, turned: float = 0.0) -> tuple[Tensor, Tensor]:
    """Gaussian classes on a circle, and the exact posteriors of the even mix."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.multinomial(torch.tensor(mix), rows, replacement=True, generator=generator)
    classes = len(mix)
    angle = torch.arange(classes) * (2 * torch.pi / classes)
    centres = apart * torch.stack([angle.cos(), angle.sin()], dim=1)
    x = centres[y] + torch.randn(rows, 2, generator=generator)
    c, s = torch.tensor(turned).cos(), torch.tensor(turned).sin()
    x = x @ torch.stack([torch.stack([c, s]), torch.stack([-s, c])])
    return (-torch.cdist(x, centres).square() / 2).softmax(dim=1), y


@pytest.mark.parametrize("mix", [[0.3, 0.7], [0.9, 0.1], [0.6, 0.3, 0.1]])
def test_the_estimate_finds_the_mix_that_the_target_was_drawn_with(mix):
    even = [1.0 / len(mix)] * len(mix)
    p_s, y_s = drawn(even, 1500, 0, apart=1.5)
    p_t, _ = drawn(mix, 1500, 1, apart=1.5)
    found = estimate_label_shift(p_s, y_s, p_t)
    truth = sum(abs(a - b) for a, b in zip(mix, even, strict=True)) / 2
    assert found.reliable
    assert found.notable
    assert found.target.tolist() == pytest.approx(mix, abs=0.06)
    assert found.low <= truth <= found.high
    assert "label shift: from source to target" in found.sentence([f"c{k}" for k in range(len(mix))])


def test_badly_calibrated_probabilities_are_calibrated_first():
    p_s, y_s = drawn([0.5, 0.5], 2000, 0, apart=1.0)
    p_t, _ = drawn([0.2, 0.8], 2000, 1, apart=1.0)

    def overconfident(p: Tensor) -> Tensor:
        return (4.0 * p.log() + torch.tensor([0.7, 0.0])).softmax(dim=1)

    found = estimate_label_shift(overconfident(p_s), y_s, overconfident(p_t))
    assert found.target[1].item() == pytest.approx(0.8, abs=0.06)


def test_an_unchanged_mix_is_no_shift():
    p_s, y_s = drawn([0.4, 0.6], 1000, 0)
    p_t, _ = drawn([0.4, 0.6], 1000, 1)
    found = estimate_label_shift(p_s, y_s, p_t)
    assert found.reliable
    assert found.small
    assert not found.notable
    assert found.sentence(["a", "b"]).startswith("no sign of label shift")


def test_few_rows_rule_nothing_out():
    p_s, y_s = drawn([0.5, 0.5], 12, 0, apart=1.0)
    p_t, _ = drawn([0.5, 0.5], 20, 1, apart=1.0)
    found = estimate_label_shift(p_s, y_s, p_t)
    assert not found.reliable
    assert not found.small
    assert "fewer than" in found.sentence(["a", "b"])


def test_inputs_that_shift_are_told_from_labels_that_do():
    p_s, y_s = drawn([0.25] * 4, 1500, 0)
    p_t, _ = drawn([0.25] * 4, 1500, 1, turned=0.7)
    found = estimate_label_shift(p_s, y_s, p_t)
    assert not found.reliable
    assert any("inputs" in doubt for doubt in found.doubts)


def test_inputs_tell_of_a_shift_that_predictions_do_not_show():
    p_s, y_s = drawn([0.5, 0.5], 800, 0, apart=1.5)
    p_t, _ = drawn([0.2, 0.8], 800, 1, apart=1.5)
    noise = torch.randn(2, 800, 1, generator=torch.Generator().manual_seed(2))
    same = estimate_label_shift(p_s, y_s, p_t, source_inputs=noise[0], target_inputs=noise[1])
    assert same.reliable
    found = estimate_label_shift(p_s, y_s, p_t, source_inputs=noise[0], target_inputs=noise[1] + 2.0)
    assert not found.reliable
    assert found.sentence(["a", "b"]).startswith("perhaps label shift")


def test_a_classifier_that_cannot_tell_the_classes_is_not_relied_on():
    p_s, y_s = drawn([0.5, 0.5], 400, 0, apart=0.02)
    p_t, _ = drawn([0.1, 0.9], 400, 1, apart=0.02)
    found = estimate_label_shift(p_s, y_s, p_t)
    assert not found.reliable
    assert not found.small


def test_certain_and_single_class_predictions_do_no_harm():
    y = torch.tensor([0, 1] * 20)
    certain = torch.eye(2)[y]
    found = estimate_label_shift(certain, y, torch.eye(2)[torch.zeros(60, dtype=torch.int64)])
    assert found.target.isfinite().all()
    assert found.target[0] > 0.9
    absent = estimate_label_shift(torch.eye(3)[y], y, torch.eye(3)[y])
    assert absent.target.isfinite().all()
    assert not absent.reliable


def test_the_estimate_is_the_same_every_time():
    p_s, y_s = drawn([0.5, 0.5], 200, 0, apart=1.0)
    p_t, _ = drawn([0.3, 0.7], 200, 1, apart=1.0)
    one, other = (estimate_label_shift(p_s, y_s, p_t) for _ in range(2))
    assert (one.low, one.distance, one.high) == (other.low, other.distance, other.high)


@pytest.mark.parametrize(
    ("source", "labels", "target"),
    [
        (torch.rand(4, 2), torch.zeros(3, dtype=torch.int64), torch.rand(4, 2)),
        (torch.rand(4, 2), torch.zeros(4, dtype=torch.int64), torch.rand(4, 3)),
        (torch.rand(4, 2), torch.full((4,), 2), torch.rand(4, 2)),
        (torch.rand(0, 2), torch.zeros(0, dtype=torch.int64), torch.rand(4, 2)),
        (torch.full((4, 2), torch.nan), torch.zeros(4, dtype=torch.int64), torch.rand(4, 2)),
    ],
)
def test_what_cannot_be_is_refused(source, labels, target):
    with pytest.raises(FedmmError):
        estimate_label_shift(source, labels, target)


def test_a_shift_of_many_classes_names_the_largest():
    even, other = torch.full((10,), 0.1), torch.tensor([0.5] + [0.5 / 9] * 9)
    said = LabelShift(even, other, 0.4, True, 0.35, 0.45).sentence([f"class {k}" for k in range(10)])
    assert "'class 0' 10% to about 50%" in said
    assert said.count("to about") == 4
    assert ", ...;" in said
