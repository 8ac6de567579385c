"""A federation on one machine: up, run, status, resume, down."""

from __future__ import annotations

import json
import math
import re
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, require
from fedmm.core.paths import is_name
from fedmm.deploy import processes
from fedmm.deploy.flower_commands import (
    CONNECTION,
    environment,
    flwr,
    run_config,
    superlink_command,
    write_app,
    write_connection,
)  # fmt: skip
from fedmm.deploy.layout import Federation
from fedmm.deploy.processes import Started
from fedmm.deploy.run_lock import end_driver
from fedmm.sites.config import require_loopback
from fedmm.sites.credentials.files import AUTHORITY, is_host, require_private_keys

SUPERLINK = "superlink"
SERVICE = "fedmm-superlink"
"""The unit in ``deploy/systemd``."""
SUBMITTED, RUN_CONFIG = "submitted.toml", "run-config.toml"
_FINISHED = "finished"
_LAST_PORT = 65535

Say = Callable[[str], None]


@dataclass(frozen=True)
class Opened:
    """What a federation was opened with: where its SuperLink is, and which sites run on this machine."""

    host: str
    port: int
    insecure: bool
    sites: tuple[str, ...]
    in_memory: bool = False

    @property
    def address(self) -> str:
        """host:port."""
        return f"{self.host}:{self.port}"


@dataclass(frozen=True)
class LocalSite:
    """A site to be started on this machine: its name, ``[data]`` and ``[policy]`` of its file, more of ``[site]``.

    masked: it takes part in masked sums, and knows the other sites by the keys that are on this machine.
    """

    name: str
    data: Mapping[str, Any]
    policy: Mapping[str, Any] = field(default_factory=dict)
    site: Mapping[str, Any] = field(default_factory=dict)
    masked: bool = False


def opened(federation: Federation) -> Opened:
    """A federation that was made in a folder."""
    try:
        table = json.loads(federation.about.read_text(encoding="utf-8"))
        sites, in_memory = tuple(table["sites"]), bool(table.get("in_memory", False))
        return Opened(table["host"], table["port"], table["insecure"], sites, in_memory)
    except FileNotFoundError:
        raise FedmmError(f"{federation.folder} holds no federation; `fedmm deploy up` makes one") from None
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise FedmmError(f"{federation.about} cannot be read; remove the folder and make it anew") from problem


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
) -> Opened:
    """Make certificates and keys, and start the SuperLink and the sites; all are ended again where that fails.

    Whoever reaches a SuperLink's port can hand it runs: it listens on this machine alone.
    """
    require_loopback(host, "a SuperLink without a proxy before it")
    require(
        not [each for each in processes.load(federation.processes) if each.alive],
        f"the federation in {federation.folder} is already up; `fedmm deploy down` ends it",
    )
    names = [site.name for site in sites]
    made = prepare(federation, port or _free_port(), names, host=host, insecure=insecure, in_memory=in_memory)
    for path in (federation.logs, federation.sites):
        path.mkdir(parents=True, exist_ok=True)
    for site in sites:
        _write_site(federation, site, made)
    with _ended_on_failure(federation):
        start_superlink(federation, say)
        if not insecure:
            register(federation, say)
        start_sites(federation, made.sites, say, to_a_process)
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
) -> Opened:
    """Make a federation's folder: certificates, a key for each of these sites, and how Flower reaches the SuperLink.

    known_as: the hosts by which sites elsewhere reach it, for the certificate. Sites on other machines make their own
    keys, of which only the public part comes into ``keys/``.
    """
    require(1 <= port <= _LAST_PORT, f"the port must be from 1 to {_LAST_PORT}, not {port}")
    for name in sites:
        require(is_name(name + ".pub") and name.isprintable(), f"a site's key is named as it, so it cannot be {name!r}")
    hosts = [*known_as, host, *_loopback_names(host)]
    for each in hosts:
        require(is_host(each), f"{each!r} is no host's name or address")
    made = Opened(host, port, insecure, tuple(sites), in_memory)
    try:
        federation.folder.mkdir(parents=True, exist_ok=True)
        federation.folder.chmod(0o700)
        federation.about.write_text(json.dumps(asdict(made)) + "\n", encoding="utf-8")
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
    made = opened(federation)
    require(not answers(made), f"another process listens at {made.address}; end it, or choose another port")
    require_private_keys(federation.certificates, federation.keys)
    log = federation.logs / f"{SUPERLINK}.log"
    env = environment(federation.flower, **{processes.MARK: str(federation.folder.resolve())})
    command = superlink_command(federation, made.host, made.port, insecure=made.insecure, in_memory=made.in_memory)
    started = processes.start(SUPERLINK, command, log, env)
    others = [each for each in processes.load(federation.processes) if each.name != SUPERLINK]
    processes.save(federation.processes, [started, *others])
    _wait(partial(answers, made), started, 60.0, "the SuperLink did not start", log)
    say(f"SuperLink at {made.address}{' in plain text' if made.insecure else ''}; log {log}")


