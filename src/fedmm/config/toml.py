"""Reading and writing the TOML of an experiment."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import parse_toml, require_shallow

EXTENDS = "extends"
_MOST_FILES = 100
_LARGEST = 10_000_000
"""The maximum size of a file in bytes; no experiment is larger, and special files may never end."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PART = r'(?:\s*"[^"]*"\s*|[^."=]+)'
_KEY_PART = re.compile(_PART)
_SETTING = re.compile(rf"(?P<path>{_PART}(?:\.{_PART})*)=(?P<value>.*)", re.DOTALL)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        require(len(content) <= _LARGEST, f"{path} is too large for an experiment: it has over {_LARGEST} bytes")
        text = content.decode("utf-8")
    except FileNotFoundError:
        raise FedmmError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise FedmmError(f"{path} is a folder; give a TOML file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise FedmmError(f"{path} cannot be read: {problem}") from problem
    return parse_toml(text, path)


def write_toml(tables: Mapping[str, Any]) -> str:
    """Return values and tables of them as TOML; a table inside a table is written inline."""
    plain = {name: value for name, value in tables.items() if not isinstance(value, Mapping)}
    sections = ["\n".join(_lines(plain))] if plain else []
    for name, table in tables.items():
        if isinstance(table, Mapping):
            sections.append("\n".join([f"[{_key(name)}]", *_lines(table)]))
    return "\n\n".join(sections) + "\n"


def _lines(table: Mapping[str, Any]) -> list[str]:
    return [f"{_key(key)} = {_value(value)}" for key, value in table.items()]


def set_values(tables: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """Return a copy of ``tables`` with ``section.key=value`` settings applied; values that are not TOML become text."""
    changed = copy.deepcopy(dict(tables))
    for setting in settings:
        keys, equals, text = _split(setting)
        require(
            bool(equals) and len(keys) >= 2 and all(keys),
            f"--set {setting!r} must have the form section.key=value, for example run.rounds=50",
        )
        table = changed
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            require(isinstance(table, dict), f"--set {setting!r}: {key!r} is a value, not a section")
        table[keys[-1]] = _parse(text.strip())
    require_shallow(changed, "--set")
    return dict(changed)


def _split(setting: str) -> tuple[list[str], str, str]:
    """Return the keys, the equals sign and the value of a setting; a quoted key may contain dots."""
    found = _SETTING.fullmatch(setting)
    if not found:
        return [], "", ""
    keys = [part.strip().strip('"') for part in _KEY_PART.findall(found["path"])]
    return keys, "=", found["value"]


def _parse(text: str) -> Any:
    try:
        values = parse_toml(f"value = {text}", "--set")
    except FedmmError:
        return text
    return values["value"] if len(values) == 1 else text


def is_utf8(text: str) -> bool:
    """Return whether a file can hold the text; command-line bytes that are not UTF-8 appear in it as surrogates."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _value(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        require(is_utf8(value), f"text must be UTF-8 to be written to a file, not {value!r}")
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items()) + " }" if value else "{}"
    return "[" + ", ".join(_value(item) for item in value) + "]"


def read_tables(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file merged into those of the file that it extends, which may extend another."""
    return _read_extending(path, ())


def _read_extending(path: Path, before: tuple[Path, ...]) -> dict[str, Any]:
    try:
        here = path.resolve()
    except (OSError, ValueError, RuntimeError) as problem:  # a link to itself, or not a valid path
        raise FedmmError(f"{path} cannot be read: {problem}") from problem
    require(
        len(before) < _MOST_FILES,
        f"{path} is reached through a chain of {_MOST_FILES} files that extend one another; use a shorter chain",
    )
    require(here not in before, f"{path} extends itself, through {' and '.join(file.name for file in before)}")
    tables = read_toml(path)
    if EXTENDS not in tables:
        return tables
    base = tables.pop(EXTENDS)
    require(isinstance(base, str) and bool(base), f"{path}: {EXTENDS} must name a TOML file, not {base!r}")
    return merge_tables(_read_extending(path.parent / base, (*before, here)), tables)


def merge_tables(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Merge sections key by key; a section whose ``name`` differs from the base's takes none of the base's options."""
    result = dict(base)
    for section, table in changes.items():
        below = result.get(section)
        if isinstance(below, dict) and isinstance(table, dict):
            another = "name" in table and table["name"] != below.get("name")
            result[section] = dict(table) if another else {**below, **table}
        else:
            result[section] = table
    return result
