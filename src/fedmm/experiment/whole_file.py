"""A file that others can rely on: it is there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedmm.core.errors import FedmmError, require


@contextmanager
def whole_file(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A name beside ``path`` to write to; when all went well it becomes ``path``, and else nothing is left of it."""
    require("\0" not in str(path), f"{path} cannot be written: no name may hold a zero byte")
    partial = path.with_name(f".{path.name[:200]}.{os.getpid()}.partial") if path.name else path
    try:
        require(bool(path.name) and not path.is_dir(), f"{path} is a folder; name a file to write")
        require(path.is_file() or not path.exists(), f"{path} is no ordinary file; name one to write")
        require(overwrite or not path.exists(), f"{path} is there already; pass --force to replace it")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            with partial.open("rb+") as file:
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
    except OSError as problem:
        raise FedmmError(f"{path} cannot be written: {problem.strerror or problem}") from problem
