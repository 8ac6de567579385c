"""Tensors that took time to make, kept in the cache folder. A cache that cannot be read or written is no error."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.files import replace_file
from fedmm.core.paths import cache_folder
from fedmm.core.seeding import key

_CHECKSUM = "crc32"


def cached(name: str, made_of: tuple[int | str, ...], make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
    """What ``make`` returns, from the cache where it is there and whole.

    made_of: everything that decides the values: options, checksums of the inputs, the version of the recipe.
    """
    path = cache_folder() / f"{name}-{key(*made_of):016x}.safetensors"
    found = _read(path)
    if found is not None:
        return found
    made = make()
    _write(path, made)
    return made


def _read(path: Path) -> dict[str, Tensor] | None:
    try:
        with safe_open(path, "pt") as stored:
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - it is no mapping
            whole = (stored.metadata() or {}).get(_CHECKSUM) == _checksum(tensors)
    except (OSError, SafetensorError, ValueError, TypeError):
        return None
    return tensors if whole else None


def _write(path: Path, tensors: dict[str, Tensor]) -> None:
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as partial:
            save_file(tensors, partial, {_CHECKSUM: _checksum(tensors)})


def _checksum(tensors: Mapping[str, Tensor]) -> str:
    value = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
