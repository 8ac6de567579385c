"""What a server tells of its sites while it runs: ``status.json`` in the run's folder, for eyes alone."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from fedmm.core.errors import FedmmError
from fedmm.core.files import write_json

STATUS, VERSION = "status.json", 1


class Sites(Protocol):
    """Where sites are; a roster is one. since: by site, when it came online. connected: who is."""

    names: Any
    since: dict[str, str]
    connected: frozenset[str]


class StatusFile:
    """Writes ``status.json`` after every round, and when a site comes or goes.

    A site's entry: online, since when, and of its last answer the round, the time and the seconds that it took.
    """

    def __init__(self, folder: Path, sites: Sites, rounds: int, round: int = 0) -> None:
        self._path = folder / STATUS
        self._sites = sites
        self._rounds = rounds
        self._round = round
        self._answers: dict[str, dict[str, float]] = {}
        self.write()

    def after_round(self, round: int, timings: Mapping[str, Mapping[str, Any]]) -> None:
        """A round is finished. timings: what those sites that answered say of their time."""
        self._round = round
        for name, about in timings.items():
            handled, trained = (_seconds(about.get(key)) for key in ("handled", "trained"))
            self._answers[name] = {"round": round, "answered": time.time(), "seconds": handled, "training": trained}
        self.write()

    def write(self) -> None:
        """Write what is known now. A disk that takes nothing is no reason to end a run."""
        sites = {
            name: {
                "online": name in self._sites.connected,
                "since": str(self._sites.since.get(name, "")),
                **self._answers.get(name, {}),
            }
            for name in self._sites.names
        }
        about = {"version": VERSION, "updated": time.time(), "round": self._round, "rounds": self._rounds}
        with suppress(FedmmError):
            write_json(self._path, {**about, "sites": sites})


def _seconds(value: object) -> float:
    """A site's own word for it."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return min(max(float(value), 0.0), 1e9) if known else 0.0  # type: ignore[arg-type]
