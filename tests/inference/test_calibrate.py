"""Temperatures against a fine grid, thresholds by hand, and both through a run's folder."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

from fedmm import FedmmError
from fedmm.config.schema import experiment
from fedmm.inference import evaluate, open_run, rows_named
from fedmm.inference.calibrate import Calibration, calibrate, fit_platt, fit_temperature
from fedmm.inference.predict import calibrated_logits
from fedmm.runs.run import run_experiment


@pytest.mark.parametrize("true", [0.4, 1.0, 3.0])
def test_the_temperature_is_that_of_the_labels(true: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(20_000, 4, generator=generator, dtype=torch.float64)
    y = torch.multinomial((logits / true).softmax(dim=1), 1, generator=generator).squeeze(1)
    found = fit_temperature(y, logits)
    assert found == pytest.approx(true, rel=0.05)
    losses = {t: float(cross_entropy(logits / t, y)) for t in (0.97 * found, found, 1.03 * found)}
    assert min(losses, key=losses.__getitem__) == found


def test_rows_that_are_all_right_leave_some_doubt() -> None:
    y = torch.arange(30) % 2
    logits = torch.nn.functional.one_hot(y, 2).double()
    temperature = fit_temperature(y, logits)
    p = (logits / temperature).softmax(dim=1)[torch.arange(30), y]
    assert float(p.min()) == pytest.approx(31 / 32)


@pytest.mark.parametrize(("temperature", "bias"), [(0.5, 1.0), (1.0, 0.0), (3.0, -2.5)])
def test_scale_and_bias_are_those_of_the_labels(temperature: float, bias: float) -> None:
    generator = torch.Generator().manual_seed(0)
    s = 3.0 * torch.randn(40_000, generator=generator, dtype=torch.float64) + 1.0
    y = ((s / temperature + bias).sigmoid() > torch.rand(40_000, generator=generator, dtype=torch.float64)).long()
    found = fit_platt(y, s)
    assert found == (pytest.approx(temperature, rel=0.05), pytest.approx(bias, abs=0.1))
    p = (s / found[0] + found[1]).sigmoid()
    assert float(p.mean()) == pytest.approx(float(y.double().mean()), abs=1e-4)


def test_scores_without_order_or_in_the_wrong_order_leave_the_share_of_the_class() -> None:
    y = (torch.arange(40) < 10).long()
    share = (10 * 41 / 42 + 30 / 42) / 40  # of the targets
    temperature, bias = fit_platt(y, torch.full((40,), 7.0, dtype=torch.float64))
    assert 1 / (1 + math.exp(-(7.0 / temperature + bias))) == pytest.approx(share)
    wrong = 1.0 - y.double()
    temperature, bias = fit_platt(y, wrong)
    assert temperature == pytest.approx(100.0)
    assert float((wrong / temperature + bias).sigmoid().mean()) == pytest.approx(share)


def test_classes_that_are_told_apart_leave_some_doubt() -> None:
    y = torch.arange(30) % 2
    temperature, bias = fit_platt(y, 40.0 * y.double())
    assert (
        (40.0 * y.double() / temperature + bias).sigmoid() - torch.where(y == 1, 31 / 32, 1 / 32)
    ).abs().max() < 1e-9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, of which the second is found in most rows."""
    each = experiment(
        {
            "data": {"name": "moons", "validation_rows": 100},
            "model": {"name": "mlp"},
            "objective": {"name": "source_only"},
            "run": {"rounds": 10, "seed": 3},
        }
    )
    folder = tmp_path_factory.mktemp("calibrated") / "run"
    run_experiment(each, folder, progress=False)
    return folder


def test_a_recall_is_found_and_no_more_than_is_needed(run: Path) -> None:
    opened = open_run(run, "last")
    calibrated, fitted = calibrate(opened, rows_named(opened, "source-validation"), recall=0.9)
    scores = evaluate(calibrated, "source-validation", rows_named(calibrated, "source-validation")).scores
    second = scores.classes[1]
    assert second.recall == fitted.recall
    assert fitted.recall is not None
    assert 0.9 <= fitted.recall < 0.9 + 1 / second.support + 1e-9
    assert second.precision == pytest.approx(fitted.precision)
    assert scores.nll == pytest.approx(fitted.nll[1])
    before = evaluate(opened, "source-validation", rows_named(opened, "source-validation")).scores
    assert before.nll == pytest.approx(fitted.nll[0])
    assert before.auc == pytest.approx(scores.auc)  # a temperature changes no order


@pytest.mark.parametrize(("threshold", "p"), [(-1e6, "0"), (0.0, "0.5"), (1e6, "1")])
def test_a_threshold_at_extreme_scores_is_a_probability_all_the_same(threshold: float, p: str) -> None:
    fitted = Calibration(1.0, 100, (0.5, 0.4), threshold, 1.0, (0.9, 1.0), 0.2)
    assert f"'ill' is predicted from probability {p} on" in fitted.describe("rows", "ill")[1]


def test_what_cannot_be_calibrated_is_refused(run: Path) -> None:
    opened = open_run(run, "last")
    with pytest.raises(FedmmError, match=r"the recall must be above 0 and at most 1, not 1\.5"):
        calibrate(opened, rows_named(opened, "test"), recall=1.5)
    few = rows_named(opened, "test")
    part = next(iter(few.parts))
    short = type(few).cut(part._replace(x=part.x[:5], names=part.names[:5], y=part.y[:5]))
    with pytest.raises(FedmmError, match="calibration needs at least 20 rows whose class the model knows, not 5"):
        calibrate(opened, short)
    one = type(few).cut(part._replace(y=torch.zeros_like(part.y)))
    with pytest.raises(FedmmError, match="calibration of two classes needs rows of both, and these are all of one"):
        calibrate(opened, one)


@pytest.mark.parametrize("recall", [0.3, 0.55, 0.9, 1.0])
def test_a_row_alone_is_decided_as_it_was_among_all(run: Path, recall: float) -> None:
    """Its score is computed again, and may differ in the last bits."""
    opened = open_run(run, "last")
    rows = rows_named(opened, "source-validation")
    calibrated, fitted = calibrate(opened, rows, recall)
    (part,) = rows_named(opened, "source-validation").parts
    assert part.y is not None
    logits = calibrated.predictor.logits(part.x).double()
    for off in (-1.0, 1.0):
        moved = calibrated_logits(logits * (1 + off * 2e-6), calibrated.temperature, calibrated.bias)
        found = (moved[:, 1] - moved[:, 0] >= calibrated.log_odds_threshold)[part.y == 1].double().mean()
        assert float(found) >= recall - 1e-12
    assert fitted.log_odds_threshold == calibrated.log_odds_threshold
