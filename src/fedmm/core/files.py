"""File helpers: standard folders, locks, atomic writes and TOML parsing. Does not need torch."""

from __future__ import annotations

import json
import os
import shutil
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO

from fedmm.core.errors import FedmmError, first_line, require


def sync_path(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def hold_lock(path: Path, refusal: str, mode: int = 0o600) -> Iterator[TextIO]:
    """Lock a file, creating it with this mode if needed, and yield it.

    Raises :class:`FedmmError` with the message ``refusal`` if another process holds the lock.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, mode), "r+", encoding="ascii") as file:
        try:
            _lock(file.fileno(), refusal)
        except OSError as problem:
            raise FedmmError(
                f"{path} cannot be locked: {problem.strerror}; it needs a file system with locks"
            ) from problem
        yield file


@contextmanager
def hold_folder(folder: Path, refusal: str) -> Iterator[None]:
    """Lock a folder like :func:`hold_lock` does a file, on systems with such locks."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows cannot open folders
        yield
        return
    try:
        with suppress(OSError, ImportError):
            _lock(number, refusal)
        yield
    finally:
        os.close(number)


def _lock(number: int, refusal: str) -> None:
    """Lock an open file; a failure other than a lock held elsewhere is raised as the system's own ``OSError``."""
    import fcntl  # noqa: PLC0415 - not on every system

    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FedmmError(refusal) from None


@contextmanager
def replace_file(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield a path beside ``path`` to write to; on success the file is synced and renamed to ``path``, else removed.

    partial: that path, if only one process writes this file; by default its name contains the process id.
    If the file cannot be written, the ``OSError`` is raised as it is and the older file stays unchanged.
    """
    path = path.resolve() if path.is_symlink() else path
    partial = partial or path.with_name(f".{path.name[:200]}.{os.getpid()}.partial")
    try:
        yield partial
        if path.exists():
            shutil.copymode(path, partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text atomically, creating the folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, creating the folder if needed."""
    try:
        write_text(path, json.dumps(content, indent=2) + "\n")
    except OSError as problem:
        raise FedmmError(f"{path.name} cannot be written to {path.parent}: {problem.strerror or problem}") from problem


_DEEPEST = 50


def parse_toml(text: str | bytes, name: object) -> dict[str, Any]:
    """Parse TOML text, raising a one-sentence error if it is invalid. name: the file or setting that it came from."""
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        tables = tomllib.loads(text.replace("\r\n", "\n"))
    except (ValueError, RecursionError) as problem:
        raise FedmmError(f"{name} is not valid TOML: {first_line(problem)}") from problem
    require_shallow(tables, name)
    return tables


def require_shallow(value: object, name: object) -> None:
    """Refuse tables and lists that are nested too deeply for code that walks through them."""
    level = [value]
    for _ in range(_DEEPEST):
        nested = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for items in nested for item in items]
    require(not level, f"{name} nests tables and lists more than {_DEEPEST} deep")


@contextmanager
def atomic_write(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Like :func:`replace_file`, for a file that the user named, in a folder that is created if needed.

    Raises a one-sentence :class:`FedmmError` if it cannot be written.
    """
    try:
        _require_writable(path)
        require(overwrite or not path.exists(), f"{path} already exists; pass --overwrite to replace it")
        path.parent.mkdir(parents=True, exist_ok=True)
        with replace_file(path) as partial:
            yield partial
    except OSError as problem:
        raise FedmmError(f"{path} cannot be written: {problem.strerror or problem}") from problem


def require_replaceable(path: Path, option: str, what: str, is_own: Callable[[Path], bool]) -> None:
    """Refuse a folder, and a file that holds anything but what is to be written; an empty file may be replaced.

    option: names the path, such as ``--out``. what: is to be written; is_own: whether a file holds it.
    """
    try:
        _require_writable(path)
        own = not path.exists() or not path.stat().st_size or is_own(path)
    except OSError as problem:
        raise FedmmError(f"{option} {path} cannot be written: {problem.strerror or problem}") from problem
    require(own, f"{option} {path} is there and holds something else than {what}; name another file")


def _require_writable(path: Path) -> None:
    """Refuse a name that cannot be that of a file to write."""
    require("\0" not in str(path), f"{path} cannot be written: a name must not contain a zero byte")
    require(bool(path.name) and not path.is_dir(), f"{path} is a folder; name a file to write")
    require(path.is_file() or not path.exists(), f"{path} is not a regular file; name one to write")


DOMAINS = ("source", "target", "both")
"""The domains that a site may hold."""


def append_text(path: Path, text: str, is_whole: Callable[[bytes], bool]) -> None:
    """Append lines to a file and wait until they are on disk.

    is_whole: whether a last line without a line break is complete; one cut short by a crash is removed first.
    """
    with path.open("a+b") as file:
        file.seek(0)
        before = file.read()
        last = before[before.rfind(b"\n") + 1 :]
        if last and not is_whole(last):
            file.truncate(len(before) - len(last))
        elif last:
            text = "\n" + text
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def domain_of(source: bool, target: bool) -> str:
    """Return which domains a site holds, in the words of its file."""
    return "both" if source and target else "source" if source else "target"


Decimal = Literal[".", ","]


@dataclass(frozen=True)
class TableKeys:
    """The keys of ``[data]`` that say how a table is written; columns: the column names of a file without a header.

    :class:`fedmm.data.readers.table_formats.TableFormat` documents the others.
    """

    separator: str = ","
    decimal: Decimal = "."
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] = ()
    sheet: str = ""
    missing: tuple[str, ...] = ()
    zero_missing: tuple[str, ...] = ()


_LONGEST_NAME = 255
"""Maximum length of a file name in bytes, as on most file systems."""


def data_folder() -> Path:
    """Return the folder of data set files: ``FEDMM_DATA``, else the user's own data folder."""
    return _folder("FEDMM_DATA", "XDG_DATA_HOME", Path(".local", "share"))


def cache_folder() -> Path:
    """Return the folder of files that can be recreated: ``FEDMM_CACHE``, else the user's own cache folder."""
    return _folder("FEDMM_CACHE", "XDG_CACHE_HOME", Path(".cache"))


def config_folder() -> Path:
    """Return the folder of the user's configuration: ``FEDMM_CONFIG``, else the user's own configuration folder."""
    return _folder("FEDMM_CONFIG", "XDG_CONFIG_HOME", Path(".config"))


def is_name(text: str) -> bool:
    """Return whether a text can name a file or folder inside another, without leading anywhere else."""
    short = len(text.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME
    return short and text not in ("", ".", "..") and not set(text) & {"/", "\\", "\0"}


def is_folder(path: Path) -> bool:
    """Return whether a folder exists; a name that no file system accepts counts as missing."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _folder(ours: str, common: str, otherwise: Path) -> Path:
    if given := os.environ.get(ours):
        return Path(given).expanduser()
    # The XDG specification says to ignore relative paths.
    base = Path(os.environ.get(common, ""))
    return (base if base.is_absolute() else Path.home() / otherwise) / "fedmm"
