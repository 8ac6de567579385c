"""Adversarial objectives: f = task loss - nu * domain loss (+ target loss), on a batch whose rows know their domain.

A batch has a fixed number of rows. Each row is source (labelled) or target, and a client may have only one kind, so
nothing here assumes two halves. All functions act on the last axes and allow any leading ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmm.core.errors import require
from fedmm.core.layout import PerGroup
from fedmm.core.projections import ConvexSet
from fedmm.core.schedules import Constant, Schedule, as_schedule
from fedmm.core.target_losses import NoTargetLoss, TargetLoss, as_target_loss
from fedmm.core.validation import flag, not_negative, per_group, within

SOURCE, TARGET = 0, 1
"""The domains of rows, which are also their labels for a domain classifier."""


class RowWeights(NamedTuple):
    """The domains and weights of a batch's rows, ``[..., rows]``; see :func:`row_weights`.

    classes: the share of each class among all clients' labelled rows, ``[..., classes]``, if the objective needs it.
    """

    domain: Tensor
    task: Tensor
    all: Tensor
    target: Tensor
    has_source: bool
    classes: Tensor | None = None


def row_weights(domain: Tensor, weight: Tensor, classes: Tensor | None = None) -> RowWeights:
    """Return weights that sum to 1 over the source rows (``task``, all 0 if none) and over all rows (``all``).

    Those of the target rows (``target``) stay as given, with 0 for source rows.

    domain: int64 ``[..., rows]``, SOURCE or TARGET. weight: ``[..., rows]``, 0 for padding.
    """
    task = _share(torch.where(domain == SOURCE, weight, 0.0))
    target = torch.where(domain == TARGET, weight, 0.0)
    return RowWeights(domain, task, _share(weight), target, bool(task.any()), classes)


def _share(weight: Tensor) -> Tensor:
    total = weight.sum(dim=-1, keepdim=True)
    return weight / torch.where(total > 0, total, 1.0)


def class_shares(labels: Tensor, weights: RowWeights, classes: int) -> Tensor:
    """Return the share of each class, ``[..., classes]``: among all clients' labelled rows, else among the batch's."""
    if weights.classes is not None:
        return weights.classes
    of_class = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    return (of_class * weights.task.unsqueeze(-1)).sum(dim=-2)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the cross entropy of each row from logits ``[..., rows, classes]`` and int64 labels ``[..., rows]``."""
    flat = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def sam_step(gradient: Tensor, radius: float | Tensor) -> Tensor:
    """Return the step of length ``radius`` along a gradient ``[..., size]``; 0 for a zero gradient."""
    norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient * (radius / torch.where(norm > 0, norm, 1.0))


class Outputs(NamedTuple):
    """A network's outputs for a batch.

    features: ``[..., rows, features]``; logits: ``[..., rows, classes]``; adversary: ``[..., rows, outputs]``.
    """

    features: Tensor
    logits: Tensor
    adversary: Tensor


class AdversaryShape(NamedTuple):
    """The adversary that an objective needs. twin: whether it is built like the task head.

    start: the initial values if the adversary is not a network but a few numbers shared by all rows. Values beyond the
        first ``outputs`` belong to omega and come last.
    held: whether the outputs are followed by a copy of them without gradient to the adversary's input.
    """

    inputs: int
    outputs: int
    twin: bool = False
    start: tuple[float, ...] = ()
    held: bool = False

    @property
    def levels(self) -> int:
        """How many of the numbers belong to omega."""
        return len(self.start[self.outputs :])

    @property
    def width(self) -> int:
        """Number of values per row."""
        return self.outputs * (1 + self.held) + self.levels


