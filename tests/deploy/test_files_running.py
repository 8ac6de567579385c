"""The guide for several machines followed on one: the shipped commands, proxy and site files, TLS and node keys.

A coordinator with nginx in front of its SuperLink, and two sites that know its port and nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deploy.machines import NGINX, Machine, needs_nginx, proxy, until_listening

from deploy import shipped
from fedmm.deploy import processes
from fedmm.deploy.federation import prepare
from fedmm.deploy.local import demo_experiment, same_result
from fedmm.sites.experiments import experiment_text

SITES = {"source-1": "hospital-a", "target-1": "hospital-b"}
"""Who takes part, and whose shipped file and key they have."""


def fedmm(*words: str | Path, seconds: float = 500.0) -> str:
    command = [sys.executable, "-m", "fedmm", "deploy", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_nginx
def test_nginx_takes_the_configuration(machine: Machine) -> None:
    prepare(machine.federation, machine.inside, [], known_as=["link.example.org"])
    done = subprocess.run(
        [str(NGINX), "-t", "-e", "stderr", "-c", machine.proxy_config()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


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
    assert processes.find_marked(there.folder) == []
