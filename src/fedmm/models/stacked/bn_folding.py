"""Frozen batch normalisation folded into the convolution before it: the same function, fewer passes over pictures."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor, nn

Module = TypeVar("Module", bound=nn.Module)


@dataclass(frozen=True)
class _Pair:
    conv: str
    norm: str
    channels: int
    eps: float
    had_bias: bool
    trained: bool


class FoldedNorms:
    """A network whose frozen BatchNorm layers are gone; their effect is in the convolutions' weights and biases.

    y = gamma (conv(x, w) - mean) / sqrt(var + eps) + beta = conv(x, s w) + beta - s mean, s = gamma / sqrt(var + eps).
    Gradients still reach w, gamma and beta. Pairs that are not trained are folded apart, so that no gradient is asked
    of what comes before the first trained one.
    """

    def __init__(self, pairs: list[_Pair]) -> None:
        self._groups = [group for trained in (False, True) if (group := [p for p in pairs if p.trained == trained])]
        self._eps = pairs[0].eps
        names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        self._gone = {f"{pair.norm}.{name}" for pair in pairs for name in names}

    @classmethod
    def of(cls, module: Module) -> tuple[FoldedNorms, Module] | None:
        """The folding of a network in training mode, and the network without those layers; None if nothing folds."""
        pairs = _pairs(module)
        if not pairs or len({pair.eps for pair in pairs}) > 1:
            return None
        folded = copy.deepcopy(module)
        for pair in pairs:
            parent, _, child = pair.norm.rpartition(".")
            setattr(folded.get_submodule(parent), child, nn.Identity())
            conv = folded.get_submodule(pair.conv)
            assert isinstance(conv, nn.Conv2d)
            conv.bias = nn.Parameter(torch.zeros_like(conv.weight[:, 0, 0, 0]))
        return cls(pairs), folded

    def fold(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of the network without those layers, from those of the network with them."""
        folded = {name: value for name, value in tensors.items() if name not in self._gone}
        for group in self._groups:
            folded |= self._folded(group, tensors)
        return folded

    def _folded(self, group: list[_Pair], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights and biases of some of the convolutions."""

        def all_of(name: str) -> Tensor:
            return torch.cat([tensors[f"{pair.norm}.{name}"] for pair in group])

        inverse = torch.rsqrt(all_of("running_var") + self._eps)
        scale = all_of("weight") * inverse
        shift = all_of("bias") - all_of("running_mean") * scale
        sizes = [pair.channels for pair in group]
        folded = {}
        parts = zip(group, torch.split(scale, sizes), torch.split(shift, sizes), strict=True)
        for pair, s, b in parts:
            folded[f"{pair.conv}.weight"] = tensors[f"{pair.conv}.weight"] * s.view(-1, 1, 1, 1)
            folded[f"{pair.conv}.bias"] = torch.addcmul(b, tensors[f"{pair.conv}.bias"], s) if pair.had_bias else b
        return folded


def _pairs(module: nn.Module) -> list[_Pair]:
    """Every convolution that is followed at once by a BatchNorm layer in evaluation mode."""
    found = []
    for path, parent in module.named_modules():
        if not isinstance(parent, nn.Sequential):
            continue
        children = list(parent.named_children())
        for (conv_name, conv), (norm_name, norm) in pairwise(children):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d) and _is_frozen(norm):
                prefix = f"{path}." if path else ""
                trained = any(p.requires_grad for p in (*conv.parameters(), *norm.parameters()))
                names = (prefix + conv_name, prefix + norm_name)
                found.append(_Pair(*names, norm.num_features, norm.eps, conv.bias is not None, trained))
    return found


def _is_frozen(norm: nn.BatchNorm2d) -> bool:
    return not norm.training and norm.affine and norm.running_mean is not None
