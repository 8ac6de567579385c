"""Built-in networks, as dataclasses of options; ``build`` makes the network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, get_args

import torch
from torch import nn

from fedmm.core.errors import require
from fedmm.core.seeding import key
from fedmm.core.validation import at_least, one_of, within
from fedmm.models.network import BatchNormPolicy, Centring, Network, mlp, truncated_normal

_WIDEST, _MOST_WEIGHTS = 1_000_000, 1_000_000_000


@dataclass(frozen=True)
class Model(ABC):
    """Base of all built-in networks; the options are those of :class:`Network`."""

    name: ClassVar[str]
    summary: ClassVar[str]

    task_hidden: tuple[int, ...] = ()
    adversary_hidden: tuple[int, ...] = (64,)
    head_dropout: float = 0.0
    centre: Centring = "train_mean"
    batch_norm: BatchNormPolicy = "averaged"
    initialisation: Literal["torch", "truncated_normal"] = "torch"

    def __post_init__(self) -> None:
        for option in ("task_hidden", "adversary_hidden"):
            require_widths(option, *getattr(self, option))
        within("head_dropout", self.head_dropout, 0.0, 0.99)
        one_of("centre", self.centre, get_args(Centring))
        one_of("batch_norm", self.batch_norm, get_args(BatchNormPolicy))
        one_of("initialisation", self.initialisation, ("torch", "truncated_normal"))

    def untrained(self) -> Model:
        """Return the same network without external weights, for a caller that loads a run's weights into it."""
        return self

    @abstractmethod
    def features(self, shape: tuple[int, ...]) -> nn.Module:
        """Return the feature extractor for inputs of this shape (without the row axis)."""

    def build(self, shape: tuple[int, ...], classes: int, seed: int) -> Network:
        """Build the network for inputs of this shape, with initial weights drawn from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(seed, "features"))
            features = self.features(shape)
        if self.initialisation == "truncated_normal":
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(key(seed, "features", "truncated normal"))
                truncated_normal(features)
        return Network(
            features,
            classes,
            task_hidden=self.task_hidden,
            adversary_hidden=self.adversary_hidden,
            head_dropout=self.head_dropout,
            batch_norm=self.batch_norm,
            centre=self.centre,
            initialisation=self.initialisation,
        )


@dataclass(frozen=True)
class MLP(Model):
    """Fully connected features of the flattened input."""

    name: ClassVar[str] = "mlp"
    summary: ClassVar[str] = "fully connected features"

    hidden: tuple[int, ...] = (128, 64)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.hidden), "hidden must name at least one layer's width")
        require_widths("hidden", *self.hidden)

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        return nn.Sequential(nn.Flatten(), *mlp(torch.Size(shape).numel(), self.hidden, None))


@dataclass(frozen=True)
class SmallCNN(Model):
    """Two strided 3x3 convolutions: a cheap network for small pictures."""

    name: ClassVar[str] = "small_cnn"
    summary: ClassVar[str] = "two strided 3x3 convolutions for small pictures"

    task_hidden: tuple[int, ...] = (64,)
    channels: tuple[int, int] = (16, 32)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("channels", *self.channels)

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        require_image(self.name, shape)
        first, second = self.channels
        return nn.Sequential(
            nn.Conv2d(shape[0], first, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(first, second, 3, stride=2, padding=1),
            nn.ReLU(),
        )


@dataclass(frozen=True)
class PaperCNN(Model):
    """The network of the paper's published program for MNIST-M: two 5x5 convolutions with pooling, 2,352 features."""

    name: ClassVar[str] = "paper_cnn"
    summary: ClassVar[str] = "the network of the paper's program for MNIST-M"

    task_hidden: tuple[int, ...] = (100, 100)
    adversary_hidden: tuple[int, ...] = (100,)
    initialisation: Literal["torch", "truncated_normal"] = "truncated_normal"

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        require_image(self.name, shape)
        return nn.Sequential(
            nn.Conv2d(shape[0], 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )


@dataclass(frozen=True)
class PaperCNN3(Model):
    """Our reading of the network in the paper's text for MNIST-M, "three-layer convolutional" with two-layer heads.

    The text gives no widths. A third convolution, 3x3 with 64 channels and no pooling, follows the two of the paper's
    program: 3,136 features for a 28x28 picture.
    """

    name: ClassVar[str] = "paper_cnn_3"
    summary: ClassVar[str] = "three convolutions and two-layer heads, as the paper's text has it for MNIST-M"

    task_hidden: tuple[int, ...] = (100,)
    adversary_hidden: tuple[int, ...] = (100,)
    initialisation: Literal["torch", "truncated_normal"] = "truncated_normal"

    def features(self, shape: tuple[int, ...]) -> nn.Module:
        two = PaperCNN().features(shape)
        assert isinstance(two, nn.Sequential)
        return nn.Sequential(*two, nn.Conv2d(48, 64, 3, padding=1), nn.ReLU())


def require_widths(option: str, *widths: int) -> None:
    """Refuse layers without units, or with implausibly many units or weights."""
    for width in widths:
        at_least(option, width, 1)
        require(width <= _WIDEST, f"{option} must be at most {_WIDEST}, not {width}")
    for before, after in pairwise(widths):
        require(
            before * after <= _MOST_WEIGHTS,
            f"{option} must join layers by at most {_MOST_WEIGHTS} weights, not by {before} x {after}",
        )


def require_image(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows that are not pictures."""
    require(len(shape) == 3, f"model {name!r} takes pictures [channels, height, width], not rows of shape {shape}")
