"""Folding of frozen batch normalisation into the preceding convolution, which saves passes over feature maps."""

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
    """Folds a network's frozen BatchNorm layers into the weights and biases of the convolutions before them.

    y = gamma (conv(x, w) - mean) / sqrt(var + eps) + beta = conv(x, s w) + beta - s mean, s = gamma / sqrt(var + eps).
    Gradients still reach w, gamma and beta. Untrained pairs are folded separately, so that no gradient is computed for
    layers before the first trained pair.
    """

    def __init__(self, pairs: list[_Pair]) -> None:
        self._groups = [group for trained in (False, True) if (group := [p for p in pairs if p.trained == trained])]
        self._eps = pairs[0].eps
        names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
        self._gone = {f"{pair.norm}.{name}" for pair in pairs for name in names}

    @classmethod
    def of(cls, module: Module) -> tuple[FoldedNorms, Module] | None:
        """Return the folding of a network in training mode, and the network without those layers; None if none fold."""
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
        """Return the tensors of the folded network, given those of the original one."""
        folded = {name: value for name, value in tensors.items() if name not in self._gone}
        for group in self._groups:
            folded |= self._folded(group, tensors)
        return folded

    def _folded(self, group: list[_Pair], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the folded weights and biases of a group of convolutions."""

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
    """Return every convolution directly followed by a frozen BatchNorm layer in the same ``nn.Sequential``."""
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
