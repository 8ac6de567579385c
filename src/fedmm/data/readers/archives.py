"""Pictures out of a tar archive that may hold anything: only files that are wanted are written, under known names."""

from __future__ import annotations

import lzma
import shutil
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from fedmm.core.errors import FedmmError, require
from fedmm.data.sources import StoredFile

_LARGEST = 100_000_000
"""Bytes of a file; no picture is larger."""
_MOST = 10_000_000_000
"""Bytes of an archive; no domain is larger, and a few bytes can stand for any number of them."""


def unpack(archive: Path, files: Iterable[StoredFile], folder: Path) -> None:
    """Write the files from an archive into a folder; each is found by the last two parts of its path, class and name.

    Links, devices, paths that lead elsewhere, and archives that lack a file are refused.
    """
    wanted = {PurePosixPath(file.path).parts[-2:]: file for file in files}
    try:
        with tarfile.open(archive) as opened:
            for member in opened:
                path = PurePosixPath(member.name)
                require(
                    not path.is_absolute() and ".." not in path.parts and (member.isfile() or member.isdir()),
                    f"{archive} is not unpacked: it holds {member.name!r}, which is a link or leads out of its folder",
                )
                end = member.offset_data + member.size
                require(end <= _MOST, f"{archive} is not unpacked: it holds more than {_MOST} bytes")
                file = wanted.get(path.parts[-2:]) if member.isfile() else None
                if file is not None:
                    require(member.size <= _LARGEST, f"{archive} is not unpacked: {member.name} is too large")
                    _write(opened, member, folder / file.path)
                    del wanted[path.parts[-2:]]
    except FedmmError:
        raise
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, ValueError, OverflowError, MemoryError) as problem:
        raise FedmmError(f"{archive} is truncated or corrupt: {problem}") from problem
    except OSError as problem:
        raise FedmmError(f"{archive} cannot be unpacked into {folder}: {problem.strerror or problem}") from problem
    missing = [file.path for file in wanted.values()]
    require(not missing, f"{archive} lacks {len(missing)} files, the first of them {missing[0] if missing else ''}")


def _write(opened: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
    content = opened.extractfile(member)
    assert content is not None  # it is a file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as stream:
        shutil.copyfileobj(content, stream)
