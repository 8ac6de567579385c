"""A client's states on its own disk, by run, client and round, so that it can continue after a crash."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import torch

from fedmm.core.errors import FedmmError, Say, require
from fedmm.data.tensor_files import UnreadableFile, read_tensors, write_tensors
from fedmm.engines.messages import NEVER
from fedmm.engines.worker import ClientMemory, Kept

_FORMAT = "fedmm-client-state-1"
_NAME = re.compile(r"(before-the-first|round-\d{8})\.safetensors")


def state_folder(root: Path, run: str, client: str) -> Path:
    """Return the folder of a client's states in a run; names may contain any characters but start with no dot."""
    for what, name in (("run", run), ("client", client)):
        require(
            bool(name) and not name.startswith("."), f"the {what} name {name!r} cannot name a folder; choose another"
        )
    return root / quote(run, safe=" ") / quote(client, safe=" ")


class DurableMemory(ClientMemory):
    """A client's memory on disk, written before an update is sent: one file per state, the last ``depth`` of them.

    The folder is read when the memory is created. A truncated or altered file is skipped and reported: the client then
    continues from the previous state, if that is the one the server counted, or reports that it has lost its state.
    device: where the states are loaded.
    """

    def __init__(
        self,
        folder: Path,
        *,
        depth: int = 2,
        device: torch.device | str = "cpu",
        say: Say = lambda line: None,
    ) -> None:
        self.folder = folder
        super().__init__(_read(folder, torch.device(device), say), depth=depth)

    def remember(self, round: int, kept: Kept) -> None:
        """Store a state; when this returns, it is on disk. If writing fails, the stored states stay as they were."""
        named = {f"own {name}": tensor for name, tensor in kept.own.items()}
        named |= {f"statistics {name}": tensor for name, tensor in kept.statistics.items()}
        try:
            write_tensors(self._path(round), named, {"format": _FORMAT, "round": round})
            super().remember(round, kept)
            self._tidy()
        except OSError as problem:
            raise FedmmError(
                f"the client's state after round {round + 1} cannot be written to {self.folder}: "
                f"{problem.strerror or problem}"
            ) from problem

    def forget(self, round: int) -> None:
        super().forget(round)
        self._path(round).unlink(missing_ok=True)

    def _path(self, round: int) -> Path:
        name = "before-the-first" if round == NEVER else f"round-{round + 1:08d}"
        return self.folder / f"{name}.safetensors"

    def _tidy(self) -> None:
        """Remove the files of states no longer held: too old, or of rounds that were not counted."""
        held = {self._path(round) for round in self.held}
        for path in _files(self.folder):
            if path not in held:
                path.unlink(missing_ok=True)


def _files(folder: Path) -> list[Path]:
    """Return a folder's state files, newest first."""
    try:
        names = [path for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as problem:
        raise FedmmError(f"the folder {folder} with a client's states cannot be read: {problem.strerror}") from problem
    return sorted(names, reverse=True)


def _read(folder: Path, device: torch.device, say: Say) -> dict[int, Kept]:
    held: dict[int, Kept] = {}
    for path in _files(folder):
        try:
            tensors, about = read_tensors(path)
            if about.get("format") != _FORMAT:
                raise UnreadableFile(f"{path}: it has another format")
        except UnreadableFile as problem:
            say(f"{problem}; this state is left out, and the one before it is tried")
            continue
        kept = Kept({}, {})
        for key, tensor in tensors.items():
            part, _, name = key.partition(" ")
            getattr(kept, part)[name] = tensor.to(device)
        held[int(about["round"])] = kept
    return held
