"""What checkpoints share: each client's tensors in a file of their own, written when they change."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor

from fedmm.remote.tensor_files import UnreadableFile, checksum, read_tensors, write_tensors

FOLDER = "parts"
_ABOUT = {"format": "fedmm-part-1"}
_NAME = re.compile(r"[0-9a-f]{64}")

Tensors = Mapping[str, Tensor]


class Parts:
    """The parts beside a run's checkpoints. A part is named by the checksum of what it holds and never changes.

    A checkpoint is written after the parts that it names, and a part is removed after the last checkpoint that names
    it: whenever a crash comes, all parts of all checkpoints are there.
    """

    def __init__(self, checkpoints: Path) -> None:
        self.folder = checkpoints / FOLDER
        self._known: dict[int, tuple[Tensors, str]] = {}
        self._before: dict[int, tuple[Tensors, str]] = {}
        self._sound: set[str] = set()

    def begin(self) -> None:
        """Begin a checkpoint: what the one before put and this one does not put again is forgotten."""
        self._before, self._known = self._known, {}

    def put(self, tensors: Tensors) -> str:
        """The name of the part with these tensors; it is on disk when this returns. States are never changed in place,
        so that those which were put before are known again without a look at their values.
        """
        before = self._known.get(id(tensors)) or self._before.get(id(tensors))
        if before is None or before[0] is not tensors:
            own = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
            before = (tensors, checksum(json.dumps(_ABOUT), own))
        if before[1] not in self._sound:
            if not self._is_sound(before[1]):
                write_tensors(self._path(before[1]), tensors, _ABOUT, before[1])
            self._sound.add(before[1])
        self._known[id(tensors)] = before
        return before[1]

    def _is_sound(self, name: str) -> bool:
        """Whether a part that another process may have left is there and whole."""
        try:
            return bool(self.get(name))
        except UnreadableFile:
            return False

    def get(self, name: str) -> dict[str, Tensor]:
        """The tensors of a part; UnreadableFile where it is not there, or holds something else than its name says."""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UnreadableFile(f"{name!r:.80} names no part")
        tensors, about = read_tensors(self._path(name))
        if about != _ABOUT or checksum(json.dumps(about), tensors) != name:
            raise UnreadableFile(f"{self._path(name)} is another part")
        return tensors

    def keep_only(self, names: Collection[str]) -> None:
        """Remove all other parts, and what was half written."""
        wanted = {self._path(name).name for name in names}
        self._sound &= set(names)
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                if path.name not in wanted:
                    with suppress(OSError):
                        path.unlink()

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"
