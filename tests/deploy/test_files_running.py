"""The guide for several machines followed on one: the shipped commands, proxy and site files, TLS and node keys.

A coordinator with nginx in front of its SuperLink, and two sites that know its port and nothing else.
"""

from __future__ import annotations

import getpass
import http.client
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from deploy.running import free_ports

from deploy import shipped
from fedmm.deploy import processes
from fedmm.deploy.demo import demo_experiment, same_result
from fedmm.deploy.layout import Federation
from fedmm.deploy.lifecycle import prepare
from fedmm.deploy.local import experiment_text

NGINX = shutil.which("nginx", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
SITES = {"source-1": "hospital-a", "target-1": "hospital-b"}
"""Who takes part, and whose shipped file and key they have."""


@dataclass(frozen=True)
class Machine:
    """Where things are here that the shipped files have elsewhere. outside, inside: ports of proxy and SuperLink."""

    folder: Path
    outside: int
    inside: int

    @property
    def federation(self) -> Federation:
        return Federation(self.folder / "lib" / "federation")

    def placed(self, text: str) -> str:
        """A shipped text with this machine's places."""
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

    def start(self, unit: str, instance: str = "") -> processes.Started:
        """What a unit starts, in the environment that it sets and nothing else but where fedmm is."""
        words = shlex.split(self.placed(shlex.join(shipped.command(unit))).replace("%i", instance))
        own = {key: self.placed(value) for key, value in shipped.variables(unit).items()}
        env = {"HOME": str(self.folder / "lib"), processes.MARK: str(self.federation.folder), **own}
        env |= {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
        return processes.start(instance or unit, words, self.log(instance or unit), env)

    def log(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def proxy_config(self) -> Path:
        """The shipped server inside a whole configuration of nginx's."""
        (self.folder / "temporary").mkdir(exist_ok=True)
        (self.folder / "fedmm.conf").write_text(self.placed(shipped.PROXY))
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


def fedmm(*words: str | Path, seconds: float = 500.0) -> str:
    command = [sys.executable, "-m", "fedmm", "deploy", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    outside, inside = free_ports(2)
    return Machine(tmp_path, outside, inside)


@contextmanager
def proxy(machine: Machine) -> Iterator[None]:
    """nginx with the shipped configuration."""
    with subprocess.Popen([str(NGINX), "-e", "stderr", "-c", machine.proxy_config()]) as nginx:
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


@needs_nginx
def test_nginx_takes_the_configuration(machine: Machine) -> None:
    prepare(machine.federation, machine.inside, [], known_as=["link.example.org"])
    done = subprocess.run(
        [str(NGINX), "-t", "-e", "stderr", "-c", machine.proxy_config()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


@needs_nginx
def test_the_proxy_passes_on_nothing_but_what_nodes_ask(machine: Machine) -> None:
    """Without a SuperLink behind it what would be passed on is answered by 502, all else by 403."""
    prepare(machine.federation, machine.inside, [], known_as=["link.example.org"])
    trusting = ssl.create_default_context(cafile=str(machine.federation.certificates / "ca.crt"))

    def answered(path: str) -> int:
        with closing(http.client.HTTPSConnection("localhost", machine.outside, context=trusting, timeout=600)) as asked:
            asked.request("POST", path, body=b"")
            return asked.getresponse().status

    with proxy(machine):
        for path in (
            "/", "/v1/control/StartRun", "/v1/runtime/x", "//v1//control/x", "/v1/fleet/../control/x",
            "/v1/fleet/%2e%2e/control/x", "/v1/fleet/..%2fcontrol/x", "/V1/FLEET/x", "/v1/fleetx",
        ):  # fmt: skip
            assert answered(path) == 403, path
        assert answered("/v1/fleet/x") == 502


@needs_nginx
@pytest.mark.processes
def test_the_guide_for_several_machines_on_one(machine: Machine) -> None:
    each = demo_experiment(2)
    experiment = machine.folder / "digits.toml"
    experiment.write_text(experiment_text(each))
    there = machine.federation
    fedmm("prepare", there.folder, "--host", "localhost", "--port", str(machine.inside))
    for name, example in SITES.items():
        fedmm("key", machine.folder / "etc" / name)
        shutil.copy(machine.folder / "etc" / f"{name}.pub", there.keys)
        text = machine.placed((shipped.FOLDER / "sites" / f"{example}.toml").read_text()).replace(example, name)
        kept = [line for line in text.splitlines() if not line.startswith(("path", "labels"))]
        text = "\n".join(kept).replace('"images"', '"share"') + "\n"
        (machine.folder / "etc" / f"{name}.toml").write_text(text)
    for path in (there.certificates / "ca.crt", there.folder / "coordinator.pub"):
        shutil.copy(path, machine.folder / "etc")
    started = []
    try:
        started.append(machine.start("fedmm-superlink.service"))
        until_listening(machine.inside)
        with proxy(machine):
            registered = fedmm("register", there.folder)
            assert all(f"registered the key {name}.pub" in registered for name in SITES)
            started += [machine.start("fedmm-site@.service", name) for name in SITES]
            said = fedmm("run", experiment, "--federation", there.folder, "--name", "first", "--patience", "200")
            assert "finished:completed" in said
        assert same_result(each, there.run("first"), machine.folder / "reference", print)
        asked = (machine.folder / "asked.log").read_text()
        assert asked.count(" /v1/fleet/") == len(asked.splitlines()) > 20
        assert "502" not in (machine.folder / "errors.log").read_text()
    finally:
        processes.stop(started, there.folder)
    assert processes.marked(there.folder) == []
