"""What is measured of a model on some rows, from sums over them: sums of parts add up to those of the whole.

So rows can be gone over batch by batch, or stay at clients that each send their sums.
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
"""Relative to the largest: eigenvalues and variances below are those of equal rows, and what is left is rounding."""
_SLACK = 1e-6
"""Of a row: by how much sums that others took may pass what is possible, since they are rounded."""
MOST_COUNTS = 8
"""How often rows are counted at most for one value."""


@dataclass(frozen=True, eq=False)
class Seen:
    """What a network gives for some rows, and what is known of them.

    logits: ``[..., rows, classes]``; y: labels int64 ``[..., rows]``, any class where no measure looks at them.
    log_ratio: ``[..., rows]``, the log of how much denser the target is there than the source, as the adversary has it;
        None if it is no domain classifier. client: int64 ``[..., rows]``, who holds a row; None if nobody asks.
    """

    logits: Tensor
    y: Tensor
    log_ratio: Tensor | None = None
    client: Tensor | None = None

    @cached_property
    def log_p(self) -> Tensor:
        """The logarithms of the predicted probabilities, float64."""
        return self.logits.double().log_softmax(dim=-1)

    @cached_property
    def p(self) -> Tensor:
        """The predicted probabilities, float64."""
        return self.log_p.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """The sum of the entropies of the rows' predictions, ``[...]``."""
        return -(self.p * self.log_p).sum(dim=(-1, -2))


class Metric(Protocol):
    """A function of sums over rows; several, where it has ``parts``, which name them.

    Where it has ``by_site``, the sums of sites are put side by side and not added. Where it has ``refined``, it is
    :class:`Refinable`.
    """

    def sums(self, seen: Seen) -> Tensor:
        """Float64 ``[..., k]`` over the rows seen; measures without labels do not look at y."""

    def value(self, sums: Tensor, rows: int) -> Tensor:
        """The measure ``[...]``, from sums ``[..., k]`` over so many rows; its parts ``[..., parts]``."""

    def count(self, classes: int) -> int:
        """k: how many sums there are."""

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        """Why sums ``[k]``, all finite, cannot be of so many rows; empty if they can."""


@runtime_checkable
class Refinable(Metric, Protocol):
    """A metric that counts rows in bins, and can be told to count the same rows again in finer ones."""

    @property
    def edges(self) -> Tensor:
        """Between the bins, int64 ``[k]``."""

    def is_coarse(self, value: Tensor) -> Tensor:
        """Whether finer bins would tell more than a value ``[..., parts]``, bool ``[...]``."""

    def refined(self, sums: Tensor, rows: int) -> Refinable | None:
        """The same metric with finer bins where sums ``[k]`` need them; None where they are fine enough."""

    def with_edges(self, edges: Tensor) -> Refinable:
        """The same metric with these edges, int32; ``FedmmError`` if there can be no such bins."""


def count_finer(
    metric: Metric, sums: Tensor, rows: int, count: Callable[[Refinable], Tensor | None]
) -> tuple[Metric, Tensor]:
    """A metric and its sums ``[k]``, counted again until they are fine enough, at most eight times in all.

    count: the sums of a finer metric over the same rows; None if they cannot be had, which leaves the last ones.
    """
    for _ in range(MOST_COUNTS - 1):
        finer = metric.refined(sums, rows) if isinstance(metric, Refinable) else None
        counted = None if finer is None else count(finer)
        if finer is None or counted is None:
            break
        metric, sums = finer, counted
    return metric, sums


def columns_of(name: str, metric: Metric) -> list[str]:
    """The columns that a metric of this name fills: one of that name, or one for each of its parts.

    Those are named like the metric, with the part in place of its last word.
    """
    parts: tuple[str, ...] = getattr(metric, "parts", ())
    return [f"{name.rpartition('_')[0]}_{part}" for part in parts] or [name]


def values_by_column(name: str, metric: Metric, sums: Tensor, rows: int) -> dict[str, Tensor]:
    """What a metric of this name measures, ``[...]`` each, from sums ``[..., k]`` over so many rows."""
    return by_column(name, metric, metric.value(sums, rows))


def by_column(name: str, metric: Metric, value: Tensor) -> dict[str, Tensor]:
    """The value of a metric of this name, ``[...]`` each."""
    columns = columns_of(name, metric)
    return dict(zip(columns, value.unbind(dim=-1), strict=True)) if columns != [name] else {name: value}


