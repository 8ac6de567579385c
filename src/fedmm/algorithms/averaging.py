"""What averaging algorithms share: how the server moves to its clients' mean."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedmm.algorithms.server_optimizers import NoOptimizer, ServerOptimizer, as_server_optimizer
from fedmm.core.algorithm import Aggregated, Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.core.validation import flag, positive


@dataclass(frozen=True)
class Averaging(Algorithm):
    """Base class of algorithms whose server follows its clients' mean; subclasses add ``local_steps``, ``server_lr``.

    ================  ======  ====================
    argument          symbol  meaning
    ================  ======  ====================
    server_lr         eta_g   how far the server goes along the optimiser's step; 1 without one is the mean
    server_optimizer          what turns the mean update into a step: ``none``, ``momentum``, ``adam``, ``yogi``
    normalize_steps           updates count by their mean step: (M / M_i) (z_i - z_0), M the mean of all M_i
    ================  ======  ====================

    Clients that take more steps than others pull the mean towards their own saddles; normalised updates (Fed-Norm,
    Sharma et al., 2023) prevent this.
    """

    server_optimizer: ServerOptimizer | str = field(default=NoOptimizer(), kw_only=True)
    normalize_steps: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("server_lr", self._server_lr)
        object.__setattr__(self, "server_optimizer", as_server_optimizer(self.server_optimizer))
        flag("normalize_steps", self.normalize_steps)

    @property
    def _server_lr(self) -> float:
        rate: float = getattr(self, "server_lr", 1.0)
        return rate

    def structure(self) -> tuple[object, ...]:
        return (self.server_optimizer, self.normalize_steps)

    def coefficients(self, layout: Layout, t: int, rounds: int) -> Coefficients:
        return Coefficients(super().coefficients(layout, t, rounds), server_lr=layout.scalar(self._server_lr))

    def init_server(self, z: Tensor) -> State:
        return {"z": z, **as_server_optimizer(self.server_optimizer).init(z)}

    def broadcast(self, server: State) -> State:
        return {name: vector for name, vector in server.items() if name not in ServerOptimizer.KEPT}

    def client_weights(self, steps: Tensor) -> Tensor | None:
        return steps.mean(dim=-1, keepdim=True) / steps if self.normalize_steps else None

    def server_update(self, server: State, uploads: Aggregated, c: Coefficients) -> State:
        optimizer = as_server_optimizer(self.server_optimizer)
        if isinstance(optimizer, NoOptimizer):
            return {"z": torch.lerp(server["z"], uploads.mean["z"], c.server_lr)}
        step, kept = optimizer.step(server, uploads.mean["z"] - server["z"])
        return {"z": server["z"] + c.server_lr * step, **kept}
