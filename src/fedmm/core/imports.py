"""Import of code that a file names: an experiment, a run folder or a job may name code, and only the user can allow it.

The allowed names are in an environment variable, which all processes started from this one inherit, and in the user's
own configuration file. Nothing in an experiment, a run folder or the current folder adds to them. A site that works on
somebody else's experiment has its own list instead (:func:`only_allowed`).
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from fedmm.core.errors import FedmmError, first_line, require, unknown
from fedmm.core.files import config_folder, parse_toml

ALLOWED = "FEDMM_ALLOW_IMPORT"
"""The environment variable with the allowed names, separated by commas."""

_KEY = "allow_import"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")


class _Only(NamedTuple):
    names: tuple[str, ...]
    remedy: str


_ONLY: ContextVar[_Only | None] = ContextVar("only_allowed", default=None)


def allow_import(*names: str) -> None:
    """Allow experiments and run folders to name these modules, in this process and those it starts.

    Importing a module runs its code, and a backbone ``module:factory`` calls the factory with the file's options. Names
    that are not allowed are refused before anything is imported. Modules are searched for on Python's path, and then in
    the current folder.

    names: ``package.module`` for the functions and classes that it or its submodules define, or
        ``package.module:factory`` for this one only.
    """
    before = _from_environment()
    added = [check_name(name, "allow_import") for name in names]
    if added:
        os.environ[ALLOWED] = ",".join(dict.fromkeys([*before, *added]))


@contextmanager
def only_allowed(names: Sequence[str], remedy: str) -> Iterator[None]:
    """Allow only these names within the context, in this thread; the environment and the user's file add nothing.

    remedy: what an error message suggests to do.
    """
    token = _ONLY.set(_Only(tuple(check_name(name, "allow_imports") for name in names), remedy))
    try:
        yield
    finally:
        _ONLY.reset(token)


def is_covered(name: str, allowed: Sequence[str]) -> bool:
    """Return whether a list of modules and functions allows the import of ``module:attribute``."""
    module, _, attribute = name.partition(":")
    return any(_covers(entry, module, attribute) for entry in allowed)


def allowed_names() -> list[str]:
    """Return the names that the environment and the user's configuration file allow, in this order."""
    return [*_from_environment(), *_from_configuration()]


def configuration_file() -> Path:
    """Return the user's configuration file, whose key ``allow_import`` lists modules that are always allowed."""
    return config_folder() / "config.toml"


def import_allowed(name: str, what: str, *, built_in: Collection[str] = ()) -> Any:
    """Import and return the object that ``module:attribute`` names; if that is not allowed, refuse without importing.

    An allowed module gives access to functions and classes from allowed modules, not to others that it imported, such
    as ``os.system``. what: what the name is for, in an error message. built_in: full names that are always allowed.
    """
    module, _, attribute = name.partition(":")
    require(
        bool(attribute) and _NAME.fullmatch(name) is not None,
        f"{what} {name!r} must have the form 'package.module:factory'",
    )
    only = _ONLY.get()
    found_here = _from_environment() if only is None else list(only.names)
    allowed = [*built_in, *found_here, *(_from_configuration() if only is None else ())]
    remedy = (
        f"if you trust it, allow it with --allow-import {name}, in Python fedmm.allow_import({name!r}), or {_KEY} in "
        f"{configuration_file()}"
    )
    require(
        is_covered(name, allowed),
        f"{what} {name!r} would import {module!r} and run its code, which is not allowed; "
        f"{remedy if only is None else only.remedy}",
    )
    source = _load_module(module, found_here, f"{what} {name!r}")
    found = getattr(source, attribute, None)
    if found is None:
        near = difflib.get_close_matches(attribute, dir(source), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise FedmmError(f"{what} {name!r}: {module} has no {attribute!r}{hint}")
    home = getattr(found, "__module__", None)
    require(
        name in allowed or not callable(found) or any(_covers(entry, str(home), "") for entry in allowed),
        f"{what} {name!r} is defined in {home!r}, which is not allowed; "
        f"{f'if you trust it, allow it with --allow-import {name}' if only is None else only.remedy}",
    )
    return found


def _covers(allowed: str, module: str, attribute: str) -> bool:
    where, _, only = allowed.partition(":")
    if only:
        return (where, only) == (module, attribute)
    return module == where or module.startswith(f"{where}.")


def check_name(name: str, where: str) -> str:
    """Return a name if it is valid in a list of allowed names, and refuse it otherwise. where: the list."""
    require(
        isinstance(name, str) and _NAME.fullmatch(name) is not None,
        f"{where} takes a module such as mypackage.models, or a function as mypackage.models:tower, not {name!r}",
    )
    return name


def _from_environment() -> list[str]:
    return [check_name(name.strip(), ALLOWED) for name in os.environ.get(ALLOWED, "").split(",") if name.strip()]


def _from_configuration() -> list[str]:
    path = configuration_file()
    try:
        table = parse_toml(path.read_bytes(), path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise FedmmError(f"{path} cannot be read: {problem}") from problem
    for key in table:
        if key != _KEY:
            raise unknown(f"key in {path}", key, [_KEY])
    names = table.get(_KEY, [])
    require(isinstance(names, list), f"{_KEY} in {path} must be a list of modules, not {names!r}")
    return [check_name(name, f"{_KEY} in {path}") for name in names]


def _load_module(module: str, from_here: Sequence[str], what: str) -> ModuleType:
    try:
        with _current_folder({name.partition(":")[0].partition(".")[0] for name in from_here}):
            return import_module(module)
    except Exception as problem:
        reason = first_line(problem)[:200]
        raise FedmmError(f"{what}: the module {module!r} cannot be imported: {reason}") from problem


class _InFolder(MetaPathFinder):
    def __init__(self, folder: Path, names: Collection[str]) -> None:
        self._folder, self._names = folder, names

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, [str(self._folder)]) if fullname in self._names else None


@contextmanager
def _current_folder(names: Collection[str]) -> Iterator[None]:
    """Also find modules with these names, and no others, in the current folder, after all other places."""
    finder = _InFolder(Path.cwd(), names)
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
