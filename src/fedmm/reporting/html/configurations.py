"""Resolved configurations of runs: in what they differ, and their values in words."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from fedmm.core.options import options_that_affect

Tables = Mapping[str, Mapping[str, Any]]
_ALIKE = options_that_affect("seed", "rounding", "place", "name")
"""Keys of ``[run]`` in which runs of one method may differ."""


def settings_of(tables: Tables) -> dict[tuple[str, str], str]:
    """All settings by section and key, except seeds, names and where a run was computed."""
    return {
        (section, key): json.dumps(value, sort_keys=True, default=str)
        for section, table in tables.items()
        for key, value in table.items()
        if section != "run" or key not in _ALIKE
    }


def differing(configurations: Sequence[Tables]) -> list[tuple[str, str]]:
    """The sections and keys in which configurations differ, but for seeds, names and where they ran."""
    settings = [settings_of(tables) for tables in configurations]
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({values.get(key, "null") for values in settings}) > 1]


def shown(value: object) -> str:
    """A value of a configuration as it would stand in TOML; a dash for one that is not there."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(map(shown, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {shown(entry)}" for key, entry in value.items()) + "}"
    return str(value)
