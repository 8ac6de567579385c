"""Metrics of a model computed from sums over rows; the sums of parts add up to those of the whole.

Rows can therefore be processed in batches, or stay at clients that each send their sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmm.core.objective import SOURCE, TARGET, cross_entropies

_TEMPERATURE = 0.05
_ROUNDING = 1e-13
"""Relative threshold below which an eigenvalue or a variance is rounding error and counts as 0."""
_SLACK = 1e-6
"""Tolerance per row for received sums, which may exceed their bounds by rounding."""
MOST_COUNTS = 8
"""The maximum number of times that rows are counted for one value."""


@dataclass(frozen=True, eq=False)
class Seen:
    """A network's outputs for some rows, and what is known about these rows.

    logits: ``[..., rows, classes]``; y: labels int64 ``[..., rows]``, any class if no metric reads them.
    log_ratio: ``[..., rows]``, the log density ratio of target to source at a row according to the adversary; None if
        it is not a domain classifier. client: int64 ``[..., rows]``, the client that holds a row; None if not needed.
    """

    logits: Tensor
    y: Tensor
    log_ratio: Tensor | None = None
    client: Tensor | None = None

    @cached_property
    def log_p(self) -> Tensor:
        """The log probabilities of the classes, float64."""
        return self.logits.double().log_softmax(dim=-1)

    @cached_property
    def p(self) -> Tensor:
        """The predicted probabilities of the classes, float64."""
        return self.log_p.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """The entropies of the rows' predictions, summed over rows, ``[...]``."""
        return -(self.p * self.log_p).sum(dim=(-1, -2))


class Metric(Protocol):
    """A function of sums over rows; it has several values if it has ``parts``, which name them.

    If it has ``by_site``, the sums of different sites are concatenated instead of added. If it has ``refined``, it is
    :class:`Refinable`.
    """

    def sums(self, seen: Seen) -> Tensor:
        """Return the sums over the rows, float64 ``[..., k]``; label-free metrics ignore y."""

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """Return the metric ``[...]``, or its parts ``[..., parts]``, from sums ``[..., k]`` over ``rows`` rows."""

    def count(self, classes: int) -> int:
        """Return k, the number of sums; with ``by_site``, of one site."""

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        """Return why finite sums ``[k]`` cannot come from ``rows`` rows; empty if they can."""


@runtime_checkable
class Refinable(Metric, Protocol):
    """A metric that counts rows in histogram bins and can count the same rows again in finer bins."""

    @property
    def edges(self) -> Tensor:
        """The edges between the bins, int64 ``[k]``."""

    def is_coarse(self, value: Tensor) -> Tensor:
        """Return whether finer bins would change a value ``[..., parts]`` noticeably, bool ``[...]``."""

    def refined(self, sums: Tensor, rows: int) -> Refinable | None:
        """Return the metric with finer bins where sums ``[k]`` need them, or None if unnecessary or impossible."""

    def with_edges(self, edges: Tensor) -> Refinable:
        """Return the same metric with these edges, int32; raises ``FedmmError`` if they are invalid."""


def count_finer(
    metric: Metric, sums: Tensor, rows: int, count: Callable[[Refinable], Tensor | None]
) -> tuple[Metric, Tensor]:
    """Return a metric and its sums ``[k]``, recounted in finer bins until these suffice, at most eight times in all.

    count: returns the sums of a finer metric over the same rows, or None if it cannot, which keeps the last sums.
    """
    for _ in range(MOST_COUNTS - 1):
        finer = metric.refined(sums, rows) if isinstance(metric, Refinable) else None
        counted = None if finer is None else count(finer)
        if finer is None or counted is None:
            break
        metric, sums = finer, counted
    return metric, sums


def columns_of(name: str, metric: Metric) -> list[str]:
    """Return the columns that a metric called ``name`` fills: ``name`` itself, or one column per part.

    A part's column is ``name`` with its last word replaced by the part.
    """
    parts: tuple[str, ...] = getattr(metric, "parts", ())
    return [f"{name.rpartition('_')[0]}_{part}" for part in parts] or [name]