@dataclass(frozen=True)
class Objective(ABC):
    """Base class of all objectives.

    tells_domains: whether the adversary's two outputs are the logits of a row's domain.
    adapts: whether target rows are trained on; if not, clients without source rows contribute nothing.
    class_count: the number of classes it supports; None for any number.
    nu: the trade-off between task loss and domain loss; nu_schedule: a factor on it over the rounds: a schedule such as
        ``DannWarmup()``, or its name.
    gradient_scale: a factor on the loss gradient only (not on penalties, duals or control variates), one number or one
        per parameter group: ``features``, ``task_head``, ``adversary`` and their parts.
    target_loss: a loss on target rows only, such as ``MinimumClassConfusion()``, or its name; target_weight: its
        factor. f = task loss - nu domain loss + target_weight target loss.
    domain_smoothing: e, for a domain classifier that learns the targets 1 - e and e instead of 1 and 0, which is
        environment label smoothing (Zhang et al., 2023); at least 0 and below 0.5.
    restrained: whether a row that the adversary assigns to the other domain pushes the features less, by the
        probability of its own domain over that domain's share; the adversary's own gradient is unchanged. source_share:
        the share of source rows among those that the adversary sees at all clients, with which restraint compares; 0 to
        derive it from the clients' rows, or to use a half if they are not known.
    sam_radius: rho of sharpness-aware minimisation of the task loss only, which is smooth domain adversarial training
        (Rangwani et al., 2022); 0 for the plain gradient.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    tells_domains: ClassVar[bool] = False
    adapts: ClassVar[bool] = True
    class_count: ClassVar[int | None] = None

    nu: float = 1.0
    nu_schedule: Schedule | str = field(default=Constant(), kw_only=True)
    gradient_scale: PerGroup = field(default=1.0, kw_only=True)
    target_loss: TargetLoss | str = field(default=NoTargetLoss(), kw_only=True)
    target_weight: float = field(default=1.0, kw_only=True)
    domain_smoothing: float = field(default=0.0, kw_only=True)
    restrained: bool = field(default=False, kw_only=True)
    source_share: float = field(default=0.0, kw_only=True)
    sam_radius: float = field(default=0.0, kw_only=True)

    def __post_init__(self) -> None:
        not_negative("nu", self.nu)
        object.__setattr__(self, "nu_schedule", as_schedule("nu_schedule", self.nu_schedule))
        per_group("gradient_scale", self.gradient_scale, zero=True)
        object.__setattr__(self, "target_loss", as_target_loss("target_loss", self.target_loss))
        require(
            isinstance(self.target_loss, NoTargetLoss) or self.adapts,
            f"target_loss must be 'none' for {self.name}, which trains on no target rows; use another objective, with "
            "nu = 0 for the target loss alone",
        )
        not_negative("target_weight", self.target_weight)
        not_negative("domain_smoothing", self.domain_smoothing)
        require(self.domain_smoothing < 0.5, f"domain_smoothing must be below 0.5, not {self.domain_smoothing!r}")
        require(
            self.tells_domains or not self.domain_smoothing,
            f"domain_smoothing must be 0 for {self.name}, whose adversary does not predict domains as those of dann "
            "and cdan do",
        )
        flag("restrained", self.restrained)
        require(
            self.tells_domains or not self.restrained,
            f"restrained must be false for {self.name}, whose adversary does not predict domains as those of dann "
            "and cdan do",
        )
        within("source_share", self.source_share, 0.0, 1.0)
        require(self.source_share < 1.0, "source_share must be below 1: the adversary sees target rows too")
        require(
            self.restrained or not self.source_share,
            "source_share must be 0 without restrained = true, which is the only option that uses it",
        )
        not_negative("sam_radius", self.sam_radius)

    def nu_in(self, t: int, rounds: int) -> float:
        """Return the trade-off nu in round t (from 0) of a run of ``rounds`` rounds."""
        return self.nu * as_schedule("nu_schedule", self.nu_schedule)(t, rounds)

    def restrain(self) -> Objective:
        """Return the objective with restrained features if its adversary predicts domains, else unchanged."""
        return replace(self, restrained=True) if self.tells_domains else self

    def structure(self) -> Objective:
        """Return what stacked runs must share: all but nu, target weight, gradient scale and the size of a radius."""
        sharpened = float(self.sam_radius > 0.0)
        return replace(
            self, nu=0.0, nu_schedule=Constant(), gradient_scale=1.0, target_weight=1.0, sam_radius=sharpened
        )

    @classmethod
    def used_options(cls) -> set[str]:
        """Return the names of the options that this objective uses."""
        of_classifiers = {"domain_smoothing", "restrained", "source_share"}
        return {option.name for option in fields(cls)} - (set() if cls.tells_domains else of_classifiers)

    @property
    def needs_class_shares(self) -> bool:
        """Whether the share of each class among all clients' labelled rows must be measured before training."""
        return False

    @property
    def constraints(self) -> Mapping[str, ConvexSet]:
        """The constraint set of each parameter group at the server; local steps may leave it."""
        return {}

    def require_classes(self, classes: int, shares: Sequence[float] | None = None) -> None:
        """Refuse an unsupported number of classes, or class shares that contain a 0 if the losses do not allow it."""
        require(
            self.class_count in (None, classes),
            f"{self.name} needs {self.class_count} classes, not {classes}",
        )

    @abstractmethod
    def adversary_shape(self, features: int, classes: int) -> AdversaryShape | None:
        """Return the adversary's shape, or None for an objective without one."""

    def random_maps(self, features: int, classes: int, seed: int) -> dict[str, Tensor]:
        """Return fixed random tensors for the adversary's input, the same at every client and saved with the model."""
        return {}

    def adversary_input(self, features: Tensor, logits: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
        """Return what the adversary sees of each row."""
        return features

    @abstractmethod
    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """Return the domain loss of each row, ``[..., rows]``."""

    def emphasis(self, logits: Tensor) -> Tensor | None:
        """Return relative weights of the rows in the domain loss, ``[..., rows]``; None for equal weights."""
        return None

    def losses(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> tuple[Tensor, Tensor]:
        """Return the task loss (mean over source rows, 0 if none) and the domain loss (mean over all rows), ``[...]``.

        labels: int64 ``[..., rows]``; those of target rows are ignored, but must be valid classes.
        """
        task = self.task_loss(outputs, labels, weights)
        share = weights.all
        emphasis = self.emphasis(outputs.logits)
        if emphasis is not None:
            share = _share(share * emphasis)
        domain = (self._domain_losses(outputs, weights.domain) * share).sum(dim=-1)
        return task, domain

    def task_loss(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> Tensor:
        """Return the first of the :meth:`losses`."""
        if weights.has_source:
            return (cross_entropies(outputs.logits, labels) * weights.task).sum(dim=-1)
        return weights.task.sum(dim=-1)

    def _domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """Return the domain loss of each row; restraint scales only its gradient with respect to the features."""
        if not self.restrained:
            return self._smoothed(outputs, domain)
        moving, held = (outputs._replace(adversary=part) for part in outputs.adversary.chunk(2, dim=-1))
        p = torch.exp(-self.domain_losses(held, domain).detach())
        share = self.source_share + self.domain_smoothing * (1.0 - 2.0 * self.source_share)
        push = (p / (share + (1.0 - 2.0 * share) * domain.to(p.dtype))).clamp(max=1.0)
        return push * self._smoothed(moving, domain) + (1.0 - push) * self._smoothed(held, domain)

    def _smoothed(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """Return the smoothed domain loss of each row; cross entropy is linear in its target, and so is smoothing."""
        e = self.domain_smoothing
        if not e:
            return self.domain_losses(outputs, domain)
        return (1.0 - e) * self.domain_losses(outputs, domain) + e * self.domain_losses(outputs, 1 - domain)

    def target_losses(self, outputs: Outputs, weights: RowWeights) -> Tensor | None:
        """Return the loss on the target rows (0 if none), ``[...]``, not yet weighted; None for no such loss."""
        loss = as_target_loss("target_loss", self.target_loss)
        return None if isinstance(loss, NoTargetLoss) else loss(outputs.logits, weights.target)
