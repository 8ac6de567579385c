"""Differences between a site and its server: their clocks, and the versions of their packages. Needs no torch."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from importlib.metadata import PackageNotFoundError, version

from fedmm._version import __version__

NOTICED = 2.0
"""Seconds up to which clocks count as equal: the Date header has whole seconds, and an answer takes some time."""


def clock_difference(server: str | datetime.datetime | None, local: datetime.datetime | None = None) -> float | None:
    """Return the seconds by which this machine's clock is ahead of a server's; None if the server's time is unknown.

    server: its time, or the ``Date`` header of its answer. local: this machine's time when the answer came; now by
    default. Times without a zone are UTC.
    """
    if isinstance(server, str):
        try:
            server = parsedate_to_datetime(server)
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
    if server is None:
        return None
    return (_utc(local or datetime.datetime.now(datetime.UTC)) - _utc(server)).total_seconds()


def clock_problem(server: str | datetime.datetime | None, local: datetime.datetime | None = None) -> str:
    """Return a sentence for a node refused because its clock differs from the SuperLink's; empty if they agree."""
    ahead = clock_difference(server, local)
    if ahead is None or abs(ahead) < NOTICED:
        return ""
    return (
        f"this machine's clock is {_length(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'} the SuperLink's, which "
        "refuses what is signed at another time than its own: set the clock that is wrong (`timedatectl` shows it, "
        "`timedatectl set-ntp true` or chrony keeps it right)"
    )


def _utc(time: datetime.datetime) -> datetime.datetime:
    return time.replace(tzinfo=datetime.UTC) if time.tzinfo is None else time


def _length(seconds: float) -> str:
    for unit, size in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


_LONGEST = 40


def versions() -> dict[str, str]:
    """Return the versions of the packages that determine results and how messages travel."""
    return {"fedmm": __version__, "torch": _version("torch"), "flwr": _version("flwr")}


def difference(theirs: object, whose: str, ours: Mapping[str, str] | None = None) -> str:
    """Return a sentence if another machine's versions, in JSON as it sent them, differ from ours; otherwise empty."""
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
