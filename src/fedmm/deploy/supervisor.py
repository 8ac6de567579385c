"""A site's processes, kept running: the SuperNode and the resident worker are started again whenever they end.

A SuperNode that comes back before the SuperLink has given up its predecessor is refused (HTTP 412) and ends; it is
started again until the SuperLink takes it, which is after a minute at most. What the site knows is on its disk.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from fedmm.core.errors import FedmmError, require
from fedmm.deploy.bound import bound
from fedmm.deploy.commands import environment, supernode_command
from fedmm.deploy.keys import make_certificates, require_certificate, require_node_key
from fedmm.deploy.site_config import SiteConfig

_SHORTEST, _LONGEST, _STEADY = 2.0, 10.0, 60.0

Say = Callable[[str], None]


@dataclass
class Kept:
    """A process that is to run. pause: seconds until the next start, longer after each that did not last.

    It leads a group of its own: Ctrl-C in a terminal reaches the supervisor alone, which then ends it.
    """

    name: str
    command: Sequence[str]
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    pause: float = _SHORTEST
    due: float = 0.0

    def look(self, env: dict[str, str], say: Say) -> None:
        """Start the process where it does not run and it is time."""
        now = time.monotonic()
        if self.process is not None and (code := self.process.poll()) is not None:
            lasted = now - self.began
            self.pause = _SHORTEST if lasted > _STEADY else min(2 * self.pause, _LONGEST)
            self.process, self.due = None, now + self.pause
            say(f"the {self.name} ended with {code} after {lasted:.0f} s; it is started again in {self.pause:g} s")
        if self.process is None and now >= self.due:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, env=env, process_group=0)
            self.began = now

    def end(self, seconds: float) -> None:
        """End the process, politely at first."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Supervisor:
    """Runs a site until it is told to end (SIGTERM, Ctrl-C, a terminal that is closed)."""

    config: SiteConfig
    say: Say
    kept: list[Kept] = field(default_factory=list)
    _ending: bool = False

    def run(self) -> None:
        """Keep the site's processes running; what could never work is refused before they are started."""
        config = self.config
        _require_ready(config)
        env = environment(config.state / "flower")
        self.kept = [Kept("SuperNode", bound(supernode_command(config)))]
        if config.site.worker == "resident":
            self.kept.append(Kept("worker", [sys.executable, "-m", "fedmm.deploy.resident", str(config.file)]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as nohup has it
            signal.signal(signal.SIGHUP, self._end)
        self.say(f"site {config.site.name} of {config.superlink.address}")
        while not self._ending:
            for each in self.kept:
                each.look(env, self.say)
            time.sleep(0.2)
        for each in self.kept:
            each.end(10.0)
        self.say(f"site {config.site.name} has ended")

    def _end(self, number: int, frame: object) -> None:
        self._ending = True


def _require_ready(config: SiteConfig) -> None:
    """Refuse what no start of the SuperNode would ever mend; certificates of the site's own are made."""
    link = config.superlink
    if not link.insecure:
        require_certificate(config.path(link.certificate), "superlink.certificate")
        require_node_key(config.path(link.key), "superlink.key")
    try:
        config.state.mkdir(parents=True, exist_ok=True)
        if not link.insecure:
            make_certificates(config.state / "certificates", ["127.0.0.1", "localhost"])
    except OSError as problem:
        raise FedmmError(f"nothing can be written to site.state, {config.state}: {problem.strerror}") from problem
    require(
        _free(link.runtime_port),
        f"another process listens at superlink.runtime_port {link.runtime_port}, perhaps an older SuperNode of this "
        "site; end it, or choose another port",
    )


def _free(port: int) -> bool:
    with closing(socket.socket()) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