def start_sites(federation: Federation, names: Sequence[str], say: Say, to_a_process: int = 1) -> None:
    """Start sites, so many to a process, and wait until all have joined."""
    env = environment(federation.flower, **{processes.MARK: str(federation.folder.resolve())})
    started: dict[str, tuple[Started, Path]] = {}
    for first in range(0, len(names), to_a_process):
        together = names[first : first + to_a_process]
        log = federation.logs / f"{together[0]}.log"
        log.unlink(missing_ok=True)
        files = [str(federation.sites / f"{name}.toml") for name in together]
        process = processes.start(together[0], [sys.executable, "-m", "fedmm", "deploy", "site", *files], log, env)
        others = [each for each in processes.load(federation.processes) if each.name != together[0]]
        processes.save(federation.processes, [*others, process])
        started |= dict.fromkeys(together, (process, log))
    for name, (process, log) in started.items():
        joined = partial(_says, log, f"site {name} is node")
        _wait(joined, process, 120.0, f"{name} did not join", log)
        say(f"site {name} has joined; log {log}")


def register(federation: Federation, say: Say) -> None:
    """Tell the SuperLink the keys of its nodes, ``keys/NAME.pub``; those that it knows already stay."""
    for key in sorted(federation.keys.glob("*.pub")):
        try:
            flwr(federation, "supernode", "register", str(key.resolve()), CONNECTION)
            say(f"registered the key {key.name}")
        except FedmmError as problem:
            if not re.search("already|in use|exists", str(problem), re.IGNORECASE):
                raise


def down(federation: Federation) -> int:
    """End everything that the federation runs on this machine; how many processes there were."""
    started = processes.load(federation.processes)
    number = processes.stop(started, federation.folder)
    with suppress(OSError):
        federation.processes.unlink()
    return number


def alive(federation: Federation) -> dict[str, bool]:
    """Which of the federation's processes run."""
    return {each.name: each.alive for each in processes.load(federation.processes)}


def answers(made: Opened) -> bool:
    """Whether a SuperLink listens where the federation's is, whoever started it."""
    try:
        with closing(socket.create_connection((made.host, made.port), timeout=1.0)):
            return True
    except OSError:
        return False


# Runs -----------------------------------------------------------------------------------------------------------------


def submit(
    federation: Federation,
    name: str,
    experiment: str,
    *,
    resume: bool,
    patience: float,
    enrol_seconds: float,
    min_sites: int = 0,
    say: Say,
) -> int:
    """Hand a run to the SuperLink; Flower's number for it. min_sites: with how many it begins; 0 for all."""
    made = opened(federation)
    require(answers(made), f"no SuperLink answers at {made.address}; {_how_to_start(federation)}")
    require_private_keys(federation.certificates, federation.keys)
    folder = federation.run(name)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUBMITTED).write_text(experiment, encoding="utf-8")
    file = run_config(
        folder / RUN_CONFIG,
        {
            "run": name,
            "experiment": experiment,
            "resume": resume,
            "patience": patience,
            "enrol-seconds": enrol_seconds,
            "min-sites": min_sites,
        },
    )
    answer = flwr(federation, "run", str(federation.app.resolve()), CONNECTION, "--run-config", str(file.resolve()))
    number = int(answer["run-id"])
    with (folder / "flower-runs.txt").open("a", encoding="utf-8") as listed:
        listed.write(f"{number}\n")
    say(f"run {name} is Flower's run {number}; rounds and log in {folder}")
    return number


def resume(federation: Federation, name: str, *, patience: float, say: Say) -> int:
    """Go on with a run as a new one of Flower's: a server that is still at work on it is ended, a SuperLink that is
    dead is started again. Flower's number for it.
    """
    folder = federation.run(name)
    try:
        text = (folder / SUBMITTED).read_text(encoding="utf-8")
    except OSError:
        known = sorted(path.name for path in (federation.folder / "runs").glob("*"))
        raise FedmmError(
            f"there is no run {name!r} in {federation.folder} (known: {', '.join(known) or 'none'})"
        ) from None
    if end_driver(folder):
        say("the server that was at work on the run has been ended")
    if not alive(federation).get(SUPERLINK, True):  # one that was started here
        start_superlink(federation, say)
    return submit(
        federation, name, text,
        resume=True, patience=patience, enrol_seconds=patience, min_sites=_min_sites(folder), say=say,
    )  # fmt: skip


