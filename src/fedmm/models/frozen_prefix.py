"""The leading frozen layers of a network, whose outputs need to be computed only once."""

from __future__ import annotations

import copy
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from fedmm.models.flat import rows_at_once
from fedmm.models.network import Network

_Norm = nn.modules.batchnorm._NormBase
_BYTES_OF_A_NUMBER = 4


class FrozenPart(nn.Module):
    """A copy of a network's leading frozen layers, in evaluation mode."""

    def __init__(self, layers: OrderedDict[str, nn.Module]) -> None:
        super().__init__()
        self.layers = copy.deepcopy(nn.Sequential(layers)).eval().requires_grad_(False)

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers to rows ``[rows, ...]`` as a network takes them; bytes are scaled to [0, 1]."""
        dtype = next(self.layers.parameters()).dtype
        outputs: Tensor = self.layers(x.to(dtype) / 255.0 if x.dtype == torch.uint8 else x.to(dtype))
        return outputs

    def of_all(self, x: Tensor, on_rows: Callable[[int], None] | None = None) -> Tensor:
        """Apply the layers to any number of rows, in batches. on_rows: called with the number of rows done so far."""
        parts = []
        for batch in torch.split(x, min(64, rows_at_once(tuple(x.shape[1:])))):
            parts.append(self(batch))
            if on_rows:
                on_rows(sum(map(len, parts)))
        return torch.cat(parts)

    def checksum(self) -> str:
        """Return a fingerprint of the layers and their weights."""
        found = hashlib.sha256(repr(self.layers).encode())
        for name, tensor in sorted(self.layers.state_dict().items()):
            found.update(name.encode())
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()


def split_frozen_part(network: Network, row: Tensor) -> tuple[FrozenPart, Network] | None:
    """Split a network into its leading frozen layers and the rest; return None if that is impossible or does not pay.

    Trained parameters keep their names, order and initial values. None if the first layers are trained or random, if
    all layers are frozen, if rows are centred, or if a row would take more memory after the frozen layers than before.

    row: one row as the network takes it, ``[1, ...]``.
    """
    if not isinstance(network.features, nn.Sequential) or network.centre != "none":
        return None
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    left: OrderedDict[str, nn.Module] = OrderedDict()
    for name, layer in network.features.named_children():
        (left if left or not _is_frozen(layer, network.batch_norm) else layers)[name] = layer
    if not left or not any(True for layer in layers.values() for _ in layer.parameters()):
        return None
    part = FrozenPart(layers)
    behind = part(row)
    if behind.numel() * _BYTES_OF_A_NUMBER > row.numel() * row.element_size():
        return None
    return part, replace(network, features=nn.Sequential(left))


def _is_frozen(layer: nn.Module, batch_norm: str) -> bool:
    """Return whether training changes nothing in a layer and the layer draws no random numbers."""
    trained = any(parameter.requires_grad for parameter in layer.parameters())
    random = any(isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0 for part in layer.modules())
    statistics = any(isinstance(part, _Norm) and part.running_mean is not None for part in layer.modules())
    return not trained and not random and (batch_norm == "frozen" or not statistics)
