"""Set up, start and stop a federation on one machine: its SuperLink, keys and sites."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import is_name, parse_toml, write_text
from fedmm.deploy import processes
from fedmm.deploy.flower_commands import (
    CONNECTION,
    environment,
    flwr,
    superlink_command,
    write_app,
    write_connection,
)  # fmt: skip
from fedmm.deploy.layout import Federation, Settings, read_settings
from fedmm.deploy.processes import Started
from fedmm.sites.config import require_loopback
from fedmm.sites.credentials.files import AUTHORITY, is_host, require_private_keys

SUPERLINK = "superlink"
_LAST_PORT = 65535


@dataclass(frozen=True)
class LocalSite:
    """A site to start on this machine: its name, ``[data]`` and ``[policy]`` of its file, more of ``[site]``.

    masked: it takes part in masked sums, and knows the other sites by their keys on this machine.
    """

    name: str
    data: Mapping[str, Any]
    policy: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False


def up(
    federation: Federation,
    sites: Sequence[LocalSite],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    insecure: bool = False,
    in_memory: bool = False,
    to_a_process: int = 1,
    say: Say = lambda line: None,
) -> Settings:
    """Make certificates and keys, and start the SuperLink and the sites; stop all of them if that fails.

    Whoever reaches a SuperLink's port can submit runs, so it listens on this machine only.
    """
    require_loopback(host, "a SuperLink without a proxy in front of it")
    require(
        not [process for process in processes.load(federation.processes) if process.alive],
        f"the federation in {federation.folder} is already up; `fedmm deploy down` stops it",
    )
    names = [site.name for site in sites]
    made = prepare(federation, port or _free_port(), names, host=host, insecure=insecure, in_memory=in_memory)
    for path in (federation.logs, federation.sites):
        path.mkdir(parents=True, exist_ok=True)
    for site in sites:
        _write_site(federation, site, made)
    try:
        start_superlink(federation, say)
        if not insecure:
            register(federation, say)
        start_sites(federation, made.sites, say, to_a_process)
    except BaseException:  # also on Ctrl-C
        down(federation)
        raise
    return made


def prepare(
    federation: Federation,
    port: int,
    sites: Sequence[str],
    *,
    host: str = "127.0.0.1",
    known_as: Sequence[str] = (),
    insecure: bool = False,
    in_memory: bool = False,
) -> Settings:
    """Make a federation's folder: certificates, a key for each of these sites, Flower's connection to the SuperLink.

    known_as: the hosts by which other machines reach it, for the certificate. Sites on other machines make their own
    keys; only the public part goes into ``keys/``.
    """
    require(1 <= port <= _LAST_PORT, f"the port must be from 1 to {_LAST_PORT}, not {port}")
    for name in sites:
        require(
            is_name(name + ".pub") and name.isprintable(),
            f"a site's key file has the site's name, so the name cannot be {name!r}",
        )
    hosts = [*known_as, host, *(name for name in ("127.0.0.1", "localhost") if name != host)]
    for name in hosts:
        require(is_host(name), f"{name!r} is not a host name or address")
    made = Settings(host, port, insecure, tuple(sites), in_memory)
    try:
        federation.folder.mkdir(parents=True, exist_ok=True)
        federation.folder.chmod(0o700)
        write_text(federation.about, json.dumps(asdict(made)) + "\n")
        if not insecure:
            from fedmm.sites.credentials.certificates import make_certificates  # noqa: PLC0415 - needs the extra
            from fedmm.sites.credentials.keys import make_node_key  # noqa: PLC0415 - needs the extra

            make_certificates(federation.certificates, hosts)
            make_node_key(federation.coordinator)
            federation.keys.mkdir(exist_ok=True)
            for name in sites:
                make_node_key(federation.keys / name)
        write_connection(federation, made.address, insecure)
        write_app(federation)
    except (OSError, UnicodeError) as problem:
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise FedmmError(f"a federation cannot be made in {federation.folder}: {reason}") from problem
    return made


def start_superlink(federation: Federation, say: Say) -> None:
    """Start the SuperLink and wait until it listens."""
    made = read_settings(federation)
    require(not answers(made), f"another process listens at {made.address}; stop it, or choose another port")
    require_private_keys(federation.certificates, federation.keys)
    log = federation.logs / f"{SUPERLINK}.log"
    env = environment(federation.flower, **{processes.MARK: str(federation.folder.resolve())})
    command = superlink_command(federation, made.host, made.port, insecure=made.insecure, in_memory=made.in_memory)
    started = processes.start(SUPERLINK, command, log, env)
    others = [process for process in processes.load(federation.processes) if process.name != SUPERLINK]
    processes.save(federation.processes, [started, *others])
    _wait(partial(answers, made), started, 60.0, "the SuperLink did not start", log)
    say(f"SuperLink at {made.address}{' in plain text' if made.insecure else ''}; log {log}")


def start_sites(federation: Federation, names: Sequence[str], say: Say, to_a_process: int = 1) -> None:
    """Start sites, ``to_a_process`` in each process, and wait until all have joined."""
    env = environment(federation.flower, **{processes.MARK: str(federation.folder.resolve())})
    started: dict[str, tuple[Started, Path]] = {}
    for first in range(0, len(names), to_a_process):
        together = names[first : first + to_a_process]
        log = federation.logs / f"{together[0]}.log"
        log.unlink(missing_ok=True)
        files = [str(federation.sites / f"{name}.toml") for name in together]
        process = processes.start(together[0], [sys.executable, "-m", "fedmm", "deploy", "site", *files], log, env)
        others = [other for other in processes.load(federation.processes) if other.name != together[0]]
        processes.save(federation.processes, [*others, process])
        started |= dict.fromkeys(together, (process, log))
    for name, (process, log) in started.items():
        _wait(partial(_says, log, f"site {name} is node"), process, 120.0, f"{name} did not join", log)
        say(f"site {name} has joined; log {log}")


def register(federation: Federation, say: Say) -> None:
    """Register the nodes' keys, ``keys/NAME.pub``, with the SuperLink; those it knows already stay."""
    for key in sorted(federation.keys.glob("*.pub")):
        try:
            flwr(federation, "supernode", "register", str(key.resolve()), CONNECTION)
            say(f"registered the key {key.name}")
        except FedmmError as problem:
            if not re.search("already|in use|exists", str(problem), re.IGNORECASE):
                raise


