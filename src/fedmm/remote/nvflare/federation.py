"""NVFlare's processes on this machine for one run, and a way to ask its clients."""

from __future__ import annotations

import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.remote.nvflare.job import PLACES, Job, Place
from fedmm.remote.packed import INTRODUCE, PROBLEM, Ask, Packed, Pipe, receive_each, send_each

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_START_SECONDS = 180.0


@contextmanager
def federation(
    clients: Sequence[str],
    site: str,
    arguments: Mapping[str, Any],
    *,
    place: str = "simulator",
    patience: float = 3600.0,
) -> Iterator[Ask]:
    """Start NVFlare with these clients, and end all of its processes on exit.

    site, arguments: as in :class:`Job`. place: ``simulator`` or ``poc``, NVFlare's proof-of-concept mode: a server and
    clients with certificates. patience: seconds to wait for an answer.
    Its files are in a temporary folder, which is removed unless an error ends the run: the logs there say more.
    """
    require(find_spec("nvflare") is not None, "the engine 'nvflare' needs NVFlare: pip install 'fedmm[nvflare]'")
    for name in clients:
        require(
            _NAME.fullmatch(name) is not None,
            f"NVFlare takes letters, digits, dots and dashes for a client's name, not {name!r}",
        )
    folder = Path(tempfile.mkdtemp(prefix="fnv-"))
    where = Place(folder, clients)
    job = Job(clients, site, arguments, folder / "driver.sock", folder / "driver.key", where.log)
    job.secret.touch(mode=0o600)
    job.secret.write_bytes(secrets.token_bytes(32))
    job.write(folder / "job")
    failed = False
    try:
        with Listener(str(job.socket), family="AF_UNIX", authkey=job.secret.read_bytes()) as listener:
            PLACES[place](where, folder / "job")
            pipe = _accept(listener, where)
        with pipe:
            yield _Driver(pipe, where, patience)
    except Exception:
        failed = True
        raise
    finally:
        where.stop()
        if not failed:
            shutil.rmtree(folder, ignore_errors=True)


def _accept(listener: Listener, place: Place) -> Pipe[bytes, bytes]:
    """Wait for the connection from NVFlare's server."""
    accepted: list[Pipe[bytes, bytes]] = []

    def accept() -> None:
        with suppress(OSError, EOFError):
            accepted.append(listener.accept())

    waiting = threading.Thread(target=accept, daemon=True)
    waiting.start()
    deadline = time.monotonic() + _START_SECONDS
    while not accepted:
        waiting.join(0.5)
        if not place.alive() or time.monotonic() > deadline:
            raise FedmmError(f"NVFlare's server did not start; {place.log} may say why")
    return accepted[0]


class _Driver:
    """Asks the clients through NVFlare's server, and notices if a client's process has ended.

    NVFlare itself would wait for the answer of a dead client until ``patience`` is over.
    """

    def __init__(self, pipe: Pipe[bytes, bytes], place: Place, patience: float) -> None:
        self._pipe = pipe
        self._place = place
        self._patience = patience
        self._processes: dict[str, int] = {}
        self._meet()

    def __call__(self, kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        """Return the clients' answers."""
        return self._asked(kind, questions, self._patience)

    def _meet(self) -> None:
        """Wait until all clients are up and have built their handlers."""
        deadline = time.monotonic() + _START_SECONDS
        while strangers := [name for name in self._place.clients if name not in self._processes]:
            require(
                time.monotonic() < deadline,
                f"the client {strangers[0]!r} of NVFlare did not start; {self._place.log} may say why",
            )
            for name, answer in self._asked(INTRODUCE, dict.fromkeys(strangers, Packed({}, {}, {})), 1.0).items():
                require(PROBLEM not in answer.about, str(answer.about.get(PROBLEM)))
                self._processes[name] = int(answer.about["pid"])

    def _asked(self, kind: str, questions: Mapping[str, Packed], seconds: float) -> Mapping[str, Packed]:
        try:
            send_each(self._pipe, kind, questions, seconds)
            while not self._pipe.poll(1.0):
                self._require_alive()
            _, answers, _ = receive_each(self._pipe)
        except (EOFError, OSError) as problem:
            raise FedmmError(
                f"NVFlare's server ended before the run did; {self._place.log} may say why, and the run can be resumed"
            ) from problem
        return answers

    def _require_alive(self) -> None:
        for name, pid in self._processes.items():
            require(
                self._place.runs(pid),
                f"the process of the client {name!r} ended before the run did; {self._place.log} may say why, and the "
                "run can be resumed",
            )
