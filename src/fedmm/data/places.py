"""Where data sets lie on this machine, where what was made of them is kept, and who else serves them."""

from __future__ import annotations

import os
from pathlib import Path

from fedmm.core.errors import require


def data_folder() -> Path:
    """The folder of the data sets' files: ``FEDMM_DATA``, else the user's own data folder."""
    return _folder("FEDMM_DATA", "XDG_DATA_HOME", Path(".local", "share"))


def cache_folder() -> Path:
    """The folder of what can be made again: ``FEDMM_CACHE``, else the user's own cache folder."""
    return _folder("FEDMM_CACHE", "XDG_CACHE_HOME", Path(".cache"))


def mirror() -> str:
    """The address of the user's own mirror, ``FEDMM_MIRROR``, which serves the data folder; empty without one."""
    address = os.environ.get("FEDMM_MIRROR", "")
    require(
        not address or address.startswith(("http://", "https://")),
        f"FEDMM_MIRROR must begin with http:// or https://, not be {address!r}",
    )
    return address.rstrip("/")


def _folder(ours: str, common: str, otherwise: Path) -> Path:
    if given := os.environ.get(ours):
        return Path(given).expanduser()
    # The XDG specification has a relative path ignored.
    base = Path(os.environ.get(common, ""))
    return (base if base.is_absolute() else Path.home() / otherwise) / "fedmm"
