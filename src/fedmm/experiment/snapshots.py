"""A federation between two rounds as a file, with the history so far: what an interrupted run goes on from."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.engines.tensor_files import UnreadableFile, read_tensors, write_tensors
from fedmm.experiment.history import History

_FORMAT = "fedmm-snapshot-3"


def save_snapshot(path: Path, state: FederatedState, history: History) -> None:
    """Write the file whole or not at all; when this returns it is on disk, whatever happens next."""
    named: dict[str, Tensor] = {}
    places: dict[str, list[str]] = {}

    def put(tensor: Tensor, *place: str) -> None:
        key = str(len(named))
        named[key] = tensor
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
    try:
        write_tensors(path, named, about)
    except OSError as problem:
        raise FedmmError(f"the state cannot be written to {path}: {problem}") from problem


def load_snapshot(path: Path, device: torch.device) -> tuple[FederatedState, History]:
    """The state and the history in a file."""
    try:
        tensors, about = read_tensors(path)
        if about["format"] != _FORMAT:
            raise KeyError("format")
        state = FederatedState(about["round"], {}, {client: {} for client in about["clients"]}, {}, {})
        state.client_statistics.update({client: {} for client in about["client_statistics"]})
        state.counted.update({client: int(round_) for client, round_ in about["counted"].items()})
        for key, (part, *names) in about["places"].items():
            table = getattr(state, part)
            for name in names[:-1]:
                table = table.setdefault(name, {})
            table[names[-1]] = tensors[key].to(device)
        return state, History(about["history"])
    except (UnreadableFile, KeyError, ValueError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{path} is no state of a run that could be continued; remove the file") from problem
