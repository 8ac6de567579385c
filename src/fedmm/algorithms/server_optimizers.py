"""Server optimisers, which turn the clients' mean update into the server's step.

Reddi et al. (2021), *Adaptive Federated Optimization*, on the signed field: D = mean of z_i - z_0 takes the place of
the negative gradient. An optimiser keeps its own vectors ``[..., size]`` at the server; nothing more is sent.
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
    """The names of an optimiser's vectors in the server's state."""

    def init(self, z: Tensor) -> State:
        """Return its initial vectors."""
        return {}

    @abstractmethod
    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        """Return the step for an update D, and its new vectors. kept: a state that includes its old ones."""


@dataclass(frozen=True)
class NoOptimizer(ServerOptimizer):
    """The step is the mean update itself."""

    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        return update, {}


@dataclass(frozen=True)
class ServerMomentum(ServerOptimizer):
    """FedAvgM: m <- b m + D, and the step is m."""

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

    momentum: b_1. second_momentum: b_2. epsilon: tau; v starts at tau^2, and neither moment is bias-corrected.
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
        """Return the decrease of the second moment, divided by 1 - b_2."""
        return second - square

    def step(self, kept: State, update: Tensor) -> tuple[Tensor, State]:
        square = update.square()
        moment = torch.lerp(update, kept["moment"], self.momentum)
        second = kept["second_moment"] - (1 - self.second_momentum) * self.second(kept["second_moment"], square)
        return moment / (second.sqrt() + self.epsilon), {"moment": moment, "second_moment": second}


@dataclass(frozen=True)
class ServerYogi(ServerAdam):
    """FedYogi: FedAdam with v <- v - (1 - b_2) sign(v - D^2) D^2, so that v shrinks slowly when updates get small."""

    def second(self, second: Tensor, square: Tensor) -> Tensor:
        return (second - square).sign() * square


SERVER_OPTIMIZERS: dict[str, type[ServerOptimizer]] = {
    "none": NoOptimizer,
    "momentum": ServerMomentum,
    "adam": ServerAdam,
    "yogi": ServerYogi,
}


def as_server_optimizer(value: object) -> ServerOptimizer:
    """Return an optimiser given as an instance or by its name in ``SERVER_OPTIMIZERS``."""
    if isinstance(value, str):
        if value not in SERVER_OPTIMIZERS:
            raise unknown("server_optimizer", value, SERVER_OPTIMIZERS)
        return SERVER_OPTIMIZERS[value]()
    if not isinstance(value, ServerOptimizer):
        got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
        raise FedmmError(f"server_optimizer must be an instance such as fedmm.ServerAdam(), or its name, not {got}")
    return value
