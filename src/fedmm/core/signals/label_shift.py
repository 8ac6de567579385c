"""Label shift: whether class shares differ between source and target, estimated without target labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedmm.core.errors import require

NOTABLE, SMALL = 0.1, 0.15
"""Total variation between class mixes: from the first on worth a warning, up to the second mostly harmless."""
_FEWEST_PER_CLASS, _FEWEST_TARGET = 10, 50
_MOST_ROWS, _MOST_CLASSES = 2000, 100
_RESAMPLES, _COVERED = 40, 0.9
_ITERATIONS, _TOLERANCE = 200, 1e-6
_NEWTON_STEPS, _SHORTEST, _TINIEST = 30, 1e-3, 1e-12
_AGREEMENT = 0.15
"""The largest total variation at which the two estimates of the target's mix agree."""
_WORST_CONDITION = 10.0
_MISFIT = 0.1
"""How far, beyond chance, the target's predictions and inputs may be from the source's in the estimated mix: a
difference of cumulative distributions, as in the Kolmogorov-Smirnov test."""
_MOST_COLUMNS, _SHOWN = 200, 4
_INPUTS = "the inputs of a class have shifted too"


@dataclass(frozen=True, eq=False)
class LabelShift:
    """The estimated label shift between source and target.

    source, target: class shares ``[classes]``, of the source's labels and as estimated for the target. distance: the
    total variation between them, 0 to 1: the share of rows whose class would have to change. reliable: whether there
    are enough rows, the classifier tells the classes apart, two estimates agree, and the target looks like the source
    in another mix. low, high: the 90 % bootstrap interval of the distance, extended to contain it. doubts: why it is
    not reliable, in words.
    """

    source: Tensor
    target: Tensor
    distance: float
    reliable: bool
    low: float = 0.0
    high: float = 1.0
    doubts: tuple[str, ...] = ()

    @property
    def notable(self) -> bool:
        """Whether the estimate indicates a shift that is worth a warning and that chance does not explain."""
        return self.distance >= NOTABLE and self.low >= NOTABLE / 2

    @property
    def small(self) -> bool:
        """Whether the estimate rules out a large shift."""
        return not self.notable and self.high <= SMALL

    def sentence(self, class_names: Sequence[str]) -> str:
        """Return the estimate in plain words, with its uncertainty."""
        size = f"an estimated {self.distance:.0%} of the rows (90 % interval {self.low:.0%} to {self.high:.0%})"
        doubts = f"; the estimate is rough, since {' and '.join(self.doubts)}" if self.doubts else ""
        if self.small:
            return f"no sign of label shift: the class mixes of source and target differ in {size}{doubts}"
        if not self.notable:
            return f"label shift cannot be ruled out: the class mixes of source and target differ in {size}{doubts}"
        order = (self.target - self.source).abs().argsort(descending=True, stable=True).tolist()
        order = [1] if len(order) == 2 else order
        parts = [f"{class_names[k]!r} {self.source[k]:.0%} to about {self.target[k]:.0%}" for k in order[:_SHOWN]]
        more = ", ..." if len(order) > _SHOWN else ""
        said = "perhaps label shift" if _INPUTS in self.doubts else "label shift"
        return (
            f"{said}: from source to target the share of {', '.join(parts)}{more}; the class mixes differ in "
            f"{size}{doubts}"
        )