def down(federation: Federation) -> int:
    """Stop everything that the federation runs on this machine; return the number of processes."""
    started = processes.load(federation.processes)
    number = processes.stop(started, federation.folder)
    with suppress(OSError):
        federation.processes.unlink()
    return number


def alive(federation: Federation) -> dict[str, bool]:
    """Return which of the federation's processes are running."""
    return {process.name: process.alive for process in processes.load(federation.processes)}


def answers(made: Settings) -> bool:
    """Return whether something listens at the SuperLink's address, whoever started it."""
    try:
        with closing(socket.create_connection((made.host, made.port), timeout=1.0)):
            return True
    except OSError:
        return False


def _write_site(federation: Federation, site: LocalSite, made: Settings) -> None:
    link: dict[str, Any] = {"address": made.address}
    if made.insecure:
        link["insecure"] = True
    else:
        link |= {"certificate": str(federation.certificates.resolve() / AUTHORITY)}
        link |= {"key": str(federation.keys.resolve() / site.name)}
        link |= {"coordinator": f"{federation.coordinator.resolve()}.pub"}
    sections = {
        "site": {**site.site, "name": site.name, "state": f"../state/{site.name}"},
        "data": dict(site.data),
        "superlink": link,
        "policy": _with_older(site.policy, federation.sites / f"{site.name}.toml"),
    }
    if site.masked and not made.insecure:
        sections["masks"] = {"peers": str(federation.keys.resolve())}
    write_text(federation.sites / f"{site.name}.toml", write_toml(sections))


def _with_older(policy: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return a policy merged with the one that somebody wrote into the site's file before."""
    try:
        older = dict(parse_toml(file.read_bytes(), file).get("policy", {}))
    except (OSError, ValueError):
        return dict(policy)
    merged = {
        key: list(dict.fromkeys([*older.get(key, ()), *value])) if isinstance(value, list | tuple) else value
        for key, value in policy.items()
    }
    return {key: value for key, value in {**older, **merged}.items() if value != math.inf}


def _wait(done: Callable[[], bool], process: Started, seconds: float, otherwise: str, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline or not process.alive:
            last = processes.read_log(log).strip().rpartition("\n")[2].removeprefix("error: ")
            raise FedmmError(f"{otherwise}; see {log}" + (f", which ends with: {last}" if last else ""))
        time.sleep(0.1)


def _says(log: Path, words: str) -> bool:
    return words in processes.read_log(log)


def _free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
