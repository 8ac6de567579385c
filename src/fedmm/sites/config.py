"""A site's one TOML file: who it is, where its rows are, and how it reaches the SuperLink. Needs no torch."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from fedmm.config.dataclass_io import read_fields
from fedmm.config.toml import read_toml
from fedmm.core.errors import require, unknown
from fedmm.core.files import DOMAINS, TableKeys, hold_lock
from fedmm.core.imports import check_name

KINDS = ("share", "npz", "images", "table")
_GONE = {
    "site.worker": "a site works in a single process",
    "superlink.runtime_port": "a site opens no port",
}
"""Keys of older files, and why nothing needs them any more."""


@dataclass(frozen=True)
class SiteSection:
    """``[site]``. name: as the server knows it. state: the folder for its states and its copy of the rows.

    threads: torch's; 0 as in the experiment. depth: how many rounds' states are kept.
    descriptions: with how many different sets of categories, dates and ranges it describes its table, at most.
    """

    section: ClassVar[str] = "site"

    name: str
    state: str = "state"
    threads: int = 0
    depth: int = 2
    descriptions: int = 20

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "site.name must not be empty")
        require(self.threads >= 0, f"site.threads must be 0 or more, not {self.threads}")
        require(self.depth >= 2, f"site.depth must be at least 2, not {self.depth}")
        require(self.descriptions >= 0, f"site.descriptions must be 0 or more, not {self.descriptions}")


@dataclass(frozen=True)
class _DataKeys:
    """What the rows are: the first keys of :class:`DataSection`."""

    kind: str = "share"
    path: str = ""
    domain: str = "both"
    labels: tuple[int, ...] = ()
    stored_size: int = 256
    validation_rows: int = 0
    skip_bad: bool = False
    features: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    classes: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    drop: tuple[str, ...] = ()


@dataclass(frozen=True)
class DataSection(TableKeys, _DataKeys):
    """``[data]``: what the site's rows are, and how they are stored.

    kind: ``share``, the site's share of the experiment's data set; ``npz``, a file with ``source_x``, ``source_y`` and
    ``target_x``, or those of its domain; ``images``, a folder of pictures, in class folders if they are labelled;
    ``table``, a text, Parquet or Excel file with one row per example. path: the file or folder. domain: ``source``
    (labelled), ``target`` (labels are never read) or ``both``. labels: the classes that the site has, checked if given.
    stored_size: a picture's side in pixels. skip_bad: leave out files that are not pictures. validation_rows: how many
    labelled rows to keep from training, to evaluate models on.

    Tables: features: the columns that may be learnt from, as the experiment calls them. rename: the experiment's names
    of columns that are called differently here. label: the column of classes, never read for ``target``; in ``both``,
    rows without label are the target. classes: the class of each label, if that is not the label itself. id: the column
    that says whose a row is; rows of one id are all trained on, or none. drop: columns to ignore. Both as named in the
    file. separator and the others: how the file is written, as in the data set ``table``.
    """

    section: ClassVar[str] = "data"

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"data.kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        require(self.domain in DOMAINS, f"data.domain must be one of {', '.join(DOMAINS)}, not {self.domain!r}")
        require(self.kind == "share" or bool(self.path), f"data.path must say where the {self.kind} rows are")
        require(
            self.kind != "images" or self.domain != "both",
            "data.domain must be source or target for a folder of pictures",
        )
        require(not self.skip_bad or self.kind == "images", "data.skip_bad is for data.kind = 'images'")
        require(self.stored_size >= 1, f"data.stored_size must be at least 1, not {self.stored_size}")
        require(self.validation_rows >= 0, f"data.validation_rows must be 0 or more, not {self.validation_rows}")
        require(
            not self.validation_rows or (self.kind != "share" and self.domain != "target"),
            "data.validation_rows is for a site's own labelled rows; for data.kind = 'share', the experiment's data "
            "set says which rows are set aside",
        )
        self._check_table()

    def _check_table(self) -> None:
        if self.kind != "table":
            usual = {key.name: key.default for key in fields(self)[_TABLE_KEYS]}
            given = [name for name in usual if getattr(self, name) not in (usual[name], {})]
            require(not given, f"data.{given[0] if given else ''} is for data.kind = 'table'")
            return
        require(bool(self.features), "data.features must list the columns of the table that may be learnt from")
        require(self.domain == "target" or bool(self.label), "data.label must name the column of classes")
        require(
            self.label not in self.features, f"data.features names the label column, {self.label!r}; remove it there"
        )
        for key, names in (("id", (self.id,)), ("drop", self.drop)):
            learnt = [name for name in names if name and self.rename.get(name, name) in self.features]
            listed = ", ".join(map(repr, learnt))
            require(not learnt, f"data.{key} names {listed}, which data.features lists; remove it there")
            labels = bool(self.label) and self.label in names
            require(not labels, f"data.{key} names the label column, {self.label!r}; remove it there")
        require(self.id not in self.drop, f"data.drop names the column of data.id, {self.id!r}; remove it there")
        require(not (self.columns and self.header), "data.columns is for files without a header; set header = false")
        require(len(self.separator) == 1, f"data.separator must be one character, not {self.separator!r}")


_TABLE_KEYS = slice([key.name for key in fields(DataSection)].index("features"), None)


@dataclass(frozen=True)
class SuperLinkSection:
    """``[superlink]``. address: host:port. certificate: of the authority that signed the SuperLink's. key: the node's
    private key. client_certificate: for that key, shown to a proxy that asks for one. coordinator: the public key of
    whoever signs the server's messages. insecure: plain text, on this machine only.
    """

    section: ClassVar[str] = "superlink"

    address: str
    certificate: str = ""
    key: str = ""
    coordinator: str = ""
    client_certificate: str = ""
    insecure: bool = False

    def __post_init__(self) -> None:
        host, colon, port = self.address.rpartition(":")
        right = bool(colon and host) and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535
        require(right, f"superlink.address must be host:port, not {self.address!r}")
        if self.insecure:
            require_loopback(host, "plain text (insecure = true)")
        else:
            require(
                bool(self.certificate and self.key and self.coordinator),
                "superlink.certificate, superlink.key and superlink.coordinator must name files; on a single "
                "machine, insecure = true needs none",
            )


@dataclass(frozen=True)
class PolicySection:
    """``[policy]``: what the site's owner lets the server's experiments do here. Anything else is refused.

    allow_imports: modules and functions, as in :func:`fedmm.allow_import`; no other list counts at a site.
    allow_paths: files and folders that an experiment may name, in exactly these words.
    min_batch_size: rows of each domain in a batch. min_local_steps: steps between two updates.
    min_rows: the least number of a domain's rows behind an update that leaves the site, and of rows behind a sum.
    max_rounds, max_questions: the most that the site ever answers, over all runs, as counted in its audit log.
    max_epsilon: the most that all rounds ever answered spend together, at delta; if finite, experiments need noise.
    require_approval: whether only experiments that the owner approved are answered.
    """

    section: ClassVar[str] = "policy"

    allow_imports: tuple[str, ...] = ()
    allow_paths: tuple[str, ...] = ()
    min_batch_size: int = 8
    min_local_steps: int = 2
    min_rows: int = 20
    max_rounds: int = 1000
    max_questions: int = 5000
    max_epsilon: float = math.inf
    delta: float = 1e-5
    require_approval: bool = False

    def __post_init__(self) -> None:
        for allowed in self.allow_imports:
            check_name(allowed, "policy.allow_imports")
        for name in ("min_batch_size", "min_local_steps", "min_rows"):
            require(getattr(self, name) >= 1, f"policy.{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_rounds", "max_questions"):
            require(getattr(self, name) >= 0, f"policy.{name} must be 0 or more, not {getattr(self, name)}")
        require(self.max_epsilon > 0, f"policy.max_epsilon must be above 0, not {self.max_epsilon}")
        require(0 < self.delta < 1, f"policy.delta must be between 0 and 1, not {self.delta}")


@dataclass(frozen=True)
class MasksSection:
    """``[masks]``. peers: a folder with the public key NAME.pub of every other site, received from those sites; with
    it, the site's updates go into masked sums only. least: the least number of updates in a sum.
    """

    section: ClassVar[str] = "masks"

    peers: str = ""
    least: int = 3

    def __post_init__(self) -> None:
        require(self.least >= 2, f"masks.least must be at least 2, not {self.least}: a sum of one hides nothing")


@dataclass(frozen=True)
class SiteConfig:
    """A site's file; paths in it are relative to the file."""

    file: Path
    site: SiteSection
    data: DataSection
    superlink: SuperLinkSection
    policy: PolicySection = field(default=PolicySection())
    masks: MasksSection = field(default=MasksSection())

    def __post_init__(self) -> None:
        kept, least = self.data.validation_rows, self.policy.min_rows
        require(
            not kept or kept >= least,
            f"data.validation_rows must be 0 or at least policy.min_rows ({least}), not {kept}: nothing would be "
            "measured on fewer",
        )

    def path(self, given: str) -> Path:
        """Resolve a path given in the file."""
        return (self.file.parent / Path(given).expanduser()).resolve()

    @property
    def state(self) -> Path:
        """The folder of everything the site stores."""
        return self.path(self.site.state)

    @property
    def audit(self) -> Path:
        """The site's audit log."""
        return self.state / "audit.jsonl"

    @property
    def lock_file(self) -> Path:
        """The file locked by the process that works with the site's state."""
        return self.state / "site.lock"

    def lock(self) -> AbstractContextManager[object]:
        """Lock the site's state for this process; raise FedmmError if another process has locked it."""
        return hold_lock(self.lock_file, f"the site with its state in {self.state} is already running; stop it first")


