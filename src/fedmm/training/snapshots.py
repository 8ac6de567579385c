"""Files with a federation's state between two rounds and the history so far, from which a run can be resumed."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.engine import FederatedState, Refusal
from fedmm.core.errors import FedmmError
from fedmm.data.tensor_files import UnreadableFile, checksum, read_tensors, write_tensors
from fedmm.training.history import History

_PARTS = "parts"
_ABOUT_PART = {"format": "fedmm-part-1"}
_PART_NAME = re.compile(r"[0-9a-f]{64}")

Tensors = Mapping[str, Tensor]
ResumePoint = tuple[FederatedState, History]
"""What a run continues from: a state, and the history that led to it."""
_FORMAT, _IN_PARTS = "fedmm-snapshot-4", "fedmm-snapshot-5"


def save_snapshot(path: Path, state: FederatedState, history: History, parts: Parts | None = None) -> set[str]:
    """Write a state and its history atomically; when this returns, the file is safely on disk.

    parts: where to store single clients' tensors, if not in the file itself. Return the names of the parts.
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
    for number, state_ in enumerate(states):
        for part in ("server", "statistics"):
            for name, tensor in getattr(state_, part).items():
                put(tensor, str(number), part, name)
        for part in ("clients", "client_statistics", "totals"):
            for client, own in getattr(state_, part).items():
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
                "round": state_.round,
                "clients": list(state_.clients),
                "client_statistics": list(state_.client_statistics),
                "counted": state_.counted,
                "offender": state_.offender,
                "finished": state_.finished,
                **({"norms": state_.norms} if state_.norms else {}),
            }
            for state_ in states
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
    """Return the names of the parts of the state in a file; none if the file cannot be read."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["fedmm"])
        return {str(name) for *_, name in about.get("parts", [])}
    except (OSError, SafetensorError, LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return set()


def load_snapshot(path: Path, device: torch.device) -> ResumePoint:
    """Load the state and the history in a file."""
    try:
        tensors, about = read_tensors(path)
        if about["format"] not in (_FORMAT, _IN_PARTS):
            raise KeyError("format")
        states = [_empty(saved) for saved in about["states"]]
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
            {
                int(round_): tuple(Refusal(*refusal) for refusal in refused)
                for round_, refused in about["refusals"].items()
            }
        )
        return replace(states[0], fallback=tuple(states[1:])), history
    except (UnreadableFile, LookupError, ValueError, TypeError, AttributeError) as problem:
        raise FedmmError(f"{path} is not a state from which a run can continue; remove the file") from problem


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


class Parts:
    """The parts beside a run's checkpoints. A part is named by the checksum of its content and never changes.

    A checkpoint is written after the parts that it names, and a part is removed after the last checkpoint that names
    it, so that all parts of all checkpoints exist whenever a crash occurs.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.folder = checkpoints / _PARTS
        self._known: dict[int, tuple[Tensors, str]] = {}
        self._before: dict[int, tuple[Tensors, str]] = {}
        self._sound: set[str] = set()

    def begin(self) -> None:
        """Begin a checkpoint; from here on, only parts of the previous and this checkpoint are remembered."""
        self._before, self._known = self._known, {}

    def put(self, tensors: Tensors) -> str:
        """Return the name of the part with these tensors, which is on disk when this returns.

        States are never changed in place, so those put before are recognised by identity, not by their values.
        """
        before = self._known.get(id(tensors)) or self._before.get(id(tensors))
        if before is None or before[0] is not tensors:
            own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            before = (tensors, checksum(json.dumps(_ABOUT_PART), own))
        if before[1] not in self._sound:
            if not self._is_sound(before[1]):
                write_tensors(self._path(before[1]), tensors, _ABOUT_PART, before[1])
            self._sound.add(before[1])
        self._known[id(tensors)] = before
        return before[1]

    def _is_sound(self, name: str) -> bool:
        """Return whether a part, perhaps left by another process, exists and is intact."""
        try:
            return bool(self.get(name))
        except UnreadableFile:
            return False

    def get(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a part; raise ``UnreadableFile`` if it is missing or does not match its name."""
        if not isinstance(name, str) or not _PART_NAME.fullmatch(name):
            raise UnreadableFile(f"{name!r:.80} names no part")
        tensors, about = read_tensors(self._path(name))
        if about != _ABOUT_PART or checksum(json.dumps(about), tensors) != name:
            raise UnreadableFile(f"{self._path(name)} is another part")
        return tensors

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other parts and half-written files."""
        wanted = {self._path(name).name for name in names}
        self._sound &= set(names)
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in wanted:
                    with suppress(OSError):
                        path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
