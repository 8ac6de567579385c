"""What a server makes of its clients' mean update: the update itself, or the step of an optimiser that follows it.

Reddi et al. (2021), *Adaptive Federated Optimization*, on the signed field: D = mean of z_i - z_0 stands for minus the
gradient. An optimiser keeps vectors ``[..., size]`` of its own at the server; nothing more is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.errors import FedmmError, unknown
from fedmm.core.validation import fraction, positive


class ServerOptimizer(ABC):
    """Turns a mean update into a step."""

    KEPT: ClassVar[tuple[str, ...]] = ("moment", "second_moment")
    """The names that an optimiser's vectors may have in a server's state."""

    def init(self, z: Tensor) -> State:
        """Its vectors at the start."""
        return {}

    @abstractmethod
    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        """The step for an update D, and its vectors afterwards. kept: among other vectors, its own."""


@dataclass(frozen=True)
class NoOptimizer(ServerOptimizer):
    """The mean update itself."""

    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        return update, {}


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """FedAvgM: m <- b m + D, the step."""

    momentum: float = 0.9

    def __post_init__(self) -> None:
        fraction("momentum", self.momentum)

    def init(self, z: Tensor) -> State:
        return {"moment": torch.zeros_like(z)}

    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        moment = self.momentum * kept["moment"] + update
        return moment, {"moment": moment}


@dataclass(frozen=True)
class ServerAdam(ServerOptimizer):
    """FedAdam: m <- b_1 m + (1 - b_1) D;  v <- v - (1 - b_2) (v - D^2);  the step is m / (sqrt(v) + tau).

    momentum: b_1. second_momentum: b_2. epsilon: tau; v begins as tau^2, and neither moment is corrected for its start.
    """

    momentum: float = 0.9
    second_momentum: float = 0.99
    epsilon: float = 1e-3

    def __post_init__(self) -> None:
        fraction("momentum", self.momentum)
        fraction("second_momentum", self.second_momentum)
        positive("epsilon", self.epsilon)

    def init(self, z: Tensor) -> State:
        return {"moment": torch.zeros_like(z), "second_moment": torch.full_like(z, self.epsilon**2)}

    def second(self, second: Tensor, square: Tensor) -> Tensor:
        """What the second moment changes by, over 1 - b_2."""
        return second - square

    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        square = update.square()
        moment = torch.lerp(update, kept["moment"], self.momentum)
        second = kept["second_moment"] - (1 - self.second_momentum) * self.second(kept["second_moment"], square)
        return moment / (second.sqrt() + self.epsilon), {"moment": moment, "second_moment": second}


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi: FedAdam with v <- v - (1 - b_2) sign(v - D^2) D^2, which shrinks slowly where updates do."""

    def second(self, second: Tensor, square: Tensor) -> Tensor:
        return (second - square).sign() * square


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "none": NoOptimizer,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
    "yogi": ServerYogi,
}


def as_server_optimizer(value: object) -> ServerOptimizer:
    """An optimiser that is given as such, or by its name in ``SERVER_OPTIMIZERS``."""
    if isinstance(value, str):
        if value not in SERVER_OPTIMIZERS:
            raise unknown("server_optimizer", value, SERVER_OPTIMIZERS)
        return SERVER_OPTIMIZERS[value]()
    if not isinstance(value, ServerOptimizer):
        got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise FedmmError(f"server_optimizer must be one such as fedmm.ServerAdam(), or its name, not {got}")
    return value