def estimate_label_shift(
    source_probabilities: Tensor,
    source_labels: Tensor,
    target_probabilities: Tensor,
    *,
    source_inputs: Tensor | None = None,
    target_inputs: Tensor | None = None,
) -> LabelShift:
    """Estimate the target's class mix from a classifier's predictions on both domains.

    source_probabilities: ``[rows, classes]`` on labelled source rows that the classifier was not trained on;
    source_labels: int64 ``[rows]``; target_probabilities: ``[rows, classes]`` on target rows. At most 2000 rows of each
    are used. source_inputs, target_inputs: the rows themselves, ``[rows, ...]``, to check whether the target looks like
    the source in another mix; without them only predictions are checked, which reveal less.

    Two estimates are made. The one returned maximises the likelihood of the predictions by expectation maximisation
    (Saerens, Latinne and Decaestecker 2002), after the probabilities were calibrated on the source rows by a
    temperature and a bias per class (Alexandari, Kundaje and Shrikumar 2020). The other uses the counts of predicted
    classes and the confusion matrix on the source rows (Lipton, Wang and Smola 2018), as a maximum likelihood on the
    simplex. Both assume that rows of a class look alike in both domains: ``reliable`` tests how far that fails, but
    cannot exclude it.
    """
    require(
        source_probabilities.ndim == 2
        and target_probabilities.ndim == 2
        and source_probabilities.shape[1] == target_probabilities.shape[1] >= 2
        and source_labels.shape == source_probabilities.shape[:1],
        "label shift is estimated from probabilities [rows, classes] of both domains and one source label a row",
    )
    require(
        len(source_labels) > 0 and len(target_probabilities) > 0, "label shift needs rows of the source and the target"
    )
    p_s, y = _thin(source_probabilities.detach().cpu().double()), _thin(source_labels.detach().cpu().long())
    p_t = _thin(target_probabilities.detach().cpu().double())
    classes = p_s.shape[1]
    require(int(y.min()) >= 0 and int(y.max()) < classes, f"source labels must be classes 0 to {classes - 1}")
    require(bool(p_s.isfinite().all() and p_t.isfinite().all()), "label shift needs finite probabilities")
    counts = torch.bincount(y, minlength=classes).double()
    source = counts / counts.sum()
    p_s, p_t = _calibrate(p_s, y, p_t)
    target = _expectation_maximisation(p_t, source)
    confusion = _confusion(p_s.argmax(dim=1), y, classes)
    by_counts = _mix_of_counts(torch.bincount(p_t.argmax(dim=1), minlength=classes).double(), confusion)
    low, high = _interval(p_s, y, p_t)
    distance = _total_variation(source, target)
    doubts = _doubts(p_t, counts, target, by_counts, confusion)
    of_source, of_target = (torch.cat([p, p.amax(dim=1, keepdim=True)], dim=1) for p in (p_s, p_t))
    if source_inputs is not None and target_inputs is not None:
        of_source = torch.cat([of_source, _columns(source_inputs)], dim=1)
        of_target = torch.cat([of_target, _columns(target_inputs)], dim=1)
    if _misfit(of_source, of_target, torch.where(counts > 0, target / counts.clamp_min(1.0), 0.0)[y]) > _MISFIT:
        doubts.append(_INPUTS)
    return LabelShift(source, target, distance, not doubts, min(low, distance), max(high, distance), tuple(doubts))


def _thin(rows: Tensor) -> Tensor:
    """Return at most ``_MOST_ROWS`` rows, evenly spaced."""
    if len(rows) <= _MOST_ROWS:
        return rows
    return rows[torch.linspace(0, len(rows) - 1, _MOST_ROWS, dtype=torch.float64).round().long()]