class _RowMean:
    """A metric that is the mean of one number a row."""

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
    """The lowest accuracy among the sites that hold the rows; a site without any is left out.

    The sums are the hits and the rows of each site, one site after the other; a site by itself sends its own two, and
    those of several are put side by side. Without any row, the value is NaN.

    sites: how many there are in ``Seen.client``; rows of a number below 0 are nobody's.
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
        return uncountable(sums, rows, 1.0) or ("" if float(sums[1]) == rows else "its rows are others")


class Risk(_RowMean):
    """The mean cross entropy, in nats."""

    def sums(self, seen: Seen) -> Tensor:
        return cross_entropies(seen.logits, seen.y).double().sum(dim=-1, keepdim=True)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return "a loss is below 0" if _outside(sums, 0.0, math.inf, rows) else ""


class Entropy(_RowMean):
    """The mean entropy of a prediction, in nats; no labels are needed.

    As a criterion of choice: Morerio, Cavazza and Murino, Minimal-Entropy Correlation Alignment, ICLR 2018.
    """

    def sums(self, seen: Seen) -> Tensor:
        return seen.entropy.unsqueeze(-1)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return _no_entropy(sums, rows, classes)


class Information:
    """The entropy of the mean prediction less the mean entropy of a prediction, in nats; no labels are needed.

    It is high where predictions are sure of themselves and yet differ from row to row, at most log(classes).
    Bridle, Heading and MacKay, Unsupervised Classifiers, Mutual Information and Phantom Targets, NIPS 1991; as a
    criterion of choice: Musgrave, Belongie and Lim, Three New Validators and a Large-Scale Benchmark Ranking for
    Unsupervised Domain Adaptation, 2022.
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
    """The nuclear norm of the predictions P ``[rows, classes]`` over the most it can be; no labels are needed.

    ||P||_* is the sum of the square roots of the eigenvalues of P^T P, the sum over rows of p p^T ``[classes,
    classes]``, and at most sqrt(rows min(rows, classes)): where predictions are sure and evenly spread.
    Cui et al., Towards Discriminability and Diversity: Batch Nuclear-norm Maximization under Label Insufficient
    Situations, CVPR 2020; as a criterion of choice: Musgrave, Belongie and Lim, 2022.
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
    """The soft neighbourhood density of predictions, each client's rows among themselves; no labels are needed.

    With s_ij the cosine of the predictions of rows i and j, row i has neighbours with the probabilities
    exp(s_ij / 0.05) over j other than i; the measure is the mean entropy of these, in nats: high where predictions form
    dense clusters. Saito et al., Tune it the Right Way: Unsupervised Validation of Domain Adaptation via Soft
    Neighborhood Density, ICCV 2021.

    It is a function of pairs. Here a client pairs its own rows alone and sends the sum of their entropies and how many
    they are, so that the value is the mean over clients, each weighing as its rows do: it depends on who holds what,
    and equals the original where one client holds all. A client's only row has no neighbour, and counts for nothing.
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
    """The target risk as labelled source rows tell it, each weighing as the target is dense there.

    With l the cross entropy of a row and w its density ratio: mean(w l) + eta (mean(w) - 1), where mean(w) should be 1
    and eta = -cov(w l, w) / var(w) takes out what its error explains. You et al., Towards Accurate Model Selection in
    Deep Unsupervised Domain Adaptation, ICML 2019. There the ratio is of a classifier that is trained for it; here it
    is the run's own adversary, so that no further model is needed.

    A ratio that does not vary tells nothing, and the value is then mean(l).

    The sums are of v, l, v l, v^2 and v^2 l with v = w - 1, which rounds less than w where the domains are alike.
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
    """The share of rows of one domain that the adversary finds more likely in it than in the other.

    The domains are taken as equally frequent, whatever the adversary's batches held; a tie counts half.
    """

    def __init__(self, domain: int) -> None:
        self.sign = {SOURCE: -1.0, TARGET: 1.0}[domain]

    def sums(self, seen: Seen) -> Tensor:
        assert seen.log_ratio is not None
        return ((self.sign * seen.log_ratio.double()).sign() / 2 + 0.5).sum(dim=-1, keepdim=True)

    def flaw(self, sums: Tensor, rows: int, classes: int) -> str:
        return uncountable(sums, rows, 0.5)


def _outside(sums: Tensor, least: float, most: float, rows: int) -> bool:
    """Whether any of some sums over rows is not where it can be."""
    slack = _SLACK * rows
    return bool(((sums < least - slack) | (sums > most + slack)).any())


def _no_entropy(sums: Tensor, rows: int, outcomes: int) -> str:
    """Why a sum ``[1]`` is not of entropies over rows, of so many outcomes each; empty if it is."""
    flawed = _outside(sums, 0.0, rows * math.log(max(outcomes, 1)), rows)
    return "an entropy is below 0 or too large" if flawed else ""


def uncountable(sums: Tensor, rows: int, step: float) -> str:
    """Why sums are no counts of rows, in steps of this size; empty if they are."""
    counts = sums / step
    return (
        ""
        if bool((counts == counts.round()).all()) and not _outside(sums, 0.0, rows, 0)
        else "it is not a number of rows"
    )


def proxy_a_distance(domain_accuracy: Tensor) -> Tensor:
    """2 (1 - 2 error) of a domain classifier: 0 if the domains cannot be told apart, 2 where they always are.

    Ben-David et al., Analysis of Representations for Domain Adaptation, NIPS 2006. Below 0: it is wrong more often than
    not.
    """
    return 2.0 * (1.0 - 2.0 * (1.0 - domain_accuracy))