def _min_sites(folder: Path) -> int:
    """With how many sites a run was to begin."""
    try:
        return int(tomllib.loads((folder / RUN_CONFIG).read_text(encoding="utf-8")).get("min-sites", 0))
    except (OSError, ValueError, TypeError):
        return 0


def follow(federation: Federation, name: str, number: int, on_line: Say, pause: float = 1.0) -> str:
    """Tell what the server says until the run is over; how it ended, in Flower's words."""
    log = federation.run(name) / "server.log"
    place = log.stat().st_size if log.exists() else 0
    looked = time.monotonic()
    while True:
        place = _told(log, place, on_line)
        if _over(federation, name) or time.monotonic() - looked > 20.0:
            looked = time.monotonic()
            require(answers(opened(federation)), _died(federation, name))
            status = run_status(federation, number)
            if status.startswith(_FINISHED):
                _told(log, place, on_line)
                return status
        if not alive(federation).get(SUPERLINK, True):
            raise FedmmError(_died(federation, name))
        time.sleep(pause)


def run_status(federation: Federation, number: int) -> str:
    """What Flower says of a run, such as ``running`` or ``finished:completed``."""
    answer = flwr(federation, "list", CONNECTION, "--run-id", str(number))
    runs = answer.get("runs") or [{}]
    return str(runs[0].get("status", "unknown"))


def stop_run(federation: Federation, number: int) -> None:
    """End a run; what it has finished stays on disk."""
    with suppress(FedmmError):
        flwr(federation, "stop", str(number), CONNECTION)


def _died(federation: Federation, name: str) -> str:
    going_on = f"`fedmm deploy resume {name} --federation {federation.folder}` goes on with the run"
    if _started_here(federation):
        return f"the SuperLink has died; {going_on}"
    return f"the SuperLink has died; {_how_to_start(federation)}; then {going_on}"


def _started_here(federation: Federation) -> bool:
    """Whether the federation's SuperLink was started by `up`, and not by a service or by hand."""
    return SUPERLINK in alive(federation)


def _how_to_start(federation: Federation) -> str:
    if _started_here(federation):
        return f"`fedmm deploy up EXPERIMENT.toml --federation {federation.folder}` starts it again"
    return (
        f"`fedmm deploy up` did not start one from {federation.folder}: where a service runs it, `journalctl -u "
        f"{SERVICE}` says why it ended and `sudo systemctl restart {SERVICE}` starts it again (in containers `docker "
        "compose up -d superlink`); where none does, `fedmm deploy up` starts one"
    )


def _over(federation: Federation, name: str) -> bool:
    text = _text(federation.run(name) / "server.log").rstrip().rpartition("\n")[2]
    return bool(re.search(r"(completed|interrupted|diverged) after round|error: ", text))


def _told(log: Path, place: int, on_line: Say) -> int:
    with suppress(OSError), log.open(encoding="utf-8") as file:
        file.seek(place)
        text = file.read()
        whole = text[: text.rfind("\n") + 1]
        for line in whole.splitlines():
            on_line(line)
        return place + len(whole.encode())
    return place


# Small things ---------------------------------------------------------------------------------------------------------


def _write_site(federation: Federation, site: LocalSite, made: Opened) -> None:
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
    (federation.sites / f"{site.name}.toml").write_text(write_toml(sections), encoding="utf-8")


def _with_older(policy: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """A policy with what somebody wrote into the site's file before."""
    try:
        older = dict(tomllib.loads(file.read_text(encoding="utf-8")).get("policy", {}))
    except (OSError, ValueError):
        return dict(policy)
    merged = {
        key: list(dict.fromkeys([*older.get(key, ()), *value])) if isinstance(value, list | tuple) else value
        for key, value in policy.items()
    }
    return {key: value for key, value in {**older, **merged}.items() if value != math.inf}


@contextmanager
def _ended_on_failure(federation: Federation) -> Iterator[None]:
    """Whatever comes in between, Ctrl-C too, nothing is left running."""
    try:
        yield
    except BaseException:
        down(federation)
        raise


def _wait(done: Callable[[], bool], process: Started, seconds: float, otherwise: str, log: Path) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline or not process.alive:
            last = _text(log).strip().rpartition("\n")[2].removeprefix("error: ")
            raise FedmmError(f"{otherwise}; see {log}" + (f", which ends with: {last}" if last else ""))
        time.sleep(0.1)


def _says(log: Path, words: str) -> bool:
    return words in _text(log)


def _free_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _loopback_names(host: str) -> list[str]:
    return [name for name in ("127.0.0.1", "localhost") if name != host]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