def _total_variation(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def _calibrate(p_s: Tensor, y: Tensor, p_t: Tensor) -> tuple[Tensor, Tensor]:
    """Return both domains' probabilities, calibrated by a temperature and biases that Newton's method fits to y.

    The logits scale * log p + bias are linear in the fitted parameters, which a small penalty pulls to (1, 0).
    """
    logs, logs_t = p_s.clamp_min(_TINIEST).log(), p_t.clamp_min(_TINIEST).log()
    rows, classes = p_s.shape
    start = torch.zeros(classes + 1, dtype=torch.float64)
    start[0] = 1.0
    ridge = torch.eye(classes + 1, dtype=torch.float64) / rows
    truth = torch.nn.functional.one_hot(y, classes).double()

    def loss(fit: Tensor) -> float:
        entropy = torch.nn.functional.cross_entropy(fit[0] * logs + fit[1:], y)
        return float(entropy + (fit - start).square().sum() / (2 * rows))

    fit, before = start, loss(start)
    for _ in range(_NEWTON_STEPS):
        p = (fit[0] * logs + fit[1:]).softmax(dim=1)
        wrong, spread = p - truth, p * (logs - (p * logs).sum(dim=1, keepdim=True))
        gradient = torch.cat([(wrong * logs).sum().reshape(1), wrong.sum(dim=0)]) / rows + ridge @ (fit - start)
        hessian = torch.empty(classes + 1, classes + 1, dtype=torch.float64)
        hessian[0, 0] = (spread * logs).sum()
        hessian[0, 1:] = hessian[1:, 0] = spread.sum(dim=0)
        hessian[1:, 1:] = torch.diag(p.sum(dim=0)) - p.T @ p
        step = torch.linalg.solve(hessian / rows + ridge, gradient)
        length = 1.0
        while length > _SHORTEST and loss(fit - length * step) > before:
            length /= 2
        if length <= _SHORTEST:
            break
        fit, last = fit - length * step, before
        before = loss(fit)
        if last - before < _TOLERANCE:
            break
    scale = fit[0].clamp_min(0.0)
    return (scale * logs + fit[1:]).softmax(dim=1), (scale * logs_t + fit[1:]).softmax(dim=1)


def _expectation_maximisation(p: Tensor, prior: Tensor) -> Tensor:
    """Return the most likely mix ``[classes]``, given predictions ``[rows, classes]`` that were made under a prior."""
    mix = prior
    for _ in range(_ITERATIONS):
        joint = p * torch.where(prior > 0, mix / prior, 0.0)
        new = (joint / joint.sum(dim=1, keepdim=True).clamp_min(1e-300)).mean(dim=0)
        if float((new - mix).abs().max()) < _TOLERANCE:
            return new
        mix = new
    return mix


def _confusion(guesses: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return P(predicted | class), ``[predicted, class]``, with half a row added to each class to avoid zeros."""
    counts = torch.bincount(guesses * classes + y, minlength=classes * classes).double().reshape(classes, classes)
    counts = counts + 0.5 / classes
    return counts / counts.sum(dim=0)


def _mix_of_counts(counts: Tensor, confusion: Tensor) -> Tensor:
    """Return the most likely mix, given counts of predicted classes and the confusion matrix."""
    share = counts / counts.sum()
    mix = torch.full_like(share, 1.0 / len(share))
    for _ in range(_ITERATIONS):
        new = mix * (confusion.T @ (share / (confusion @ mix)))
        if float((new - mix).abs().max()) < _TOLERANCE:
            return new
        mix = new
    return mix


def _interval(p_s: Tensor, y: Tensor, p_t: Tensor) -> tuple[float, float]:
    """Return the bootstrap interval of the distance, resampling the rows of both domains."""
    if p_s.shape[1] > _MOST_CLASSES:
        return 0.0, 1.0
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(_RESAMPLES):
        drawn = torch.randint(len(y), (len(y),), generator=generator)
        again = torch.randint(len(p_t), (len(p_t),), generator=generator)
        prior = torch.bincount(y[drawn], minlength=p_s.shape[1]).double() / len(y)
        found.append(_total_variation(prior, _expectation_maximisation(p_t[again], prior)))
    tail = (1.0 - _COVERED) / 2
    low, high = torch.tensor(found).quantile(torch.tensor([tail, 1.0 - tail])).tolist()
    return float(low), float(high)


def _columns(x: Tensor) -> Tensor:
    """Return at most ``_MOST_ROWS`` rows and ``_MOST_COLUMNS`` of their numbers, evenly spaced, ``[rows, numbers]``."""
    rows = _thin(x.detach().cpu().flatten(1).double())
    count = rows.shape[1]
    return rows[:, torch.linspace(0, count - 1, min(count, _MOST_COLUMNS), dtype=torch.float64).round().long()]


def _doubts(p_t: Tensor, counts: Tensor, target: Tensor, by_counts: Tensor, confusion: Tensor) -> list[str]:
    found = []
    if int(counts.min()) < _FEWEST_PER_CLASS:
        found.append(f"a class has fewer than {_FEWEST_PER_CLASS} labelled source rows set aside")
    if len(p_t) < _FEWEST_TARGET:
        found.append(f"there are fewer than {_FEWEST_TARGET} target rows")
    if len(counts) > _MOST_CLASSES:
        found.append(f"there are more than {_MOST_CLASSES} classes")
    elif float(torch.linalg.cond(confusion)) > _WORST_CONDITION:
        found.append("the classifier confuses classes of the source")
    apart = _total_variation(target, by_counts)
    if apart > _AGREEMENT:
        found.append(f"two ways to estimate it differ by {apart:.0%}")
    return found


def _misfit(source: Tensor, target: Tensor, weights: Tensor) -> float:
    """Return how far the distributions of the target's columns are from the source's in the estimated mix.

    source, target: ``[rows, columns]``; weights: of the source's rows, which make the mix. The result is the largest
    difference of two cumulative distributions over all columns, minus what chance explains.
    """
    weights = weights / weights.sum()
    effective = 1.0 / float(weights.square().sum())
    level = math.sqrt(-0.5 * math.log(0.025 / source.shape[1]))
    chance = level * math.sqrt(1.0 / effective + 1.0 / len(target))
    step = torch.cat([weights, torch.full((len(target),), -1.0 / len(target), dtype=weights.dtype)]).unsqueeze(1)
    values, order = torch.cat([source, target]).sort(dim=0, stable=True)
    steps = step.expand_as(values).gather(0, order).cumsum(dim=0)
    last = torch.ones_like(values, dtype=torch.bool)
    last[:-1] = values[1:] != values[:-1]
    return float(torch.where(last, steps.abs(), 0.0).max()) - chance
