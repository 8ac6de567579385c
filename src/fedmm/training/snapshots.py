"""A federation between two rounds as a file, with the history so far: what an interrupted run goes on from."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.engine import FederatedState, Refusal
from fedmm.core.errors import FedmmError
from fedmm.remote.tensor_files import UnreadableFile, read_tensors, write_tensors
from fedmm.training.client_files import Parts
from fedmm.training.history import History

ResumePoint = tuple[FederatedState, History]
"""What a run goes on from: a state, and the rounds that led there."""
_FORMAT, _IN_PARTS = "fedmm-snapshot-4", "fedmm-snapshot-5"


def save_snapshot(path: Path, state: FederatedState, history: History, parts: Parts | None = None) -> set[str]:
    """Write the file whole or not at all; when this returns it is on disk, whatever happens next.

    parts: where single clients' tensors go, if they are not to be in the file itself. Returns the names of those parts.
    """
    named: dict[str, Tensor] = {}
    places: dict[str, list[str]] = {}
    apart: list[list[str]] = []

    def put(tensor: Tensor, *place: str) -> None:
        key = str(len(named))
        named[key] = tensor
        places[key] = list(place)

    states = [state, *state.fallback]
    if parts:
        parts.begin()
    for number, each in enumerate(states):
        for part in ("server", "statistics"):
            for name, tensor in getattr(each, part).items():
                put(tensor, str(number), part, name)
        for part in ("clients", "client_statistics", "totals"):
            for client, own in getattr(each, part).items():
                if parts and own:
                    apart.append([str(number), part, client, _put_apart(parts, own, path)])
                    continue
                for name, tensor in own.items():
                    put(tensor, str(number), part, client, name)
    about = {
        "format": _IN_PARTS if parts else _FORMAT,
        **({"parts": apart} if parts else {}),
        "states": [
            {
                "round": each.round,
                "clients": list(each.clients),
                "client_statistics": list(each.client_statistics),
                "counted": each.counted,
                "offender": each.offender,
                "finished": each.finished,
                **({"norms": each.norms} if each.norms else {}),
            }
            for each in states
        ],
        "places": places,
        "history": list(history),
        "events": history.events,
        "refusals": {str(round_): refused for round_, refused in history.refusals.items()},
    }
    try:
        write_tensors(path, named, about)
    except OSError as problem:
        raise FedmmError(f"the state cannot be written to {path}: {problem}") from problem
    return {name for *_, name in apart}


def _put_apart(parts: Parts, own: State, path: Path) -> str:
    try:
        return parts.put(own)
    except OSError as problem:
        raise FedmmError(f"the state cannot be written to {path}: {problem}") from problem


def parts_of(path: Path) -> set[str]:
    """The names of the parts of a state in a file; none where it cannot be read, and so is of no use."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedmm"])
        return {str(name) for *_, name in about.get("parts", [])}
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return set()


def load_snapshot(path: Path, device: torch.device) -> ResumePoint:
    """The state and the history in a file."""
    try:
        tensors, about = read_tensors(path)
        if about["format"] not in (_FORMAT, _IN_PARTS):
            raise KeyError("format")
        states = [_empty(each) for each in about["states"]]
        for key, (number, part, *names) in about["places"].items():
            table = getattr(states[int(number)], part)
            for name in names[:-1]:
                table = table.setdefault(name, {})
            table[names[-1]] = tensors[key].to(device)
        parts, read = Parts(path.parent), dict[str, State]()
        for number, part, client, name in about.get("parts", []):
            if name not in read:
                read[name] = {key: tensor.to(device) for key, tensor in parts.get(name).items()}
            getattr(states[int(number)], part)[client] = read[name]
        history = History(about["history"], about["events"])
        history.refusals.update(
            {int(round_): tuple(Refusal(*each) for each in refused) for round_, refused in about["refusals"].items()}
        )
        return replace(states[0], fallback=tuple(states[1:])), history
    except (UnreadableFile, LookupError, ValueError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{path} is no state of a run that could be continued; remove the file") from problem


def _empty(about: dict[str, Any]) -> FederatedState:
    state = FederatedState(
        about["round"],
        {},
        {client: {} for client in about["clients"]},
        {},
        {},
        offender=about["offender"],
        finished=about.get("finished", False),
    )
    state.client_statistics.update({client: {} for client in about["client_statistics"]})
    state.norms.update({client: dict(norms) for client, norms in about.get("norms", {}).items()})
    state.counted.update({client: int(round_) for client, round_ in about["counted"].items()})
    return state
