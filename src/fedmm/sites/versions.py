"""Versions of what computes: a site and its server that differ may differ in the last bits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from fedmm._version import __version__

_LONGEST = 40


def versions() -> dict[str, str]:
    """Of the packages that decide what is computed here and how messages travel."""
    return {"fedmm": __version__, "torch": _version("torch"), "flwr": _version("flwr")}


def difference(theirs: object, whose: str, ours: Mapping[str, str] | None = None) -> str:
    """One sentence where another machine's versions, as it told them in JSON, are others; else nothing."""
    ours = versions() if ours is None else ours
    try:
        table = json.loads(str(theirs)[:1000])
        found = {name: str(table[name])[:_LONGEST] for name in ours}
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"{whose} does not say which versions it runs"
    others = [f"{name} {found[name]} there, {ours[name]} here" for name in ours if found[name] != ours[name]]
    return f"{whose} runs other versions: {'; '.join(others)}; results may differ in the last bits" if others else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
