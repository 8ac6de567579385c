"""Conversion between frozen dataclasses and tables of plain values, as in TOML. Every error names the key."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union

from fedmm.config.toml import is_utf8
from fedmm.core.errors import FedmmError, require, unknown

T = TypeVar("T")
Table = dict[str, Any]


def choose(rows: Mapping[str, type[T]], table: Mapping[str, Any], section: str) -> T:
    """Build the class that the key ``name`` of a table selects from ``rows``, with the other keys as its options."""
    name = table.get("name")
    require(isinstance(name, str), f"{section}.name must say which one to use: {', '.join(sorted(rows))}")
    if name not in rows:
        raise unknown(f"{section}.name", str(name), rows)
    return build(rows[str(name)], {key: value for key, value in table.items() if key != "name"}, section)


def build(cls: type[T], table: Mapping[str, Any], section: str) -> T:
    """Build a dataclass from a table; errors name unknown keys, wrong types and refused values as ``section.key``."""
    values = read_fields(cls, table, section)
    try:
        return cls(**values)
    except FedmmError as refusal:
        text = str(refusal)
        what = f"[{section}] has an " if text.startswith("unknown ") else f"{section}."
        raise FedmmError(f"{what}{text}") from refusal


def read_fields(cls: type[Any], table: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Return the values of a dataclass's fields from a table; refuse unknown keys, wrong types and missing values."""
    assert is_dataclass(cls)
    hints = _hints(cls)
    known = {field.name: field for field in fields(cls)}
    for key in table:
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
    values = {key: _conform(value, hints[key], f"{section}.{key}") for key, value in table.items()}
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        require(not required or name in values, f"{section}.{name} is missing")
    return values


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def as_table(value: Any) -> Table:
    """Return the table from which :func:`choose` or :func:`build` makes ``value`` again."""
    table: Table = {"name": value.name} if hasattr(value, "name") else {}
    for field in fields(value):
        table[field.name] = _plain(getattr(value, field.name))
    return table


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        rows = [row for _, table in _named_values().values() for row in table.items()]
        name = next(name for name, row in rows if type(value).__name__ == row.__name__)
        return {"name": name, **as_table(value)}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _conform(value: Any, hint: Any, path: str) -> Any:
    """Return ``value`` as the annotated type, or refuse it and say what would be right."""
    for leaf in _leaves(value):
        if isinstance(leaf, int):
            require(-(2**63) <= leaf < 2**63, f"{path} must be within 64 bits, as TOML's whole numbers are")
        elif isinstance(leaf, str):
            require(is_utf8(leaf), f"{path} must be text in UTF-8, not {leaf!r}")
    if kind := _kind_of_named_value(hint):
        what, rows = _named_values()[kind]
        table = {"name": value} if isinstance(value, str) else value
        require(isinstance(table, dict), f"{path} must be a {what}'s name, or a table with its name and options")
        return choose(rows, table, path)
    accepted = _accepts(hint)
    if not accepted(value):
        raise FedmmError(f"{path} must be {_words(hint)}, not {value!r}")
    if isinstance(value, list):
        return tuple(value)
    return float(value) if hint is float else value


def _leaves(value: Any) -> Iterator[Any]:
    """Yield every key and every value inside lists and tables, or the value itself."""
    if isinstance(value, list | tuple | Mapping):
        for entry in (*value, *value.values()) if isinstance(value, Mapping) else value:
            yield from _leaves(entry)
    else:
        yield value


_KINDS_OF_NAMED_VALUES = ("Schedule", "ServerOptimizer", "TargetLoss")
"""Classes whose values are given by name or as a table; as strings, so that reading a site's file needs no torch."""


def _kind_of_named_value(hint: Any) -> str | None:
    kinds = (getattr(kind, "__name__", "") for kind in (hint, *typing.get_args(hint)))
    return next((kind for kind in kinds if kind in _KINDS_OF_NAMED_VALUES), None)


def _named_values() -> dict[str, tuple[str, Mapping[str, type[Any]]]]:
    """Return, by class name, what such a value is called and the table of its classes."""
    from fedmm.algorithms.server_optimizers import SERVER_OPTIMIZERS  # noqa: PLC0415 - torch
    from fedmm.core.schedules import SCHEDULES  # noqa: PLC0415 - torch
    from fedmm.core.target_losses import TARGET_LOSSES  # noqa: PLC0415 - torch

    return {
        "Schedule": ("schedule", SCHEDULES),
        "ServerOptimizer": ("server optimiser", SERVER_OPTIMIZERS),
        "TargetLoss": ("target loss", TARGET_LOSSES),
    }


def _accepts(hint: Any) -> Callable[[Any], bool]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return lambda value: any(_accepts(argument)(value) for argument in arguments)
    if origin is Literal:
        return lambda value: isinstance(value, str) and value in arguments
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return lambda value: isinstance(value, list | tuple) and all(map(_accepts(arguments[0]), value))
        return lambda value: (
            isinstance(value, list | tuple) and len(value) == len(arguments) and all(map(_accepts(arguments[0]), value))
        )
    if origin is not None and issubclass(origin, Mapping):
        return lambda value: isinstance(value, dict) and all(map(_accepts(arguments[1]), value.values()))
    if origin is not None and issubclass(origin, Sequence):
        return lambda value: isinstance(value, list | tuple) and all(map(_accepts(arguments[0]), value))
    if hint is float:
        return lambda value: isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return lambda value: isinstance(value, int) and not isinstance(value, bool)
    assert hint in (bool, str), hint
    return lambda value: isinstance(value, hint)


_PLAIN_WORDS = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
_PLURALS = {float: "numbers", int: "whole numbers", str: "words"}


def _words(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(argument) for argument in arguments)
    if origin is Literal:
        return "one of " + ", ".join(repr(argument) for argument in arguments)
    if origin is tuple:
        count = "" if arguments[-1] is Ellipsis else f"{len(arguments)} "
        return f"a list of {count}{_PLURALS[arguments[0]]}"
    if origin is not None and issubclass(origin, Mapping):
        return f"a table of {_PLURALS.get(arguments[1], 'numbers, words, true and false')}"
    if origin is not None:
        return f"a list of {_PLURALS[arguments[0]]}"
    return _PLAIN_WORDS[hint]