def values_by_column(name: str, metric: Metric, sums: Tensor, rows: int) -> dict[str, Tensor]:
    """Return the metric's values by column, ``[...]`` each, from sums ``[..., k]`` over ``rows`` rows."""
    return by_column(name, metric, metric.value(sums, rows))


def by_column(name: str, metric: Metric, value: Tensor) -> dict[str, Tensor]:
    """Return a metric's value split by column, ``[...]`` each."""
    columns = columns_of(name, metric)
    return dict(zip(columns, value.unbind(dim=-1), strict=True)) if columns != [name] else {name: value}


class _RowMean:
    """A metric that averages one number per row."""

    def value(self, sums: Tensor, rows: int) -> Tensor:
        return sums.squeeze(-1) / rows

    def count(self, classes: int) -> int:
        return 1


class Accuracy(_RowMean):
    """The share of rows whose predicted class is their label."""

    def sums(self, seen: Seen) -> Tensor:
        return (seen.logits.argmax(dim=-1) == seen.y).double().sum(dim=-1, keepdim=True)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return uncountable(sums, rows, 1.0)


class WorstAccuracy:
    """The lowest accuracy of any site; sites without rows are left out.

    The sums are the numbers of hits and rows, site after site: a site sends its own two, and those of several sites are
    concatenated. The value is NaN if there are no rows.

    sites: the number of sites in ``Seen.client``; rows with a negative number belong to no site.
    """

    by_site: ClassVar[bool] = True

    def __init__(self, sites: int) -> None:
        self.sites = sites

    def sums(self, seen: Seen) -> Tensor:
        assert seen.client is not None
        held = (seen.client.unsqueeze(-1) == torch.arange(self.sites, device=seen.client.device)).double()
        hits = (seen.logits.argmax(dim=-1) == seen.y).double().unsqueeze(-1) * held
        return torch.stack([hits.sum(dim=-2), held.sum(dim=-2)], dim=-1).flatten(-2)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        hits, held = sums[..., 0::2], sums[..., 1::2]
        worst = torch.where(held > 0, hits / held, torch.inf).amin(dim=-1)
        return torch.where(worst.isfinite(), worst, torch.nan)

    def count(self, classes: int) -> int:
        return 2

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return uncountable(sums, rows, 1.0) or ("" if float(sums[1]) == rows else "its number of rows is wrong")


class Risk(_RowMean):
    """The mean cross entropy, in nats."""

    def sums(self, seen: Seen) -> Tensor:
        return cross_entropies(seen.logits, seen.y).double().sum(dim=-1, keepdim=True)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return "a loss is below 0" if _outside(sums, 0.0, math.inf, rows) else ""


class Entropy(_RowMean):
    """The mean entropy of the predictions, in nats; needs no labels.

    As a validator: Morerio, Cavazza and Murino, Minimal-Entropy Correlation Alignment, ICLR 2018.
    """

    def sums(self, seen: Seen) -> Tensor:
        return seen.entropy.unsqueeze(-1)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return _no_entropy(sums, rows, classes)


class Information:
    """The entropy of the mean prediction minus the mean entropy of the predictions, in nats; needs no labels.

    It is high, up to log(classes), if predictions are confident and differ between rows.
    Bridle, Heading and MacKay, Unsupervised Classifiers, Mutual Information and Phantom Targets, NIPS 1991; as a
    validator: Musgrave, Belongie and Lim, Three New Validators and a Large-Scale Benchmark Ranking for Unsupervised
    Domain Adaptation, 2022.
    """

    def sums(self, seen: Seen) -> Tensor:
        return torch.cat([seen.p.sum(dim=-2), seen.entropy.unsqueeze(-1)], dim=-1)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        mean = sums[..., :-1] / rows
        return -torch.xlogy(mean, mean).sum(dim=-1) - sums[..., -1] / rows

    def count(self, classes: int) -> int:
        return classes + 1

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        mean = sums[:-1]
        if _outside(mean, 0.0, rows, rows) or abs(float(mean.sum()) - rows) > _SLACK * rows:
            return "the predictions are not probabilities"
        return _no_entropy(sums[-1:], rows, classes)


