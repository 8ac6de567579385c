"""A federation between two rounds as a file, with the history so far: what an interrupted run goes on from."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.experiment.history import History

_FORMAT = "fedmm-snapshot-1"


def save_snapshot(path: Path, state: FederatedState, history: History) -> None:
    """Write the file whole or not at all."""
    named: dict[str, Tensor] = {}
    places: dict[str, list[str]] = {}

    def put(tensor: Tensor, *place: str) -> None:
        key = str(len(named))
        named[key] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        places[key] = list(place)

    for name, tensor in state.server.items():
        put(tensor, "server", name)
    for name, tensor in state.statistics.items():
        put(tensor, "statistics", name)
    for part in ("clients", "client_statistics"):
        for client, own in getattr(state, part).items():
            for name, tensor in own.items():
                put(tensor, part, client, name)
    about = {
        "format": _FORMAT,
        "round": state.round,
        "places": places,
        "clients": list(state.clients),
        "client_statistics": list(state.client_statistics),
        "history": list(history),
        "checksum": _checksum(named),
    }
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(named, partial, metadata={"fedmm": json.dumps(about)})
        partial.replace(path)
    except (OSError, SafetensorError) as problem:
        raise FedmmError(f"the state cannot be written to {path}: {problem}") from problem


def load_snapshot(path: Path, device: torch.device) -> tuple[FederatedState, History]:
    """The state and the history in a file."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedmm"])
            if about["format"] != _FORMAT:
                raise KeyError("format")
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        if about.get("checksum", _checksum(tensors)) != _checksum(tensors):
            raise KeyError("checksum")
        state = FederatedState(about["round"], {}, {client: {} for client in about["clients"]}, {}, {})
        state.client_statistics.update({client: {} for client in about.get("client_statistics", ())})
        for key, (part, *names) in about["places"].items():
            table = getattr(state, part)
            for name in names[:-1]:
                table = table.setdefault(name, {})
            table[names[-1]] = tensors[key].to(device)
        return state, History(about["history"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{path} is no state of a run that could be continued; remove the file") from problem


def _checksum(named: Mapping[str, Tensor]) -> int:
    """Of all tensors, in the order of their keys."""
    value = 0
    for key in sorted(named):
        value = zlib.crc32(named[key].reshape(-1).view(torch.uint8).numpy().data, value)
    return value
