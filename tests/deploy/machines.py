"""A coordinator's machine inside a folder: the shipped commands and files with local paths and ports, behind nginx."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from deploy import shipped
from fedmm.deploy import processes
from fedmm.deploy.layout import Federation

NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


@dataclass(frozen=True)
class Machine:
    """Local paths and ports in place of those in the shipped files. outside, inside: ports of proxy and SuperLink."""

    folder: Path
    outside: int
    inside: int

    @property
    def federation(self) -> Federation:
        return Federation(self.folder / "lib" / "federation")

    def placed(self, text: str) -> str:
        """Return a shipped text with this machine's paths and ports."""
        places = {
            shipped.INSTALLED: str(Path(sys.executable).parent),
            shipped.KEPT: str(self.folder / "lib"),
            shipped.SITES: str(self.folder / "etc"),
            f"listen {shipped.OUTSIDE} ": f"listen 127.0.0.1:{self.outside} ",
            f"127.0.0.1:{shipped.INSIDE}": f"127.0.0.1:{self.inside}",
            f"--port {shipped.INSIDE}": f"--port {self.inside}",
            f"link.example.org:{shipped.OUTSIDE}": f"localhost:{self.outside}",
        }
        for there, here in places.items():
            text = text.replace(there, here)
        return text

    def start(self, unit: str, instance: str = "", within: Sequence[str] = ()) -> processes.Started:
        """Start a unit's command in the environment that it sets and nothing else. within: words before the command."""
        words = shlex.split(self.placed(shlex.join(shipped.command(unit))).replace("%i", instance))
        own = {key: self.placed(value) for key, value in shipped.variables(unit).items()}
        env = {"HOME": str(self.folder / "lib"), processes.MARK: str(self.federation.folder), **own}
        env |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}  # fedmm may not be installed
        return processes.start(instance or unit, [*within, *words], self.log(instance or unit), env)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def proxy_config(self, changes: Mapping[str, str] = MappingProxyType({})) -> Path:
        """Write a full nginx configuration that includes the shipped server. changes: replacements by text."""
        (self.folder / "temporary").mkdir(exist_ok=True)
        text = self.placed(shipped.PROXY)
        for there, here in changes.items():
            assert there in text
            text = text.replace(there, here)
        (self.folder / "fedmm.conf").write_text(text)
        paths = [
            f"{kind}_temp_path {self.folder}/temporary/{kind};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        ]
        user = [f"user {getpass.getuser()};"] if os.getuid() == 0 else []
        lines = [*user, "daemon off;", f"pid {self.folder}/nginx.pid;", f"error_log {self.folder}/errors.log;"]
        lines += ["events {}", "http {", f"access_log {self.folder}/asked.log;", *paths]
        lines += [f"include {self.folder}/fedmm.conf;", "}", ""]
        whole = self.folder / "nginx.conf"
        whole.write_text("\n".join(lines))
        return whole


@contextmanager
def proxy(machine: Machine, changes: Mapping[str, str] = MappingProxyType({})) -> Iterator[None]:
    """Run nginx with the shipped configuration and these changes."""
    with subprocess.Popen([str(NGINX), "-e", "stderr", "-c", machine.proxy_config(changes)]) as nginx:
        try:
            until_listening(machine.outside)
            yield
        finally:
            nginx.send_signal(signal.SIGTERM)
            assert nginx.wait(600) == 0


def until_listening(port: int, seconds: float = 600.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        with closing(socket.socket()) as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert time.monotonic() < deadline, f"nothing listens at port {port}"
        time.sleep(0.2)
