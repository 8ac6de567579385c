"""A site's one TOML file: who it is, where its rows are, and how it reaches the SuperLink. Needs no torch."""

from __future__ import annotations

import ipaddress
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, get_type_hints

from fedmm.core.errors import FedmmError, require, unknown

KINDS = ("share", "npz", "images")
DOMAINS = ("source", "target", "both")
_GONE = {"site": {"worker"}, "superlink": {"runtime_port"}}
"""Keys that older files have, and that nothing needs any more."""


@dataclass(frozen=True)
class SiteSection:
    """``[site]``. name: as the server knows it. state: the folder for its states and its copy of the rows.

    threads: of torch; 0 as the experiment says. depth: how many rounds' states are kept.
    min_rows: sums over fewer rows, for measures of a model, do not leave the site; more than it holds: none ever do.
    """

    section: ClassVar[str] = "site"

    name: str
    state: str = "state"
    threads: int = 0
    depth: int = 2
    min_rows: int = 20

    def __post_init__(self) -> None:
        require(bool(self.name.strip()), "site.name must say what the site is called")
        require(self.threads >= 0, f"site.threads must be 0 or more, not {self.threads}")
        require(self.depth >= 2, f"site.depth must be at least 2, not {self.depth}")
        require(self.min_rows >= 1, f"site.min_rows must be at least 1, not {self.min_rows}")


@dataclass(frozen=True)
class DataSection:
    """``[data]``. kind: ``share``, the site's share of the experiment's data set; ``npz``, a file with ``source_x``,
    ``source_y`` and ``target_x``, or some of them; ``images``, a folder of pictures, sorted into class folders where
    they are labelled.

    path: the file or folder. domain: what the rows are: ``source`` (labelled), ``target`` (labels are never read) or
    ``both``. labels: the classes that the site holds, checked where they are given. stored_size: pixels of a picture's
    side. skip_bad: leave out files that are no pictures. validation_rows: how many labelled rows are kept from
    training, to measure models on.
    """

    section: ClassVar[str] = "data"

    kind: str = "share"
    path: str = ""
    domain: str = "both"
    labels: tuple[int, ...] = ()
    stored_size: int = 256
    validation_rows: int = 0
    skip_bad: bool = False

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


@dataclass(frozen=True)
class SuperLinkSection:
    """``[superlink]``. address: host:port. certificate: of the authority that signed the SuperLink's. key: the node's
    private key. coordinator: the public key of whoever signs the server's messages. insecure: plain text, on this
    machine alone.
    """

    section: ClassVar[str] = "superlink"

    address: str
    certificate: str = ""
    key: str = ""
    coordinator: str = ""
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
                "superlink.certificate, superlink.key and superlink.coordinator must name files; on one machine alone, "
                "insecure = true does without",
            )


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
    masks: MasksSection = MasksSection()

    def __post_init__(self) -> None:
        kept = self.data.validation_rows
        require(
            not kept or kept >= self.site.min_rows,
            f"data.validation_rows must be 0 or at least site.min_rows ({self.site.min_rows}), not {kept}: nothing "
            "would be measured on fewer",
        )

    def path(self, given: str) -> Path:
        """A path of the file."""
        return (self.file.parent / Path(given).expanduser()).resolve()

    @property
    def state(self) -> Path:
        """The folder of everything that the site keeps."""
        return self.path(self.site.state)


def read_site(file: Path) -> SiteConfig:
    """A site's file, checked."""
    try:
        tables = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FedmmError(f"there is no file {file}") from None
    except (OSError, ValueError) as problem:
        raise FedmmError(f"{file} cannot be read as TOML: {problem}") from problem
    sections = (SiteSection, DataSection, SuperLinkSection, MasksSection)
    for name in tables:
        if name not in (each.section for each in sections):
            raise unknown(f"section of {file}", name, [each.section for each in sections])
    site, data, superlink, masks = (_built(each, tables.get(each.section, {})) for each in sections)
    return SiteConfig(file.resolve(), site, data, superlink, masks)


def require_loopback(host: str, what: str) -> None:
    """Refuse what no other machine may reach: plain text, and a SuperLink that anyone can hand runs to."""
    try:
        here = host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        here = False
    require(here, f"{what} is for this machine alone (127.0.0.1), not for {host!r}")


def _built(kind: Any, table: Any) -> Any:
    section = kind.section
    require(isinstance(table, Mapping), f"{section} must be a section of its own: [{section}]")
    table = {key: value for key, value in table.items() if key not in _GONE.get(section, ())}
    hints, known = get_type_hints(kind), {field.name: field for field in fields(kind)}
    for key, value in table.items():
        if key not in known:
            raise unknown(f"key in [{section}]", key, known)
        wanted = list if known[key].type == "tuple[int, ...]" else hints[key]
        right = isinstance(value, wanted) and (wanted is bool or not isinstance(value, bool))
        right = right and (wanted is not list or all(type(each) is int for each in value))
        words = {str: "text", int: "a whole number", bool: "true or false", list: "a list of whole numbers"}[wanted]
        require(right, f"{section}.{key} must be {words}, not {value!r}")
    for name in ("name", "address"):
        require(name not in known or name in table, f"{section}.{name} is missing")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in table.items()})
