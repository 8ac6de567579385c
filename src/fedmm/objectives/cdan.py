"""Conditional domain-adversarial networks (Long et al., 2018)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.objective import AdversaryShape, Objective, Outputs, cross_entropies
from fedmm.core.seeding import key
from fedmm.core.validation import at_least, flag

_WIDEST = 1_000_000


@dataclass(frozen=True)
class CDAN(Objective):
    """The adversary predicts the domain of a row from the outer product of softmax(logits) and features.

    detach_softmax: no gradient through the softmax, as in CDAN's own code (the paper's code does not detach).
    entropy_weighting: "+E", a row counts 1 + exp(-H(p)) with H the entropy of its prediction; these weights are not
        differentiated, and are scaled to mean 1 over the batch.
    random_dim: 0 for the full outer product (classes x features, class-major), else the width of the random multilinear
        map (features R_f) * (softmax R_g) / sqrt(random_dim), for wide features.
    """

    name: ClassVar[str] = "cdan"
    summary: ClassVar[str] = "the adversary predicts the domain from the outer product of prediction and features"
    tells_domains: ClassVar[bool] = True

    detach_softmax: bool = False
    entropy_weighting: bool = False
    random_dim: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        flag("detach_softmax", self.detach_softmax)
        flag("entropy_weighting", self.entropy_weighting)
        at_least("random_dim", self.random_dim, 0)
        require(self.random_dim <= _WIDEST, f"random_dim must be at most {_WIDEST}, not {self.random_dim}")

    def adversary_shape(self, features: int, classes: int) -> AdversaryShape:
        return AdversaryShape(self.random_dim or features * classes, 2, held=self.restrained)

    def random_maps(self, features: int, classes: int, seed: int) -> dict[str, Tensor]:
        if not self.random_dim:
            return {}
        generator = torch.Generator().manual_seed(key(seed, "cdan maps"))
        return {
            "map_features": torch.randn(features, self.random_dim, generator=generator),
            "map_softmax": torch.randn(classes, self.random_dim, generator=generator),
        }

    def adversary_input(self, features: Tensor, logits: Tensor, maps: Mapping[str, Tensor]) -> Tensor:
        p = logits.softmax(dim=-1)
        if self.detach_softmax:
            p = p.detach()
        if self.random_dim:
            return (features @ maps["map_features"]) * (p @ maps["map_softmax"]) / math.sqrt(self.random_dim)
        return (p.unsqueeze(-1) * features.unsqueeze(-2)).flatten(-2)

    def domain_losses(self, outputs: Outputs, domain: Tensor) -> Tensor:
        return cross_entropies(outputs.adversary, domain)

    def emphasis(self, logits: Tensor) -> Tensor | None:
        if not self.entropy_weighting:
            return None
        log_p = logits.detach().log_softmax(dim=-1)
        return 1.0 + (log_p.exp() * log_p).sum(dim=-1).exp()
