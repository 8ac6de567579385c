"""What an adversarial objective is: f = task loss - nu * domain loss, on a batch whose rows know their domain.

A batch has a fixed number of rows. Each row is source (labelled) or target, and a client may have either kind alone, so
nothing here assumes two halves. All functions act on the last axes and allow any leading ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from fedmm.core.layout import PerGroup
from fedmm.core.schedules import Constant, Schedule, as_schedule
from fedmm.core.validation import not_negative, per_group

SOURCE, TARGET = 0, 1
"""The domain of a row, which is also its label for a domain classifier."""


class RowWeights(NamedTuple):
    """What each row of a batch counts for, ``[..., rows]``; see :func:`row_weights`."""

    domain: Tensor
    task: Tensor
    all: Tensor
    has_source: bool


def row_weights(domain: Tensor, weight: Tensor) -> RowWeights:
    """Weights that sum to 1 over the source rows (``task``, all 0 where there are none) and over all rows (``all``).

    domain: int64 ``[..., rows]``, SOURCE or TARGET. weight: ``[..., rows]``, 0 for a row that only fills the batch.
    """
    task = _share(torch.where(domain == SOURCE, weight, 0.0))
    return RowWeights(domain, task, _share(weight), bool(task.any()))


def _share(weight: Tensor) -> Tensor:
    total = weight.sum(dim=-1, keepdim=True)
    return weight / torch.where(total > 0, total, 1.0)


def cross_entropies(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross entropy of each row: logits ``[..., rows, classes]`` and int64 labels ``[..., rows]``."""
    flat = functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


class Outputs(NamedTuple):
    """What a network computes for a batch.

    features: ``[..., rows, features]``; logits: ``[..., rows, classes]``; adversary: ``[..., rows, outputs]``.
    """

    features: Tensor
    logits: Tensor
    adversary: Tensor


class AdversaryShape(NamedTuple):
    """The adversary an objective needs. twin: built like the task head, whatever that is."""

    inputs: int
    outputs: int
    twin: bool = False


@dataclass(frozen=True)
class Objective(ABC):
    """The base of all objectives.

    tells_domains: whether the adversary's two outputs are the logits of a row's domain.
    nu: the trade-off between task loss and domain loss; nu_schedule: a factor on it over the rounds, as
        a schedule such as ``DannWarmup()`` or by its name.
    gradient_scale: a factor on the loss gradient alone (not on penalties, duals or control variates), one number or one
        per group of parameters: ``features``, ``task_head``, ``adversary`` and their parts.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    tells_domains: ClassVar[bool] = False

    nu: float = 1.0
    nu_schedule: Schedule | str = field(default=Constant(), kw_only=True)
    gradient_scale: PerGroup = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        not_negative("nu", self.nu)
        object.__setattr__(self, "nu_schedule", as_schedule("nu_schedule", self.nu_schedule))
        per_group("gradient_scale", self.gradient_scale, zero=True)

    def nu_in(self, t: int, rounds: int) -> float:
        """The trade-off nu in round t (from 0) of a run of ``rounds`` rounds."""
        return self.nu * as_schedule("nu_schedule", self.nu_schedule)(t, rounds)

    def structure(self) -> Objective:
        """What must be the same for runs in one program: all but the trade-off and the gradient scale."""
        return replace(self, nu=0.0, nu_schedule=Constant(), gradient_scale=1.0)

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
        if weights.has_source:
            task = (cross_entropies(outputs.logits, labels) * weights.task).sum(dim=-1)
        else:
            task = weights.task.sum(dim=-1)
        share = weights.all
        emphasis = self.emphasis(outputs.logits)
        if emphasis is not None:
            share = _share(share * emphasis)
        domain = (self.domain_losses(outputs, weights.domain) * share).sum(dim=-1)
        return task, domain
