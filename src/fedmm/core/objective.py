"""What an adversarial objective is: f = task loss - nu * domain loss, on a batch whose rows know their domain.

A batch has a fixed number of rows. Each row is source (labelled) or target, and a client may have either kind alone, so
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
"""The domain of a row, which is also its label for a domain classifier."""


class RowWeights(NamedTuple):
    """What each row of a batch counts for, ``[..., rows]``; see :func:`row_weights`.

    classes: the share of each class among all clients' labelled rows, ``[..., classes]``, where the objective needs it.
    """

    domain: Tensor
    task: Tensor
    all: Tensor
    target: Tensor
    has_source: bool
    classes: Tensor | None = None


def row_weights(domain: Tensor, weight: Tensor, classes: Tensor | None = None) -> RowWeights:
    """Weights that sum to 1 over the source rows (``task``, all 0 if there are none) and over all rows (``all``).

    Those of the target rows (``target``) are as they were given, and 0 for source rows.

    domain: int64 ``[..., rows]``, SOURCE or TARGET. weight: ``[..., rows]``, 0 for a row that only fills the batch.
    """
    task = _share(torch.where(domain == SOURCE, weight, 0.0))
    target = torch.where(domain == TARGET, weight, 0.0)
    return RowWeights(domain, task, _share(weight), target, bool(task.any()), classes)


def _share(weight: Tensor) -> Tensor:
    total = weight.sum(dim=-1, keepdim=True)
    return weight / torch.where(total > 0, total, 1.0)


def class_shares(labels: Tensor, weights: RowWeights, classes: int) -> Tensor:
    """The share of each class, ``[..., classes]``: among all clients' labelled rows, else among those at hand."""
    if weights.classes is not None:
        return weights.classes
    of_class = labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)
    return (of_class * weights.task.unsqueeze(-1)).sum(dim=-2)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each row: logits ``[..., rows, classes]`` and int64 labels ``[..., rows]``."""
    flat = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def sam_step(gradient: Tensor, radius: float | Tensor) -> Tensor:
    """The step of that length along a gradient ``[..., size]``, on which its loss rises most; 0 for no gradient."""
    norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
    return gradient * (radius / torch.where(norm > 0, norm, 1.0))


class Outputs(NamedTuple):
    """What a network computes for a batch.

    features: ``[..., rows, features]``; logits: ``[..., rows, classes]``; adversary: ``[..., rows, outputs]``.
    """

    features: Tensor
    logits: Tensor
    adversary: Tensor


class AdversaryShape(NamedTuple):
    """The adversary an objective needs. twin: it is built like the task head.

    start: of an adversary that is numbers alone, the same for all rows, and no network: where they begin. More of them
        than outputs are numbers of omega, and come last.
    held: its outputs are followed by the same again with no gradient to what it sees.
    """

    inputs: int
    outputs: int
    twin: bool = False
    start: tuple[float, ...] = ()
    held: bool = False

    @property
    def levels(self) -> int:
        """How many numbers of omega there are."""
        return len(self.start[self.outputs :])

    @property
    def width(self) -> int:
        """Numbers per row."""
        return self.outputs * (1 + self.held) + self.levels


@dataclass(frozen=True)
class Objective(ABC):
    """The base of all objectives.

    tells_domains: whether the adversary's two outputs are the logits of a row's domain.
    adapts: whether target rows are trained on; else clients without source rows have nothing to add.
    class_count: how many classes it is for; None for any number.
    nu: the trade-off between task loss and domain loss; nu_schedule: a factor on it over the rounds, as
        a schedule such as ``DannWarmup()`` or by its name.
    gradient_scale: a factor on the loss gradient alone (not on penalties, duals or control variates), one number or one
        per group of parameters: ``features``, ``task_head``, ``adversary`` and their parts.
    target_loss: a loss on target rows alone, such as ``MinimumClassConfusion()`` or by its name; target_weight: what it
        is multiplied with. f = task loss - nu domain loss + target_weight target loss.
    domain_smoothing: e, for a domain classifier that learns the targets 1 - e and e instead of 1 and 0, which is
        environment label smoothing (Zhang et al., 2023); 0 or more and below 0.5.
    restrained: a row that the adversary takes for the other domain pushes the features less, by the probability of its
        own domain over that domain's share; the adversary's own gradient stays whole. source_share: of the rows that
        the adversary sees at all clients, with which restraint compares; 0 for what they hold, or a half where that is
        not known.
    sam_radius: rho of sharpness-aware minimisation of the task loss alone, which is smooth domain adversarial training
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
        """The trade-off nu in round t (from 0) of a run of ``rounds`` rounds."""
        return self.nu * as_schedule("nu_schedule", self.nu_schedule)(t, rounds)

    def restrain(self) -> Objective:
        """The objective with restrained features if its adversary predicts domains, else unchanged."""
        return replace(self, restrained=True) if self.tells_domains else self

    def structure(self) -> Objective:
        """What must be the same for runs in one program: all but nu, target weight, gradient scale and the radius."""
        sharpened = float(self.sam_radius > 0.0)
        return replace(
            self, nu=0.0, nu_schedule=Constant(), gradient_scale=1.0, target_weight=1.0, sam_radius=sharpened
        )

    @classmethod
    def used_options(cls) -> set[str]:
        """The names of the options that this objective has a use for."""
        of_classifiers = {"domain_smoothing", "restrained", "source_share"}
        return {option.name for option in fields(cls)} - (set() if cls.tells_domains else of_classifiers)

    @property
    def needs_class_shares(self) -> bool:
        """Whether the share of each class among all clients' labelled rows has to be measured before training."""
        return False

    @property
    def constraints(self) -> Mapping[str, ConvexSet]:
        """By group of parameters, the set that it is held in at the server; local steps may leave it."""
        return {}

    def require_classes(self, classes: int, shares: Sequence[float] | None = None) -> None:
        """Refuse a number of classes that the losses are not made for, or shares of which one is 0 and may not be."""
        require(
            self.class_count in (None, classes),
            f"{self.name} needs {self.class_count} classes, not {classes}",
        )

    @abstractmethod
    def adversary_shape(self, features: int, classes: int) -> AdversaryShape | None:
        """The adversary's input and output widths, or None for an objective without one."""

    def random_maps(self, features: int, classes: int, seed: int) -> dict[str, Tensor]:
        """Fixed random tensors that the adversary's input needs: the same at every client, saved with the model."""
        return {}

    def adversary_input(self, features: Tensor, logits: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
        """What the adversary sees of a row."""
        return features

    @abstractmethod
    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """The domain loss of each row, ``[..., rows]``."""

    def emphasis(self, logits: Tensor) -> Tensor | None:
        """How much more than others a row counts in the domain loss, ``[..., rows]``; None: all alike."""
        return None

    def losses(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> tuple[Tensor, Tensor]:
        """The task loss (mean over the source rows, 0 without any) and the domain loss (mean over all rows), ``[...]``.

        labels: int64 ``[..., rows]``; those of target rows are not looked at, but must be valid classes.
        """
        task = self.task_loss(outputs, labels, weights)
        share = weights.all
        emphasis = self.emphasis(outputs.logits)
        if emphasis is not None:
            share = _share(share * emphasis)
        domain = (self._domain_losses(outputs, weights.domain) * share).sum(dim=-1)
        return task, domain

    def task_loss(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> Tensor:
        """The first of the :meth:`losses`."""
        if weights.has_source:
            return (cross_entropies(outputs.logits, labels) * weights.task).sum(dim=-1)
        return weights.task.sum(dim=-1)

    def _domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """The domain loss of each row, of which restraint takes from the features' gradient alone."""
        if not self.restrained:
            return self._smoothed(outputs, domain)
        moving, held = (outputs._replace(adversary=part) for part in outputs.adversary.chunk(2, dim=-1))
        p = torch.exp(-self.domain_losses(held, domain).detach())
        share = self.source_share + self.domain_smoothing * (1.0 - 2.0 * self.source_share)
        push = (p / (share + (1.0 - 2.0 * share) * domain.to(p.dtype))).clamp(max=1.0)
        return push * self._smoothed(moving, domain) + (1.0 - push) * self._smoothed(held, domain)

    def _smoothed(self, outputs: Outputs, domain: Tensor) -> Tensor:
        """The domain loss of each row; a cross entropy is linear in its target, and so is its smoothing."""
        e = self.domain_smoothing
        if not e:
            return self.domain_losses(outputs, domain)
        return (1.0 - e) * self.domain_losses(outputs, domain) + e * self.domain_losses(outputs, 1 - domain)

    def target_losses(self, outputs: Outputs, weights: RowWeights) -> Tensor | None:
        """The loss on the target rows (0 without any), ``[...]``, not yet weighted; None for no such loss."""
        loss = as_target_loss("target_loss", self.target_loss)
        return None if isinstance(loss, NoTargetLoss) else loss(outputs.logits, weights.target)
