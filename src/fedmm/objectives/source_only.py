"""Training without adaptation: the lower bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedmm.core.objective import Objective, Outputs, RowWeights, class_shares
from fedmm.core.validation import one_of


@dataclass(frozen=True)
class SourceOnly(Objective):
    """The task loss alone: no adversary, and clients without source rows contribute nothing.

    A gradient scale of the adversary is ignored, so that a file for another objective can be run with this one.

    class_weights: ``none``, or ``balanced``: a row counts 1 / (classes p_y) with p_y the share of its class among all
        clients' labelled rows, so every class counts the same.
    """

    name: ClassVar[str] = "source_only"
    summary: ClassVar[str] = "the task loss alone, without adaptation: the lower bound"
    adapts: ClassVar[bool] = False

    class_weights: Literal["none", "balanced"] = "none"

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("class_weights", self.class_weights, ("none", "balanced"))
        if isinstance(self.gradient_scale, Mapping):
            without_psi = {g: value for g, value in self.gradient_scale.items() if g.split(".")[0] != "adversary"}
            object.__setattr__(self, "gradient_scale", without_psi or 1.0)

    @property
    def needs_class_shares(self) -> bool:
        return self.class_weights == "balanced"

    @classmethod
    def used_options(cls) -> set[str]:
        return super().used_options() - {"nu", "nu_schedule", "target_loss", "target_weight"}

    def adversary_shape(self, features: int, classes: int) -> None:
        return None

    def task_loss(self, outputs: Outputs, labels: Tensor, weights: RowWeights) -> Tensor:
        if self.class_weights == "balanced":
            shares = class_shares(labels, weights, outputs.logits.shape[-1])
            balance = torch.where(shares > 0.0, 1.0 / (shares.shape[-1] * shares), 0.0)
            weights = weights._replace(task=weights.task * balance.gather(-1, labels))
        return super().task_loss(outputs, labels, weights)

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return outputs.logits.new_zeros(domain.shape)
