"""Where this machine keeps data sets and weights, what was made of them, and the user's configuration."""

from __future__ import annotations

import os
from pathlib import Path

_LONGEST_NAME = 255
"""Bytes of a name, as most file systems have it."""


def data_folder() -> Path:
    """The folder of the data sets' files: ``FEDMM_DATA``, else the user's own data folder."""
    return _folder("FEDMM_DATA", "XDG_DATA_HOME", Path(".local", "share"))


def cache_folder() -> Path:
    """The folder of what can be made again: ``FEDMM_CACHE``, else the user's own cache folder."""
    return _folder("FEDMM_CACHE", "XDG_CACHE_HOME", Path(".cache"))


def config_folder() -> Path:
    """The folder of the user's own configuration: ``FEDMM_CONFIG``, else the one that the system has for it."""
    return _folder("FEDMM_CONFIG", "XDG_CONFIG_HOME", Path(".config"))


def is_name(text: str) -> bool:
    """Whether a text can name a file or folder in another, and leads nowhere else."""
    short = len(text.encode("utf-8", "surrogatepass")) <= _LONGEST_NAME
    return short and text not in ("", ".", "..") and not set(text) & {"/", "\\", "\0"}


def is_folder(path: Path) -> bool:
    """Whether there is a folder that can be looked for: a name that no file system takes is none."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _folder(ours: str, common: str, otherwise: Path) -> Path:
    if given := os.environ.get(ours):
        return Path(given).expanduser()
    # The XDG specification has a relative path ignored.
    base = Path(os.environ.get(common, ""))
    return (base if base.is_absolute() else Path.home() / otherwise) / "fedmm"
