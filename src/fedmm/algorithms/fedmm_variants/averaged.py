"""FedMM whose server keeps an average of its points for prediction."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.algorithms.fedmm import FedMM
from fedmm.core.algorithm import Aggregated, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.validation import within


@dataclass(frozen=True)
class AveragedFedMM(FedMM):
    """Base class of variants that keep an ``average``: z_bar <- z_bar + max(kappa, 10 / (t + 10)) (z_0 - z_bar).

    average_rate: kappa. The average is over about the last tenth of the rounds so far, and at most the last 1 / kappa;
    it starts at the first point, and is z_0 itself with a rate of 1. It is never sent.
    """

    average_rate: float = field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        within("average_rate", self.average_rate, 0.0, 1.0)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        c = super().coefficients(layout, t, rounds)
        return Coefficients(c, average_rate=layout.scalar(max(self.average_rate, 10 / (t + 10))))

    def init_server(self, z: Tensor) -> State:
        return {**super().init_server(z), "average": z.clone()}

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        return self.averaged(server, super().server_update(server, uploads, c), c)

    def averaged(self, server: State, after: State, c: Coefficients) -> State:
        """Return the server's new state ``after`` together with its average."""
        return {**after, "average": torch.lerp(server["average"], after["z"], c.average_rate)}