def read_site(file: Path) -> SiteConfig:
    """Read and check a site's file."""
    tables = read_toml(file)
    sections = (SiteSection, DataSection, SuperLinkSection, PolicySection, MasksSection)
    known = [kind.section for kind in sections]
    for name in tables:
        if name not in known:
            raise unknown(f"section of {file}", name, known)
    _move_min_rows(tables)
    return SiteConfig(file.resolve(), *(_read_section(kind, tables.get(kind.section, {})) for kind in sections))


def _move_min_rows(tables: dict[str, Any]) -> None:
    """Accept ``site.min_rows``, an older name of ``policy.min_rows``."""
    site, policy = tables.get("site"), tables.setdefault("policy", {})
    if isinstance(site, dict) and isinstance(policy, dict) and "min_rows" in site:
        older = site.pop("min_rows")
        newer = policy.setdefault("min_rows", older)
        require(
            newer == older,
            f"site.min_rows = {older!r} is the old name of policy.min_rows, which is {newer!r}; remove one of them",
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, unreachable from any other."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_loopback(host: str, what: str) -> None:
    """Raise FedmmError unless the host is loopback: for plain text, or a SuperLink that anyone can submit runs to."""
    here = is_loopback(host.strip("[]"))
    require(here, f"{what} is only for this machine (127.0.0.1), not for {host!r}")


def _read_section(kind: Any, table: Any) -> Any:
    section = kind.section
    require(isinstance(table, Mapping), f"{section} must be a section of its own: [{section}]")
    for key in table:
        why = _GONE.get(f"{section}.{key}")
        require(why is None, f"{section}.{key} is no longer used: {why}; remove the line")
    return kind(**read_fields(kind, table, section))
