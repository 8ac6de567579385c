"""Domain-adversarial neural networks (Ganin et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmm.core.objective import AdversaryShape, Objective, Outputs


def domain_cross_entropy(outputs: Outputs, domain: Tensor) -> Tensor:
    """Cross entropy of a two-way domain classifier for each row."""
    log_p = outputs.adversary.log_softmax(dim=-1)
    return -log_p.gather(-1, domain.unsqueeze(-1)).squeeze(-1)


@dataclass(frozen=True)
class DANN(Objective):
    """The adversary tells the domain of a row from its features: h_psi(zeta^1_omega(x))."""

    name: ClassVar[str] = "dann"
    summary: ClassVar[str] = "the adversary tells the domain from the features"

    def adversary_shape(self, features: int, classes: int) -> AdversaryShape:
        return AdversaryShape(features, 2)

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return domain_cross_entropy(outputs, domain)
