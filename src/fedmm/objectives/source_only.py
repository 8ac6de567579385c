"""No adaptation: the bound from below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedmm.core.objective import Objective, Outputs


@dataclass(frozen=True)
class SourceOnly(Objective):
    """The task loss alone: no adversary, and clients without source rows have nothing to add."""

    name: ClassVar[str] = "source_only"
    summary: ClassVar[str] = "the task loss alone, without adaptation: the bound from below"
    adapts: ClassVar[bool] = False

    @classmethod
    def used_options(cls) -> set[str]:
        return super().used_options() - {"nu", "nu_schedule", "target_loss", "target_weight"}

    def adversary_shape(self, features: int, classes: int) -> None:
        return None

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return outputs.logits.new_zeros(domain.shape)