class NuclearNorm:
    """The nuclear norm of the predictions P ``[rows, classes]``, divided by its maximum; needs no labels.

    ||P||_* is the sum of the square roots of the eigenvalues of P^T P, the sum over rows of p p^T ``[classes,
    classes]``. Its maximum is sqrt(rows min(rows, classes)), for confident predictions spread evenly over the classes.
    Cui et al., Towards Discriminability and Diversity: Batch Nuclear-norm Maximization under Label Insufficient
    Situations, CVPR 2020; as a validator: Musgrave, Belongie and Lim, 2022.
    """

    def sums(self, seen: Seen) -> Tensor:
        return (seen.p.transpose(-1, -2) @ seen.p).flatten(-2)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        classes = round(sums.shape[-1] ** 0.5)
        finite = sums.isfinite().all(dim=-1)
        gram = torch.where(finite[..., None], sums, 0.0).reshape(*sums.shape[:-1], classes, classes)
        eigenvalues = torch.linalg.eigvalsh(gram)
        eigenvalues = torch.where(eigenvalues > _ROUNDING * rows, eigenvalues, 0.0)
        norm = eigenvalues.sqrt().sum(dim=-1) / (rows * min(rows, classes)) ** 0.5
        return torch.where(finite, norm, torch.nan)

    def count(self, classes: int) -> int:
        return classes * classes

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        gram = sums.reshape(classes, classes)
        if _outside(sums, 0.0, rows, rows) or abs(float(sums.sum()) - rows) > _SLACK * rows:
            return "the predictions are not probabilities"
        return "" if not _outside(gram - gram.T, 0.0, 0.0, rows) else "the matrix is not symmetric"


class NeighbourhoodDensity:
    """The soft neighbourhood density of the predictions, among each client's own rows; needs no labels.

    With s_ij the cosine similarity of the predictions of rows i and j, the neighbours j != i of row i have
    probabilities proportional to exp(s_ij / 0.05). The metric is the mean entropy of these distributions, in nats; it
    is high if predictions form dense clusters. Saito et al., Tune it the Right Way: Unsupervised Validation of Domain
    Adaptation via Soft Neighborhood Density, ICCV 2021.

    The original pairs all rows. Here a client pairs only its own rows and sends the sum of their entropies and their
    number, so the value is a mean over clients weighted by rows: it depends on how rows are distributed, and equals the
    original if one client holds them all. A client with a single row has no pairs and is ignored.
    """

    def sums(self, seen: Seen) -> Tensor:
        assert seen.client is not None
        p = torch.nn.functional.normalize(seen.p, dim=-1) * _TEMPERATURE**-0.5
        similar = p @ p.transpose(-1, -2)
        weights = (similar - 1.0 / _TEMPERATURE).exp_()
        weights.masked_fill_(seen.client.unsqueeze(-1) != seen.client.unsqueeze(-2), 0.0)
        weights.diagonal(dim1=-2, dim2=-1).zero_()
        total = weights.sum(dim=-1)
        paired = total != 0
        total = torch.where(paired, total, 1.0)
        within = torch.linalg.vecdot(weights, similar) / total
        entropies = torch.where(paired, total.log() + 1.0 / _TEMPERATURE - within, 0.0)
        return torch.stack([entropies.sum(dim=-1), paired.sum(dim=-1).to(entropies.dtype)], dim=-1)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        return sums[..., 0] / sums[..., 1]

    def count(self, classes: int) -> int:
        return 2

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return uncountable(sums[1:], rows, 1.0) or _no_entropy(sums[:1], rows, int(sums[1]))


