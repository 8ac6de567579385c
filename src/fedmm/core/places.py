"""Where this machine keeps data sets and weights, and what was made of them."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """The folder of the data sets' files: ``FEDMM_DATA``, else the user's own data folder."""
    return _folder("FEDMM_DATA", "XDG_DATA_HOME", Path(".local", "share"))


def cache_folder() -> Path:
    """The folder of what can be made again: ``FEDMM_CACHE``, else the user's own cache folder."""
    return _folder("FEDMM_CACHE", "XDG_CACHE_HOME", Path(".cache"))


def _folder(ours: str, common: str, otherwise: Path) -> Path:
    if given := os.environ.get(ours):
        return Path(given).expanduser()
    # The XDG specification has a relative path ignored.
    base = Path(os.environ.get(common, ""))
    return (base if base.is_absolute() else Path.home() / otherwise) / "fedmm"
