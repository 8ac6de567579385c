"""A network for adversarial domain adaptation: features, a task head and an adversary."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from fedmm.core.errors import FedmmError, require
from fedmm.core.objective import AdversaryShape, Objective, Outputs
from fedmm.core.seeding import key
from fedmm.core.validation import at_least, one_of, within
from fedmm.models.dropout import seed_dropout

BatchNormPolicy = Literal["averaged", "frozen", "local"]
Centring = Literal["none", "train_mean", "image_mean", "batch_mean"]


@dataclass(frozen=True)
class Network:
    """A network to train: any module that maps a batch to features, with a task head and an adversary on top.

    features: maps ``[rows, ...]`` to ``[rows, ...]``, which is flattened to one feature vector per row.
    classes: the number of classes.
    task_hidden, adversary_hidden: widths of the hidden layers of the two heads; head_dropout: dropout after each.
    task_head, adversary: modules to use instead of heads built from the widths.
    batch_norm: how running statistics are treated. ``averaged``: averaged by the server, like parameters; ``frozen``:
        never changed, and used in training too; ``local``: each client keeps its own, and predictions for the target
        use the mean of the target clients'.
    centre: what is subtracted from the input. ``train_mean``: the mean over all clients' training inputs, stored in
        the model; ``image_mean``: each row's own mean; ``batch_mean``: the mean of the current batch, which makes a
        prediction depend on its batch.
    initialisation: of the built heads; ``torch`` for torch's default, ``truncated_normal`` as in the paper's program.
    """

    features: nn.Module
    classes: int
    task_hidden: tuple[int, ...] = ()
    adversary_hidden: tuple[int, ...] = (64,)
    head_dropout: float = 0.0
    task_head: nn.Module | None = None
    adversary: nn.Module | None = None
    batch_norm: BatchNormPolicy = "averaged"
    centre: Centring = "none"
    initialisation: Literal["torch", "truncated_normal"] = "torch"

    def __post_init__(self) -> None:
        if not isinstance(self.features, nn.Module):
            raise FedmmError(f"features must be an nn.Module, not {type(self.features).__name__}")
        at_least("classes", self.classes, 2)
        for option in ("task_hidden", "adversary_hidden"):
            widths = getattr(self, option)
            require(isinstance(widths, tuple | list), f"{option} must be a tuple of widths, not {widths!r:.60}")
            for width in widths:
                at_least(option, width, 1)
        for option in ("task_head", "adversary"):
            head = getattr(self, option)
            require(head is None or isinstance(head, nn.Module), f"{option} must be an nn.Module, not {head!r:.60}")
        within("head_dropout", self.head_dropout, 0.0, 0.99)
        one_of("batch_norm", self.batch_norm, get_args(BatchNormPolicy))
        one_of("centre", self.centre, get_args(Centring))
        one_of("initialisation", self.initialisation, ("torch", "truncated_normal"))


class AdversarialModule(nn.Module):
    """Features, task head and adversary as one module; its parameter names define the groups of omega and psi."""

    input_mean: Tensor

    def __init__(self, network: Network, objective: Objective, sample: Tensor, seed: int) -> None:
        super().__init__()
        self.centre = network.centre
        self.features = copy.deepcopy(network.features)
        self.register_buffer("input_mean", torch.zeros(()))
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(key(seed, "lazy layers"))
            width = self._feature_width(sample)
            torch.default_generator.manual_seed(key(seed, "heads"))
            self.task_head = self._task_head(network, AdversaryShape(width, network.classes, twin=True))
            self.adversary_shape = objective.adversary_shape(width, network.classes)
            self.adversary = self._adversary(network, self.adversary_shape)
            shape = self.adversary_shape
            self.levels = Numbers(shape.start[shape.outputs :]) if shape and shape.levels else None
        self.adversary_input = objective.adversary_input
        maps = objective.random_maps(width, network.classes, seed)
        self.map_names = tuple(maps)
        for name, tensor in maps.items():
            self.register_buffer(name, tensor)
        seed_dropout(self)

    def forward(self, x: Tensor) -> Outputs:
        features = self.features(self._prepare(x)).flatten(1)
        logits = self.task_head(features)
        if self.adversary is None:
            return Outputs(features, logits, logits)
        maps = {name: getattr(self, name) for name in self.map_names}
        seen = self.adversary_input(features, logits, maps)
        adversary = self.adversary(seen)
        if self.adversary_shape is not None and self.adversary_shape.held:
            adversary = torch.cat([adversary, self.adversary(seen.detach())], dim=-1)
        if self.levels is not None:
            adversary = torch.cat([adversary, self.levels(seen)], dim=-1)
        return Outputs(features, logits, adversary)

    def drop_adversary(self) -> None:
        """Remove the adversary and keep only what predicts."""
        self.adversary = self.levels = None

    def _prepare(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8:
            x = x.to(self.input_mean.dtype) / 255.0
        if self.centre == "batch_mean":
            return x - x.mean()
        if self.centre == "image_mean":
            return x - x.flatten(1).mean(dim=1).view(-1, *(1,) * (x.dim() - 1))
        if self.centre == "train_mean":
            return x - self.input_mean
        return x

    def _feature_width(self, sample: Tensor) -> int:
        dtype = next((p.dtype for p in self.features.parameters()), torch.float32)
        try:
            with torch.no_grad():
                features = self.features.eval()(sample.to(dtype))
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            reason = str(problem).splitlines()[0]
            raise FedmmError(
                f"the features module does not take a batch of shape {tuple(sample.shape)}: {reason}"
            ) from problem
        require(
            isinstance(features, Tensor) and features.dim() >= 2 and len(features) == len(sample),
            "the features module must map a batch [rows, ...] to a tensor of features [rows, ...]",
        )
        return int(features.flatten(1).shape[1])

    def _task_head(self, network: Network, shape: AdversaryShape) -> nn.Module:
        return _head(network, shape) if network.task_head is None else copy.deepcopy(network.task_head)

    def _adversary(self, network: Network, shape: AdversaryShape | None) -> nn.Module | None:
        if shape is None:
            return None
        if shape.levels:
            require(network.adversary is None, "adversary must be left out: the objective's adversary is not a network")
            return Numbers(shape.start[: shape.outputs])
        return _head(network, shape) if network.adversary is None else copy.deepcopy(network.adversary)


class Numbers(nn.Module):
    """Trainable numbers, initially ``start``: an input of ones ``[rows, 1]`` becomes ``[rows, count]``.

    The product is elementwise, not a matrix product, so the numbers are never rounded to a lower precision.
    """

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(start))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def _head(network: Network, shape: AdversaryShape) -> nn.Module:
    hidden = network.task_hidden if shape.twin else network.adversary_hidden
    head = mlp(shape.inputs, hidden, shape.outputs, network.head_dropout)
    if network.initialisation == "truncated_normal":
        truncated_normal(head)
    return head


def mlp(inputs: int, hidden: Sequence[int], outputs: int | None, dropout: float = 0.0) -> nn.Sequential:
    """Build linear layers, each hidden one with ReLU (and dropout); ``outputs=None`` ends after the last hidden one."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    if outputs is not None:
        layers.append(nn.Linear(inputs, outputs))
    return nn.Sequential(*layers)


def truncated_normal(module: nn.Module) -> None:
    """Initialise as the paper's published program does: weights normal(0, 0.1) truncated at two sigma, biases 0.1."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.trunc_normal_(layer.weight, std=0.1, a=-0.2, b=0.2)
            if layer.bias is not None:
                nn.init.constant_(layer.bias, 0.1)
