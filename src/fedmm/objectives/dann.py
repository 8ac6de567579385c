"""Domain-adversarial neural networks (Ganin et al., 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmm.core.objective import AdversaryShape, Objective, Outputs, cross_entropies


@dataclass(frozen=True)
class DANN(Objective):
    """The adversary predicts the domain of a row from its features: h_psi(zeta^1_omega(x))."""

    name: ClassVar[str] = "dann"
    summary: ClassVar[str] = "the adversary predicts the domain from the features"
    tells_domains: ClassVar[bool] = True

    def adversary_shape(self, features: int, classes: int) -> AdversaryShape:
        return AdversaryShape(features, 2, held=self.restrained)

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return cross_entropies(outputs.adversary, domain)
