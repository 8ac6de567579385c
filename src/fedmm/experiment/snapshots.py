"""A federation between two rounds as a file, with the history so far: what an interrupted run goes on from."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.experiment.history import History

_FORMAT = "fedmm-snapshot-3"


def save_snapshot(path: Path, state: FederatedState, history: History) -> None:
    """Write the file whole or not at all; when this returns it is on disk, whatever happens next."""
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
    for part in ("clients", "client_statistics", "totals"):
        for client, own in getattr(state, part).items():
            for name, tensor in own.items():
                put(tensor, part, client, name)
    about = {
        "format": _FORMAT,
        "round": state.round,
        "places": places,
        "clients": list(state.clients),
        "client_statistics": list(state.client_statistics),
        "counted": state.counted,
        "history": list(history),
    }
    text = json.dumps(about)
    partial = path.with_name(path.name + ".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(named, partial, metadata={"fedmm": text, "sha256": _checksum(text, named)})
        _to_disk(partial)
        partial.replace(path)
        _to_disk(path.parent)
    except (OSError, SafetensorError) as problem:
        raise FedmmError(f"the state cannot be written to {path}: {problem}") from problem


def load_snapshot(path: Path, device: torch.device) -> tuple[FederatedState, History]:
    """The state and the history in a file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a dict
        text = metadata["fedmm"]
        about = json.loads(text)
        if about["format"] != _FORMAT:
            raise KeyError("format")
        if metadata["sha256"] != _checksum(text, tensors):
            raise KeyError("sha256")
        state = FederatedState(about["round"], {}, {client: {} for client in about["clients"]}, {}, {})
        state.client_statistics.update({client: {} for client in about["client_statistics"]})
        state.counted.update({client: int(round_) for client, round_ in about["counted"].items()})
        for key, (part, *names) in about["places"].items():
            table = getattr(state, part)
            for name in names[:-1]:
                table = table.setdefault(name, {})
            table[names[-1]] = tensors[key].to(device)
        return state, History(about["history"])
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{path} is no state of a run that could be continued; remove the file") from problem


def _checksum(text: str, named: Mapping[str, Tensor]) -> str:
    """Of the description and all tensors, in the order of their keys."""
    value = hashlib.sha256(text.encode())
    for key in sorted(named):
        value.update(named[key].reshape(-1).view(torch.uint8).numpy().data)
    return value.hexdigest()


def _to_disk(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
