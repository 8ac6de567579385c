"""Files of named tensors with metadata and a checksum, written atomically, and a cache of such files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.files import cache_folder, replace_file, sync_path
from fedmm.core.seeding import key


class UnreadableFile(Exception):  # noqa: N818 - reads as what happened
    """The file is missing, truncated, altered or of another kind."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, Any], sha256: str = "") -> None:
    """Write the file atomically; when this returns, it is safely on disk.

    about: metadata that JSON can hold. sha256: the :func:`checksum` of both, if already known. An OSError is raised
    unchanged and leaves the older file.
    """
    named = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
    }
    text = json.dumps(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replace_file(path, path.with_name(path.name + ".partial")) as partial:
            save_file(named, partial, metadata={"fedmm": text, "sha256": sha256 or checksum(text, named)})
    except SafetensorError as problem:
        raise OSError(str(problem)) from problem
    sync_path(path.parent)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return a file's tensors and metadata; raise UnreadableFile if the checksum does not match."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        text = metadata["fedmm"]
        if metadata["sha256"] != checksum(text, tensors):
            raise UnreadableFile(f"{path}: the checksum is not right")
        return tensors, json.loads(text)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as problem:
        raise UnreadableFile(f"{path}: {problem}") from problem


def checksum(text: str, named: Mapping[str, Tensor]) -> str:
    """Hash the metadata and all tensors with their names, dtypes and shapes, sorted by name."""
    value = hashlib.sha256(text.encode())
    for name in sorted(named):
        value.update(f"\n{name} {named[name].dtype} {tuple(named[name].shape)}\n".encode())
        value.update(named[name].reshape(-1).view(torch.uint8).numpy().data)
    return value.hexdigest()


def load_cached(name: str, made_of: tuple[int | str, ...], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return what ``make`` returns, from the cache folder if it has an intact copy.

    made_of: everything that determines the values: options, checksums of the inputs, the version of the recipe. A cache
    that cannot be read or written is not an error.
    """
    path = cache_folder() / f"{name}-{key(*made_of):016x}.safetensors"
    try:
        return read_tensors(path)[0]
    except UnreadableFile:
        made = make()
    with suppress(OSError), replace_file(path) as partial:  # several processes may write the same file
        write_tensors(partial, made, {})
    return made
