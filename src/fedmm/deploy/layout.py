"""The layout of a federation's folder, and requests to its server. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.runs.tuning.state import STATE


@dataclass(frozen=True)
class Federation:
    """The folder of a federation on one machine: certificates, keys, sites, logs, runs."""

    folder: Path

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def keys(self) -> Path:
        """Public keys, ``NAME.pub`` for each site; for sites on this machine also the private ones."""
        return self.folder / "keys"

    @property
    def coordinator(self) -> Path:
        """The key that signs the server's messages; ``coordinator.pub`` beside it goes to every site."""
        return self.folder / "coordinator"

    @property
    def invitations(self) -> Path:
        """``NAME.toml`` for each invited site."""
        return self.folder / "invitations"

    @property
    def sites(self) -> Path:
        return self.folder / "sites"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    @property
    def flower(self) -> Path:
        """Flower's home: its configuration and the apps it unpacks."""
        return self.folder / "flower"

    @property
    def app(self) -> Path:
        """The app for the SuperLink: names of modules, no code."""
        return self.folder / "app"

    @property
    def processes(self) -> Path:
        return self.folder / "processes.json"

    @property
    def about(self) -> Path:
        return self.folder / "federation.json"

    @property
    def in_plain_text(self) -> bool:
        """Whether nodes have no keys, because the SuperLink uses plain text."""
        try:
            return bool(json.loads(self.about.read_text(encoding="utf-8"))["insecure"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    def run(self, name: str) -> Path:
        """Return a run's folder."""
        require(
            bool(name) and name not in (".", "..") and not set(name) & set('/\\"\n'),
            f"a run's name becomes a folder's, so it cannot be {name!r}; choose letters, digits and dashes",
        )
        return self.runs / name

    def no_run(self, name: str) -> FedmmError:
        """Return the error for a run that does not exist."""
        known = sorted(path.name for path in self.runs.glob("*"))
        return FedmmError(f"there is no run {name!r} in {self.folder} (known: {', '.join(known) or 'none'})")


@dataclass(frozen=True)
class Settings:
    """How a federation was created: where its SuperLink is, and which sites run on this machine."""

    host: str
    port: int
    insecure: bool
    sites: tuple[str, ...]
    in_memory: bool = False

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


def read_settings(federation: Federation) -> Settings:
    """Read the settings of the federation in a folder."""
    try:
        table = json.loads(federation.about.read_text(encoding="utf-8"))
        sites, in_memory = tuple(table["sites"]), bool(table.get("in_memory", False))
        return Settings(table["host"], table["port"], table["insecure"], sites, in_memory)
    except FileNotFoundError:
        raise FedmmError(f"{federation.folder} holds no federation; `fedmm deploy up` makes one") from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FedmmError(f"{federation.about} cannot be read; remove the folder and create it again") from problem


@dataclass(frozen=True)
class RunRequest:
    """A run to start. federation: the server's folder. name: of the run. experiment: as TOML. resume: continue it.

    patience: seconds that a round waits for its sites. enrol_seconds: that the run waits for them at its start.
    min_sites: how many sites it starts with; the others may join later. 0 for all.
    tuning: a :class:`TuneRequest` as text; empty for a run.
    """

    federation: Path
    name: str
    experiment: str
    resume: bool = False
    patience: float = 600.0
    enrol_seconds: float = 600.0
    min_sites: int = 0
    tuning: str = ""

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Federation(self.federation).run(self.name)

    def run_config(self) -> dict[str, Any]:
        """Return what Flower passes to the server: everything but the server's own folder."""
        values = {name.replace("_", "-"): value for name, value in asdict(self).items() if name != "federation"}
        return {"run": values.pop("name"), **values}

    @classmethod
    def from_run_config(cls, federation: Path, config: Mapping[str, Any]) -> RunRequest:
        """Rebuild the request at the server."""
        return cls(
            federation,
            str(config["run"]),
            str(config["experiment"]),
            bool(config["resume"]),
            float(config["patience"]),
            float(config["enrol-seconds"]),
            int(config.get("min-sites", 0)),
            str(config.get("tuning", "")),
        )


TUNING = "tuning"
"""The folder of a tuning, inside its run's folder."""


def is_tuning(folder: Path) -> bool:
    """Return whether the run in a folder is a tuning that has started."""
    return (folder / TUNING / STATE).exists()


def describe_tuning(folder: Path) -> str:
    """Describe how far a tuning is, from the files in its run's folder."""
    try:
        state = json.loads((folder / TUNING / STATE).read_text(encoding="utf-8"))
        rung, rungs = min(len(state["rungs"]) + 1, len(state["plan"])), len(state["plan"])
    except (OSError, ValueError, KeyError, TypeError):
        return "cannot be read"
    finished = len(list((folder / TUNING / f"rung-{rung}").glob("*/summary.json")))
    return f"{state.get('status')}, rung {rung} of {rungs}, {finished} of its runs finished"


@dataclass(frozen=True)
class TuneRequest:
    """A tuning to start. tables: of the experiment's file, with its ``[tune]``. max_rounds: most that a site answers.

    The others are as in :func:`fedmm.tune`.
    """

    tables: Mapping[str, Any]
    objectives: tuple[str, ...] = ()
    minutes: float | None = None
    seeds: int = 3
    eta: int = 2
    max_rounds: int | None = None
    metric: str = ""

    def text(self) -> str:
        """Return the request as text for the server."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> TuneRequest:
        """Rebuild the request at the server."""
        table = json.loads(text)
        return cls(**{**table, "objectives": tuple(table["objectives"])})
