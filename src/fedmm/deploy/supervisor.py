"""A site's processes, kept running: the SuperNode and the resident worker are started again whenever they end.

A SuperNode that comes back before the SuperLink has given up its predecessor is refused (HTTP 412) and ends; it is
started again until the SuperLink takes it, which is after a minute at most. What the site knows is on its disk.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedmm.deploy.commands import environment, supernode_command
from fedmm.deploy.keys import make_certificates
from fedmm.deploy.site_config import SiteConfig

_SHORTEST, _LONGEST, _STEADY = 2.0, 10.0, 60.0

Say = Callable[[str], None]


@dataclass
class Kept:
    """A process that is to run. pause: seconds until the next start, longer after each that did not last."""

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
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, env=env)
            self.began = now

    def end(self, seconds: float) -> None:
        """End the process, politely at first."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@dataclass
class Supervisor:
    """Runs a site until it is told to end (SIGTERM, Ctrl-C)."""

    config: SiteConfig
    say: Say
    kept: list[Kept] = field(default_factory=list)
    _ending: bool = False

    def run(self) -> None:
        """Keep the site's processes running."""
        config = self.config
        config.state.mkdir(parents=True, exist_ok=True)
        if not config.superlink.insecure:
            make_certificates(config.state / "certificates", ["127.0.0.1", "localhost"])
        env = environment(config.state / "flower")
        self.kept = [Kept("SuperNode", supernode_command(config))]
        if config.site.worker == "resident":
            self.kept.append(Kept("worker", [sys.executable, "-m", "fedmm.deploy.resident", str(config.file)]))
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
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
