"""The guide's way into a federation, as the page types it: how many commands it takes, and that they work."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from deploy.running import free_ports, text, until
from deploy.test_files_running import Machine, until_listening

from fedmm.config.schema import Experiment
from fedmm.data.partition import SourceTarget
from fedmm.deploy import flower_commands as commands
from fedmm.deploy import processes
from fedmm.deploy.federation import prepare
from fedmm.deploy.layout import Federation
from fedmm.deploy.local import demo_experiment, same_result
from fedmm.deploy.run_view import RunReader
from fedmm.sites.experiments import experiment_text

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("\n## From two laptops")[2].partition("\n## ")[0]
SITES = ("source-1", "source-2", "target-1")


def typed(step: str) -> list[str]:
    """The commands of a step of the guide."""
    _, found, after = SECTION.partition(f"\n**{step}")
    assert found, step
    block = re.search(r"```console\n(.*?)```", after, re.DOTALL)
    assert block is not None
    return [line.removeprefix("$ ") for line in block[1].splitlines()]


COORDINATOR, SITE = [*typed("1. Coordinator"), *typed("3. Coordinator")], typed("2. Every site")


def test_the_guide_is_as_short_as_it_says() -> None:
    words = {9: "nine", 4: "four"}
    assert len(COORDINATOR) < 10
    assert len(SITE) <= 4
    assert f"The coordinator types {words[len(COORDINATOR)]} commands" in SECTION
    assert f"and a site {words[len(SITE)]};" in SECTION
    assert f"with {words[len(typed('On every machine'))]} on every machine" in SECTION
    assert f"| commands of the coordinator | 12 | {len(COORDINATOR)} | {len(COORDINATOR)} |" in SECTION
    assert f"| commands of a site | 8 | {len(SITE)} | {len(SITE)} |" in SECTION


def three_sites() -> Experiment:
    return replace(demo_experiment(2), partition=SourceTarget(source_clients=2))


def shell(machine: Machine, line: str, folder: Path) -> str:
    """Type a line of the guide in a folder, as the one user that there is here."""
    line = machine.placed(re.sub(r"sudo (-u fedmm )?", "", line))
    line = line.replace(str(Path(sys.executable).parent / "fedmm"), f"{sys.executable} -m fedmm")
    done = subprocess.run(["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """A machine without a proxy: sites reach the SuperLink's own port."""
    (port,) = free_ports(1)
    made = Machine(tmp_path, port, port)
    for folder in ("lib", "etc", "desk"):
        (tmp_path / folder).mkdir()
    yield made
    processes.stop([], made.federation.folder)
    assert processes.find_marked(made.federation.folder) == []


def open_federation(machine: Machine, desk: Path, options: str) -> str:
    """Step 1; what systemd would start is started here. The fingerprint that `invite` says."""
    said = ""
    for line in typed("1. Coordinator"):
        if "enable --now fedmm-superlink" in line:
            machine.start("fedmm-superlink.service")
            until_listening(machine.inside)
        elif " deploy prepare " in line:
            shell(machine, f"{line} --port {machine.inside}", desk)
        elif " deploy invite " in line:
            said = shell(machine, line.replace(" < ", f" --address localhost:{machine.outside} {options} < "), desk)
        elif line.startswith("sudo tar"):
            shell(machine, line, desk)
        else:
            assert re.match(r"sudo (install .* deploy/|systemctl reload nginx)", line), line
    assert "3 invitations" in said
    fingerprint = re.search(r"phone: (\S+)", said)
    assert fingerprint is not None
    return fingerprint[1]


def join(machine: Machine, name: str, folder: Path, fingerprint: str) -> list[str]:
    """Step 2 in a folder to which the invitation came; the lines that the site is to send back."""
    lines = []
    for line in SITE:
        if " deploy join " in line:
            own = line.replace("hospital-a", name).replace("--data /srv/pictures/labelled --kind images ", "")
            own = own.replace(
                "--domain source", f"--domain {name.split('-', maxsplit=1)[0]} --fingerprint {fingerprint}"
            )
            lines = [each for each in shell(machine, own, folder).splitlines() if each.startswith("ecdsa-")]
        elif "enable --now" in line:
            machine.start("fedmm-site@.service", name)
        else:
            assert re.match(r"sudo install .* deploy/|journalctl ", line), line
    return lines


@pytest.mark.processes
@pytest.mark.parametrize("with_keys", [False, True])
def test_three_sites_join_by_the_commands_of_the_guide(machine: Machine, with_keys: bool) -> None:
    """The proxy is left out, and its address with it."""
    each, there, desk = three_sites(), machine.federation, machine.folder / "desk"
    (desk / "experiment.toml").write_text(experiment_text(each))
    (desk / "sites.toml").write_text("".join(f'[sites.{name}]\nkind = "share"\n' for name in SITES))
    fingerprint = open_federation(machine, desk, "--with-keys" if with_keys else "")
    for name in SITES:
        folder = desk / name
        folder.mkdir()
        (desk / "invitations" / f"{name}.toml").rename(folder / f"{name}.toml")
        lines = join(machine, name, folder, fingerprint)
        assert len(lines) == (0 if with_keys else 1)
        (desk / f"{name}.pub").write_text("".join(f"{line}\n" for line in lines))
    accept, run = typed("3. Coordinator")
    if with_keys:
        shell(machine, "sudo -u fedmm /opt/fedmm/bin/fedmm deploy register /var/lib/fedmm/federation", desk)
    else:
        until(lambda: "turns this site away" in text(machine.log(SITES[0])), 200, "an unknown site was not turned away")
        accept = re.sub(r"^cat .*? \|", f"cat {' '.join(f'{name}.pub' for name in SITES)} |", accept)
        assert shell(machine, accept, desk).count("accepted ") == 3
    assert "finished:completed" in shell(machine, run, desk)
    assert same_result(each, there.run("first"), machine.folder / "reference", print)
    view = RunReader(there.run("first")).read()
    assert {(site.name, site.online, site.round) for site in view.sites} == {(name, True, 2) for name in SITES}
    watch = "sudo -u fedmm /opt/fedmm/bin/fedmm deploy watch --federation /var/lib/fedmm/federation"
    assert watch in SECTION
    assert "first: completed" in shell(machine, watch, desk)


def test_flower_is_called_in_the_federations_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever calls fedmm may stand in a folder that its user cannot read, or that has an app of somebody else's."""
    federation = Federation(Path("federation"))
    monkeypatch.chdir(tmp_path)
    prepare(federation, 9093, [])
    (tmp_path / "tool").write_text('#!/bin/sh\nprintf \'{"success": true, "cwd": "%s"}\' "$PWD"\n')
    (tmp_path / "tool").chmod(0o755)
    monkeypatch.setattr(commands, "tool", lambda name: str(tmp_path / "tool"))
    assert Path(commands.flwr(federation, "list")["cwd"]).resolve() == (tmp_path / "federation").resolve()
