"""Calibrate probabilities on labelled rows, and choose a threshold for a given recall of the second class."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.signals.intervals import Interval, wilson
from fedmm.core.signals.thresholds import to_probability
from fedmm.data.domains import RowStream
from fedmm.inference.load_run import FinishedRun
from fedmm.inference.predict import calibrated_logits, predict_rows

_FEWEST_ROWS = 20
_STEPS, _HALVINGS = 100, 50
_ROUNDING = 1e-5
"""Relative margin of a threshold below the score that it must find: about eighty float32 roundings, since other batch
sizes and other programs compute the same score slightly differently."""


@dataclass(frozen=True)
class Calibration:
    """Divides logits by ``temperature`` and, with two classes, then adds ``bias`` to the log odds of the second.

    rows: the number of rows of the fit. nll: their mean -log p_y before and after, in nats.
    log_odds_threshold: the calibrated log odds from which on the second class is predicted; None for the likeliest.
    recall, recall_interval: the share of the second class's rows that the threshold finds, with its 95 % interval;
        precision: the share of the rows it predicts as the second class that are. None without a threshold.
    """

    temperature: float
    rows: int
    nll: tuple[float, float]
    log_odds_threshold: float | None = None
    recall: float | None = None
    recall_interval: Interval | None = None
    precision: float | None = None
    bias: float = 0.0

    def describe(self, data: str, class_name: str) -> list[str]:
        """Describe the fit in sentences; data, class_name: the names of the rows and of the second class."""
        fit = f"temperature {self.temperature:.3g}" + (f", bias {self.bias:+.3g}" if self.bias else "")
        said = [
            f"probabilities are calibrated on {self.rows} rows of {data}: {fit}, NLL "
            f"{self.nll[0]:.3f} before and {self.nll[1]:.3f} after; this holds for rows like those"
        ]
        if self.recall_interval is not None:
            p, (low, high) = to_probability(self.log_odds_threshold), self.recall_interval
            said.append(
                f"{class_name!r} is predicted from probability {p:.4g} on: recall {self.recall:.1%} there ({low:.1%} "
                f"to {high:.1%}), precision {self.precision:.1%}"
            )
        return said


def calibrate(run: FinishedRun, rows: RowStream, recall: float | None = None) -> tuple[FinishedRun, Calibration]:
    """Return the run with calibrated probabilities, and the fit; rows: labelled rows that it was not trained on.

    recall: predict the second of two classes from the highest threshold that finds at least this share of its rows.
    """
    labels, logits = [], []
    for part in rows.parts:
        found = predict_rows(run, part)
        if found.y is not None:
            known = found.y.cpu() >= 0
            labels.append(found.y.cpu()[known])
            logits.append(found.logarithms[known])
    count = sum(map(len, labels))
    require(
        count >= _FEWEST_ROWS,
        f"calibration needs at least {_FEWEST_ROWS} rows whose class the model knows, not {count}",
    )
    y, logs, bias = torch.cat(labels), torch.cat(logits), 0.0
    if len(run.class_names) == 2:
        require(0 < int(y.sum()) < count, "calibration of two classes needs rows of both, and these are all of one")
        temperature, bias = fit_platt(y, logs[:, 1] - logs[:, 0])
    else:
        temperature = fit_temperature(y, logs)
    after = calibrated_logits(logs, temperature, bias)
    fitted = Calibration(temperature, count, (_nll(y, logs), _nll(y, after)), bias=bias)
    if recall is not None:
        fitted = _with_threshold(fitted, y, after[:, 1] - after[:, 0], recall, len(run.class_names))
    return replace(run, temperature=temperature, bias=bias, log_odds_threshold=fitted.log_odds_threshold), fitted


def fit_platt(y: Tensor, s: Tensor) -> tuple[float, float]:
    """Return T > 0 and b that minimise the mean cross entropy of sigmoid(s / T + b) (Platt 1999).

    y: 0 or 1 ``[rows]``, with rows of both; s: the log odds of class 1, float64 ``[rows]``. A temperature alone could
    not correct a wrong share of class 1, as of :class:`~fedmm.AUC` or class weights. Targets and bounds of T are those
    of :func:`fit_temperature`.

    The loss is convex in (1 / T, b). For each T, the best b makes the mean probability equal to the mean target; the
    sign of the derivative in 1 / T at that b tells on which side the optimum lies.
    """
    e = 1.0 / (len(y) + 2.0)
    targets = e + (1.0 - 2.0 * e) * y.double()
    share = float(targets.mean())
    odds = math.log(share / (1.0 - share))
    if float(s.max()) == float(s.min()):
        return 1.0, odds - float(s[0])
    scores = s - s.mean()

    def best_bias(scaled: Tensor) -> float:
        low, high = odds - float(scaled.max()), odds - float(scaled.min())
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (low, middle) if float((scaled + middle).sigmoid().mean()) > share else (middle, high)
        return (low + high) / 2

    low, high = math.log(0.01), math.log(100.0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scaled = scores * math.exp(middle)
        p = (scaled + best_bias(scaled)).sigmoid()
        low, high = (low, middle) if float(((p - targets) * scores).sum()) > 0 else (middle, high)
    scale = math.exp((low + high) / 2)
    return 1.0 / scale, best_bias(scores * scale) - scale * float(s.mean())


def fit_temperature(y: Tensor, logits: Tensor) -> float:
    """Return T > 0 that minimises the mean cross entropy of softmax(logits / T) (Guo et al. 2017).

    y: int64 ``[rows]``; logits: float64 ``[rows, classes]``. As in Platt (1999), targets are smoothed, here to
    1 - 1 / (rows + 2), so that T stays above 0 if every prediction is right; T is limited to 0.01 to 100.

    The loss is convex in b = 1 / T; the sign of its derivative, the mean of sum_k (p_k - t_k) l_k, tells the side.
    """
    rows, classes = logits.shape
    e = 1.0 / (rows + 2.0)
    targets = torch.full_like(logits, e / (classes - 1))
    targets.scatter_(1, y.unsqueeze(1), 1.0 - e)
    low, high = math.log(0.01), math.log(100.0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        p = (logits * math.exp(middle)).softmax(dim=1)
        rising = float(((p - targets) * logits).sum()) > 0
        low, high = (low, middle) if rising else (middle, high)
    return math.exp(-(low + high) / 2)


def _nll(y: Tensor, logits: Tensor) -> float:
    return float(torch.nn.functional.cross_entropy(logits, y))


def _with_threshold(fitted: Calibration, y: Tensor, odds: Tensor, recall: float, classes: int) -> Calibration:
    """Add the highest threshold that finds the share ``recall`` of class 1's rows, and its results on these rows.

    odds: the calibrated log odds; what float32 rounded is (odds - bias) * temperature.
    """
    require(classes == 2, f"a recall is chosen for two classes, not {classes}")
    require(0.0 < recall <= 1.0, f"the recall must be above 0 and at most 1, not {recall:g}")
    positive = odds[y == 1].sort(descending=True).values
    require(len(positive) > 0, "there is no row of the second class to choose a threshold with")
    needed = math.ceil(recall * len(positive) - 1e-9)
    last = float(positive[needed - 1])
    threshold = last - _ROUNDING * (1.0 / fitted.temperature + abs(last - fitted.bias))
    hits, called = int((positive >= threshold).sum()), int((odds >= threshold).sum())
    return replace(
        fitted,
        log_odds_threshold=threshold,
        recall=hits / len(positive),
        recall_interval=wilson(hits, len(positive)),
        precision=hits / called,
    )
