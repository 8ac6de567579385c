"""TOML files that say only what differs from another: ``extends = "../common.toml"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmm.config.toml import read_toml
from fedmm.core.errors import FedmmError, require

EXTENDS = "extends"
_MOST_FILES = 100


def read_tables(path: Path) -> dict[str, Any]:
    """The tables of a TOML file, on top of those of the file it extends, which may extend another."""
    return _read(path, ())


def _read(path: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    try:
        here = path.resolve()
    except (OSError, ValueError, RuntimeError) as problem:  # a link to itself, or no path at all
        raise FedmmError(f"{path} cannot be read: {problem}") from problem
    require(len(before) < _MOST_FILES, f"{path} is the end of a chain of {_MOST_FILES} files; extend fewer")
    require(here not in before, f"{path} extends itself, through {' and '.join(each.name for each in before)}")
    tables = read_toml(path)
    if EXTENDS not in tables:
        return tables
    base = tables.pop(EXTENDS)
    require(isinstance(base, str) and bool(base), f"{path}: {EXTENDS} must name a TOML file, not {base!r}")
    return merged(_read(path.parent / base, (*before, here)), tables)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of both, key by key; a section that names another row than the base's takes none of its options."""
    result = dict(base)
    for section, table in changes.items():
        below = result.get(section)
        if isinstance(below, dict) and isinstance(table, dict):
            another = "name" in table and table["name"] != below.get("name")
            result[section] = dict(table) if another else {**below, **table}
        else:
            result[section] = table
    return result