class EmbeddedRisk:
    """The target risk estimated from labelled source rows by importance weighting (deep embedded validation).

    With l the cross entropy of a row and w its density ratio: mean(w l) + eta (mean(w) - 1), where mean(w) should be 1
    and eta = -cov(w l, w) / var(w) makes mean(w) a control variate. You et al., Towards Accurate Model Selection in
    Deep Unsupervised Domain Adaptation, ICML 2019. They train a classifier for the ratio; here it comes from the run's
    own adversary.

    If the ratio is constant it carries no information, and the value is mean(l).

    The sums are of v, l, v l, v^2 and v^2 l with v = w - 1, which loses less to rounding than w if domains are alike.
    """

    def sums(self, seen: Seen) -> Tensor:
        assert seen.log_ratio is not None
        loss = cross_entropies(seen.logits, seen.y).double()
        v = torch.expm1(seen.log_ratio.double())
        return torch.stack([v, loss, v * loss, v.square(), v.square() * loss], dim=-1).sum(dim=-2)

    def value(self, sums: Tensor, rows: int) -> Tensor:
        v, loss, v_loss, v_square, v_square_loss = (sums / rows).unbind(dim=-1)
        weighted = loss + v_loss
        variance = v_square - v.square()
        covariance = v_loss + v_square_loss - weighted * v
        constant = variance <= _ROUNDING * (1.0 + v_square)
        eta = -covariance / torch.where(constant, 1.0, variance)
        return torch.where(constant, loss, weighted + eta * v)

    def count(self, classes: int) -> int:
        return 5

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        v, loss, v_loss, v_square, v_square_loss = sums.tolist()
        slack = _SLACK * (rows + abs(v) + loss)
        if min(loss, v_square, v_square_loss) < -slack or v < -rows - slack or v_loss < -loss - slack:
            return "a loss or a weight is below 0"
        return "" if v * v <= rows * v_square * (1.0 + _SLACK) + slack else "the weights are not valid"


class DomainHits(_RowMean):
    """The share of rows of one domain that the adversary assigns to this domain.

    The domains are taken to be equally frequent, whatever the adversary's batches held; a tie counts half.
    """

    def __init__(self, domain: int) -> None:
        self.sign = {SOURCE: -1.0, TARGET: 1.0}[domain]

    def sums(self, seen: Seen) -> Tensor:
        assert seen.log_ratio is not None
        return ((self.sign * seen.log_ratio.double()).sign() / 2 + 0.5).sum(dim=-1, keepdim=True)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return uncountable(sums, rows, 0.5)


def _outside(sums: Tensor, least: float, most: float, rows: int) -> bool:
    """Return whether any of the sums over ``rows`` rows is out of bounds."""
    slack = _SLACK * rows
    return bool(((sums < least - slack) | (sums > most + slack)).any())


def _no_entropy(sums: Tensor, rows: int, outcomes: int) -> str:
    """Return why a sum ``[1]`` cannot be of entropies over rows, with ``outcomes`` outcomes each; empty if it can."""
    flawed = _outside(sums, 0.0, rows * math.log(max(outcomes, 1)), rows)
    return "an entropy is below 0 or too large" if flawed else ""


def uncountable(sums: Tensor, rows: int, step: float) -> str:
    """Return why sums cannot be counts of rows in multiples of ``step``; empty if they can."""
    counts = sums / step
    return (
        ""
        if bool((counts == counts.round()).all()) and not _outside(sums, 0.0, rows, 0)
        else "its sums are not valid row counts"
    )


def proxy_a_distance(domain_accuracy: Tensor) -> Tensor:
    """Return 2 (1 - 2 error) of a domain classifier: 0 if it cannot tell the domains apart, 2 if it always can.

    Ben-David et al., Analysis of Representations for Domain Adaptation, NIPS 2006. It is negative if the classifier is
    wrong more often than right.
    """
    return 2.0 * (1.0 - 2.0 * (1.0 - domain_accuracy))
