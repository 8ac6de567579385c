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
    "site.worker": "a site does its work in its one process",
    "superlink.runtime_port": "a site opens no port",
}
"""Keys that older files have, and why nothing needs them any more."""


@dataclass(frozen=True)
class SiteSection:
    """``[site]``. name: as the server knows it. state: the folder for its states and its copy of the rows.

    threads: of torch; 0 as the experiment says. depth: how many rounds' states are kept.
    descriptions: by how many different categories, dates and ranges it describes its table.
    """

    section: ClassVar[str] = "site"

    name: str
    state: str = "state"
    threads: int = 0
    depth: int = 2
    descriptions: int = 20

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "site.name must say what the site is called")
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
    """``[data]``. kind: ``share``, the site's share of the experiment's data set; ``npz``, a file with ``source_x``,
    ``source_y`` and ``target_x``, or some of them; ``images``, a folder of pictures, sorted into class folders where
    they are labelled; ``table``, a text, Parquet or Excel file with a row for each example.

    path: the file or folder. domain: what the rows are: ``source`` (labelled), ``target`` (labels are never read) or
    ``both``. labels: the classes that the site holds, checked where they are given. stored_size: pixels of a picture's
    side. skip_bad: leave out files that are no pictures. validation_rows: how many labelled rows are kept from
    training, to measure models on.

    Tables: features: the columns that may be learnt from, as the experiment calls them. rename: what the experiment
    calls columns of another name. label: the column of classes, never read for ``target``; in ``both``, rows without
    label are the target. classes: the class of each label, if that is not the label itself. id: the column that says
    whose a row is: the rows of one are all trained on, or none. drop: columns that are not looked at. Both are called
    as in the file. separator and the others: how the file is written, as in the data set ``table``.
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
            "data.validation_rows is for labelled rows of the site's own, npz or images; of a share, the experiment's "
            "data set says which rows are set aside",
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
        require(self.label not in self.features, f"data.features names the column of labels, {self.label!r}")
        for key, names in (("id", (self.id,)), ("drop", self.drop)):
            learnt = [name for name in names if name and self.rename.get(name, name) in self.features]
            listed = ", ".join(map(repr, learnt))
            require(not learnt, f"data.{key} names {listed}, which data.features lists; take it out there")
            labels = bool(self.label) and self.label in names
            require(not labels, f"data.{key} names the column of labels, {self.label!r}")
        require(self.id not in self.drop, f"data.drop names the column of data.id, {self.id!r}")
        require(not (self.columns and self.header), "data.columns is for files without a header; set header = false")
        require(len(self.separator) == 1, f"data.separator must be one letter, not {self.separator!r}")


_TABLE_KEYS = slice([key.name for key in fields(DataSection)].index("features"), None)


@dataclass(frozen=True)
class SuperLinkSection:
    """``[superlink]``. address: host:port. certificate: of the authority that signed the SuperLink's. key: the node's
    private key. client_certificate: for that key, shown to a proxy that asks for one. coordinator: the public key of
    whoever signs the server's messages. insecure: plain text, on this machine alone.
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
    """``[policy]``: what the site's owner lets an experiment of the server do here. What is not allowed is refused.

    allow_imports: modules and functions that an experiment may name, as in :func:`fedmm.allow_import`; no other list
        counts at a site.
    allow_paths: files and folders that an experiment may name, letter by letter.
    min_batch_size: rows of each domain in a batch. min_local_steps: steps between two updates.
    min_rows: no update of a model that was trained on fewer rows of a domain leaves, and no sum over fewer.
    max_rounds, max_questions: that the site ever answers, over all runs; both are counted in its audit log.
    max_epsilon: that all rounds ever answered spend together, at delta; below infinity, experiments need noise.
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
    """``[masks]``. peers: a folder with the public key NAME.pub of every other site, as its owner was given it by them;
    with one, the site's updates are for masked sums alone. least: of how many updates a sum has to be.
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
        """A path of the file."""
        return (self.file.parent / Path(given).expanduser()).resolve()

    @property
    def state(self) -> Path:
        """The folder of everything that the site keeps."""
        return self.path(self.site.state)

    @property
    def audit(self) -> Path:
        """The site's audit log."""
        return self.state / "audit.jsonl"

    @property
    def lock_file(self) -> Path:
        """What the process that works with the site's state holds locked."""
        return self.state / "site.lock"

    def lock(self) -> AbstractContextManager[object]:
        """Be the one process that works with the site's state; refused while another one does."""
        return hold_lock(self.lock_file, f"the site with its state in {self.state} is already running; stop it first")


def read_site(file: Path) -> SiteConfig:
    """A site's file, checked."""
    tables = read_toml(file)
    sections = (SiteSection, DataSection, SuperLinkSection, PolicySection, MasksSection)
    known = [kind.section for kind in sections]
    for name in tables:
        if name not in known:
            raise unknown(f"section of {file}", name, known)
    _move_min_rows(tables)
    return SiteConfig(file.resolve(), *(_read_section(kind, tables.get(kind.section, {})) for kind in sections))


def _move_min_rows(tables: dict[str, Any]) -> None:
    """``site.min_rows`` is an older name of ``policy.min_rows``."""
    site, policy = tables.get("site"), tables.setdefault("policy", {})
    if isinstance(site, dict) and isinstance(policy, dict) and "min_rows" in site:
        older = site.pop("min_rows")
        newer = policy.setdefault("min_rows", older)
        require(
            newer == older,
            f"site.min_rows = {older!r} is an older name of policy.min_rows, which is {newer!r}; leave one of them out",
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, and no other can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_loopback(host: str, what: str) -> None:
    """Refuse what no other machine may reach: plain text, and a SuperLink that anyone can hand runs to."""
    here = is_loopback(host.strip("[]"))
    require(here, f"{what} is only for this machine (127.0.0.1), not for {host!r}")


def _read_section(kind: Any, table: Any) -> Any:
    section = kind.section
    require(isinstance(table, Mapping), f"{section} must be a section of its own: [{section}]")
    for key in table:
        why = _GONE.get(f"{section}.{key}")
        require(why is None, f"{section}.{key} is gone: {why}; take the line out")
    return kind(**read_fields(kind, table, section))
