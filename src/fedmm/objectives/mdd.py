"""Margin disparity discrepancy (Zhang et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.objective import SOURCE, AdversaryShape, Objective, Outputs, cross_entropies
from fedmm.core.validation import positive


@dataclass(frozen=True)
class MDD(Objective):
    """The adversary is a second classifier f' that agrees with the first on the source and disagrees on the target.

    With p' the probability that f' assigns to the first classifier's prediction, a source row costs -gamma log p' and a
    target row -log(1 + epsilon - p').

    gamma: the margin factor on the source term (1 in the paper's code, 4 on Office-31 by MDD's authors).
    epsilon: keeps the target term finite if p' reaches 1.
    """

    name: ClassVar[str] = "mdd"
    summary: ClassVar[str] = "the adversary is a second classifier that disagrees only on the target"

    gamma: float = 1.0
    epsilon: float = 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("gamma", self.gamma)
        positive("epsilon", self.epsilon)

    def adversary_shape(self, features: int, classes: int) -> AdversaryShape:
        return AdversaryShape(features, classes, twin=True)

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        log_p = -cross_entropies(outputs.adversary, outputs.logits.argmax(dim=-1))
        source = -self.gamma * log_p
        target = -torch.log(self.epsilon - torch.expm1(log_p))
        return torch.where(domain == SOURCE, source, target)
