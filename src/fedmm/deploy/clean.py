"""Find, list and remove what old runs left behind; never keys, secrets, audit logs or models."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from fedmm.core.errors import FedmmError, require
from fedmm.deploy.layout import Federation, read_settings
from fedmm.deploy.run_state import server_pid
from fedmm.sites.config import SiteConfig, read_site

_DAY = 86400.0
_UNPACKED = ("apps", "fab", "cache")
"""Folders in Flower's home to which it unpacks apps."""


@dataclass(frozen=True)
class Leftover:
    """A file or folder that may be removed: what it is, in words, and its size in bytes."""

    path: Path
    what: str
    bytes: int


@dataclass(frozen=True)
class Keeping:
    """What to keep: runs of these names, and everything used in the last ``days`` days."""

    runs: Collection[str] = ()
    days: float = 30.0

    def __post_init__(self) -> None:
        require(0 <= self.days < 1e6, f"--days must be 0 or more, not {self.days:g}")

    def is_old(self, path: Path) -> bool:
        """Return whether nothing in a folder was written in the last ``days`` days."""
        return time.time() - _newest(path) >= self.days * _DAY

    def lets_go(self, run: str, folder: Path) -> bool:
        """Return whether a run's folder may be removed."""
        return run not in self.runs and self.is_old(folder)


def site_leftovers(config: SiteConfig, keeping: Keeping) -> list[Leftover]:
    """Find at a site: the states of old runs, copies of rows not used lately, and unpacked apps."""
    state = config.state
    found = [
        _leftover(folder, f"states of the run {unquote(folder.name)}")
        for folder in _folders(state / "runs")
        if keeping.lets_go(unquote(folder.name), folder)
    ]
    found += [_leftover(folder, "a copy of rows") for folder in _folders(state / "rows") if keeping.is_old(folder)]
    return found + list(_find_unpacked(state / "flower", keeping))


def coordinator_leftovers(federation: Federation, keeping: Keeping) -> list[Leftover]:
    """Find at the coordinator: the checkpoints of old completed runs, and unpacked apps.

    A run that has not completed keeps its checkpoints, so that it can be resumed.
    """
    found = []
    for run in _folders(federation.runs):
        checkpoints = run / "checkpoints"
        if _is_completed(run) and server_pid(run) is None and keeping.lets_go(run.name, run):
            found += [
                _leftover(path, f"checkpoints of the run {run.name}")
                for path in sorted(checkpoints.glob("*"))
                if not path.is_symlink() and (path.name.startswith("round-") or path.name == "parts")
            ]
    return found + list(_find_unpacked(federation.flower, keeping))


def clean_site(config: SiteConfig, keeping: Keeping, *, remove: bool) -> list[Leftover]:
    """Find what is left at a site, and remove it if asked; raise FedmmError while the site is running."""
    require(config.state.is_dir(), f"{config.state} is not a folder: the site has stored nothing yet")
    with config.lock():
        found = site_leftovers(config, keeping)
        return _remove(found) if remove else found


def clean_coordinator(federation: Federation, keeping: Keeping, *, remove: bool) -> list[Leftover]:
    """Find what is left in a coordinator's folder and at this machine's sites, and remove it if asked."""
    read_settings(federation)
    with ExitStack() as held:
        found = coordinator_leftovers(federation, keeping)
        for file in sorted(federation.sites.glob("*.toml")):
            config = read_site(file)
            if config.state.is_dir():
                held.enter_context(config.lock())
                found += site_leftovers(config, keeping)
        return _remove(found) if remove else found


def _remove(found: list[Leftover]) -> list[Leftover]:
    for leftover in found:
        try:
            if leftover.path.is_dir():
                shutil.rmtree(leftover.path)
            else:
                leftover.path.unlink(missing_ok=True)
        except OSError as problem:
            raise FedmmError(f"{leftover.path} cannot be removed: {problem.strerror}") from problem
    return found


def _find_unpacked(home: Path, keeping: Keeping) -> Iterator[Leftover]:
    for name in _UNPACKED:
        for path in _folders(home / name):
            if keeping.is_old(path):
                yield _leftover(path, "an app that Flower unpacked")


def _is_completed(run: Path) -> bool:
    """Return whether a run has completed and its model exists."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        return summary["status"] == "completed" and (run / "model.safetensors").is_file()
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _folders(path: Path) -> list[Path]:
    """Return the folders in a folder, without links."""
    try:
        return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.is_symlink())
    except OSError:
        return []


def _files(path: Path) -> Iterator[os.stat_result]:
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            yield file.lstat()
        except OSError:
            continue


def _newest(path: Path) -> float:
    return max((file.st_mtime for file in _files(path)), default=time.time())


def _leftover(path: Path, what: str) -> Leftover:
    return Leftover(path, what, sum(file.st_blocks * 512 for file in _files(path)))
