"""A coordinator and two sites, each with a network of its own: what they reach of each other is the proxy's port.

They run under the system-call filters of their units, where this machine has what that takes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from deploy.machines import NGINX, Machine, needs_nginx
from deploy.running import until

from deploy import sandbox, shipped
from fedmm.deploy import processes
from fedmm.deploy.local import demo_experiment, same_result
from fedmm.sites.experiments import experiment_text

SITES = {"source-1": "hospital-a", "target-1": "hospital-b"}
HUB = "10.213.77.1"
PYTHON = sys.executable


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def may_make_namespaces() -> bool:
    """Whether this user may make networks on this machine."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"fedmm-try-{os.getpid()}"
    with suppress(subprocess.CalledProcessError):
        ip("netns", "add", name)
        ip("netns", "del", name)
        return True
    return False


class Networks:
    """A bridge in the coordinator's namespace, and a cable to it from each site's."""

    def __init__(self, sites: list[str]) -> None:
        self.names = {each: f"fedmm-{each}-{os.getpid()}" for each in ("hub", *sites)}
        for name in self.names.values():
            ip("netns", "add", name)
            self.inside(name, "link", "set", "lo", "up")
        hub = self.names["hub"]
        self.inside(hub, "link", "add", "bridge0", "type", "bridge")
        self.inside(hub, "addr", "add", f"{HUB}/24", "dev", "bridge0")
        self.inside(hub, "link", "set", "bridge0", "up")
        for number, site in enumerate(sites, start=2):
            end, cable = self.names[site], f"cable{number}"
            self.inside(hub, "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", end)
            self.inside(hub, "link", "set", cable, "master", "bridge0", "up")
            self.inside(end, "addr", "add", f"10.213.77.{number}/24", "dev", "eth0")
            self.inside(end, "link", "set", "eth0", "up")

    def inside(self, name: str, *words: str) -> None:
        ip("-netns", name, *words)

    def command(self, where: str, *words: str) -> list[str]:
        """A command inside the network of the coordinator (hub) or a site."""
        return ["ip", "netns", "exec", self.names[where], *words]

    def start(self, machine: Machine, where: str, unit: str, instance: str = "") -> processes.Started:
        """What a unit starts, in a network and, where that can be, under the unit's system-call filter."""
        filtered = [PYTHON, str(Path(sandbox.__file__)), unit] if sandbox.available() else []
        return machine.start(unit, instance, within=self.command(where, *filtered))

    def run(self, where: str, *words: str) -> str:
        done = subprocess.run(self.command(where, *words), capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def remove(self) -> None:
        for name in self.names.values():
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", name)


@contextmanager
def networks(sites: list[str]) -> Iterator[Networks]:
    made = Networks(sites)
    try:
        yield made
    finally:
        made.remove()


CONNECT = """
import socket, sys
for port in map(int, sys.argv[2:]):
    with socket.socket() as one:
        one.settimeout(600)
        print(port, one.connect_ex((sys.argv[1], port)))
"""
LISTENING = """
for name in ("tcp", "tcp6"):
    for line in open(f"/proc/net/{name}").read().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, port = local.split(":")
        if state == "0A":
            print(address, int(port, 16))
"""


def listening(made: Networks, where: str, *, loopback: bool = False) -> set[int]:
    """The ports of a namespace that another machine could reach, or that any process on its own could."""
    lines = made.run(where, PYTHON, "-c", LISTENING).splitlines()
    return {int(line.split()[1]) for line in lines if loopback or not line.startswith("0100007F ")}


def reached(made: Networks, where: str, host: str, *ports: int) -> set[int]:
    """Those of the ports that are answered."""
    lines = made.run(where, PYTHON, "-c", CONNECT, host, *map(str, ports)).splitlines()
    return {int(line.split()[0]) for line in lines if line.endswith(" 0")}


def address_of(site: str) -> str:
    return f"10.213.77.{2 + list(SITES).index(site)}"


def until_reached(made: Networks, *ports: int) -> None:
    until(lambda: reached(made, "hub", "127.0.0.1", *ports) == set(ports), 600, f"nothing listens at one of {ports}")


@needs_nginx
@pytest.mark.processes
def test_sites_on_networks_of_their_own_reach_one_port(tmp_path: Path) -> None:
    if not may_make_namespaces():
        pytest.skip("network namespaces need root and ip (iproute2)")
    machine = Machine(tmp_path, shipped.OUTSIDE, shipped.INSIDE)
    there, experiment = machine.federation, demo_experiment(2)
    (tmp_path / "digits.toml").write_text(experiment_text(experiment))
    with networks(list(SITES)) as made:
        fedmm = (PYTHON, "-m", "fedmm", "deploy")
        made.run("hub", *fedmm, "prepare", str(there.folder), "--host", HUB, "--port", str(machine.inside))
        for name, example in SITES.items():
            made.run(name, *fedmm, "key", str(tmp_path / "etc" / name))
            shutil.copy(tmp_path / "etc" / f"{name}.pub", there.keys)
            text = machine.placed((shipped.FOLDER / "sites" / f"{example}.toml").read_text()).replace(example, name)
            kept = [line for line in text.splitlines() if not line.startswith(("path", "labels"))]
            text = "\n".join(kept).replace('"images"', '"share"').replace("localhost", HUB)
            (tmp_path / "etc" / f"{name}.toml").write_text(text)
        for path in (there.certificates / "ca.crt", there.folder / "coordinator.pub"):
            shutil.copy(path, tmp_path / "etc")
        config = machine.proxy_config({f"listen 127.0.0.1:{machine.outside} ": f"listen {machine.outside} "})
        started = [made.start(machine, "hub", "fedmm-superlink.service")]
        try:
            nginx = made.command("hub", str(NGINX), "-e", "stderr", "-c", str(config))
            started.append(processes.start("nginx", nginx, machine.log("nginx"), dict(os.environ)))
            until_reached(made, machine.outside, machine.inside)
            made.run("hub", *fedmm, "register", str(there.folder))
            started += [made.start(machine, name, "fedmm-site@.service", name) for name in SITES]
            words = ("run", str(tmp_path / "digits.toml"), "--federation", str(there.folder), "--name", "first")
            assert "finished:completed" in made.run("hub", *fedmm, *words, "--patience", "200")
            assert listening(made, "hub") == {machine.outside}
            for name in SITES:
                assert listening(made, name, loopback=True) == set()
                assert reached(made, name, HUB, machine.outside, machine.inside) == {machine.outside}
                assert reached(made, "hub", address_of(name), machine.outside, machine.inside, 9094) == set()
        finally:
            processes.stop(started, there.folder)
        assert same_result(experiment, there.run("first"), tmp_path / "reference", print)
