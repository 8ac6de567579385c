"""What ``deploy/`` ships is accepted by the programs it is for, and its files agree with each other and with fedmm."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from deploy.shipped import COMPOSE, COORDINATOR, FOLDER, INSIDE, KEPT, OUTSIDE, PROXY
from flwr.cli.flower_config import parse_superlink_connection
from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink

from deploy import shipped
from fedmm.cli.app import app
from fedmm.deploy.federation import prepare
from fedmm.deploy.flower_commands import CONNECTION, QUIET, superlink_command
from fedmm.deploy.layout import Federation
from fedmm.sites.config import read_site

ROOT = FOLDER.parent
LINK, SITE = "fedmm-superlink.service", "fedmm-site@.service"
SERVICES = COMPOSE["services"]
SITES = ("hospital-a", "hospital-b")
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
FEDERATION = Federation(Path(COORDINATOR))


def asked(command: list[str], program: str, parser: argparse.ArgumentParser) -> dict[str, Any]:
    """What Flower takes a command line for."""
    assert Path(command[0]).name == program
    return vars(parser.parse_args(command[1:]))


def understood(words: list[str]) -> click.Context:
    """A command line of fedmm's as it is parsed, without running it."""
    command, context = typer.main.get_command(app), None
    while True:
        context = command.make_context(words[0], words[1:], parent=context, resilient_parsing=False)
        if not isinstance(command, click.Group):
            return context
        _, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found is not None, words
        command, words = found, [found.name or "", *words]


def fedmm_commands(text: str) -> Iterator[list[str]]:
    """The commands of fedmm in a text, whoever is to run them."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.partition(" < ")[0], comments=True)
        for place, word in enumerate(words):
            if Path(word).name == "fedmm" and words[place + 1 : place + 2] == ["deploy"]:
                yield words[place:]


# The SuperLink, the sites, and fedmm's own way to start them ----------------------------------------------------------


def test_the_unit_and_the_container_start_the_superlink_as_fedmm_does() -> None:
    parser = _parse_args_run_superlink()
    own = asked(superlink_command(FEDERATION, "127.0.0.1", INSIDE, insecure=False), "flower-superlink", parser)
    assert asked(shipped.command(LINK), "flower-superlink", parser) == own
    assert asked(shlex.split(SERVICES["superlink"]["command"]), "flower-superlink", parser) == own
    assert own["enable_supernode_auth"]
    assert not own["insecure"]


def test_flowers_processes_have_the_environment_that_fedmm_gives_them() -> None:
    where = {"FEDMM_FEDERATION": COORDINATOR, "FLWR_HOME": str(FEDERATION.flower)}
    path = {"PATH": f"{shipped.INSTALLED}:/usr/bin:/bin"}
    assert shipped.variables(LINK) == {**QUIET, **where, **path}
    assert shipped.variables(SITE) == path
    assert SERVICES["superlink"]["environment"] == where
    line = re.search(r"^ENV (.*?)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)
    assert line is not None
    assert dict(word.split("=", 1) for word in line[1].split()) == {**QUIET, "PATH": f"{shipped.INSTALLED}:$PATH"}


@pytest.mark.parametrize("name", SITES)
def test_sites_start_with_the_shipped_commands_and_files(name: str) -> None:
    (unit,), (container,) = (
        list(fedmm_commands(text)) for text in (shlex.join(shipped.command(SITE)), SERVICES[name]["command"])
    )
    assert understood(unit).params == {"files": ("/etc/fedmm/%i.toml",)}
    assert understood(container).params == {"files": ("/etc/fedmm/site.toml",)}
    link = read_site(FOLDER / "sites" / f"{name}.toml").superlink
    assert link.address == f"link.example.org:{OUTSIDE}"
    assert not link.insecure


def test_the_programs_that_are_started_come_with_the_packages() -> None:
    scripts = {each.name for each in entry_points(group="console_scripts")}
    for unit in (LINK, SITE):
        program = Path(shipped.command(unit)[0])
        assert str(program.parent) == shipped.INSTALLED
        assert program.name in scripts


@pytest.mark.parametrize("unit", [LINK, SITE])
def test_units_make_their_folder_restart_and_may_write_nowhere_else(unit: str) -> None:
    settings = shipped.unit(unit)
    for key, value in {
        "User": "fedmm", "StateDirectory": Path(KEPT).name, "WorkingDirectory": KEPT, "Restart": "always",
        "ProtectSystem": "strict", "NoNewPrivileges": "true", "CapabilityBoundingSet": "", "LimitCORE": "0",
    }.items():  # fmt: skip
        assert settings[key] == [value]
    assert settings["SystemCallFilter"] == ["@system-service", "~@privileged @resources"]
    assert {"MemoryMax", "TasksMax"} <= settings.keys()
    assert "ReadWritePaths" not in settings
    for name in SITES:
        assert read_site(FOLDER / "sites" / f"{name}.toml").state.is_relative_to(KEPT)


def test_processes_reach_no_other_machine_than_the_coordinators() -> None:
    assert (shipped.unit(LINK)["IPAddressDeny"], shipped.unit(LINK)["IPAddressAllow"]) == (["any"], ["localhost"])
    egress = shipped.unit(f"{SITE}.d/egress.conf")
    assert egress == {"IPAddressDeny": ["any"], "IPAddressAllow": ["localhost", "192.0.2.10"]}
    assert shipped.unit(SITE)["SocketBindDeny"] == ["any"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("unit", [LINK, SITE])
def test_systemd_takes_the_units(unit: str, tmp_path: Path) -> None:
    program = shipped.command(unit)[0]
    (tmp_path / unit).write_text((FOLDER / "systemd" / unit).read_text().replace(program, "/bin/true"))
    if unit == SITE:
        shutil.copytree(FOLDER / "systemd" / f"{SITE}.d", tmp_path / f"{SITE}.d")
    each = unit.replace("@", "@hospital-a")
    done = subprocess.run(
        ["systemd-analyze", "verify", f"./{each}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "fedmm" in line]
    assert (done.returncode, said) == (0, [])


# Ports, addresses and paths -------------------------------------------------------------------------------------------


def test_ports_agree() -> None:
    assert re.findall(r"listen (\d+) ssl;", PROXY) == [str(OUTSIDE)]
    assert re.findall(r"server 127\.0\.0\.1:(\d+);", PROXY) == [str(INSIDE)]
    assert SERVICES["proxy"]["ports"] == [f"127.0.0.1:{OUTSIDE}:{OUTSIDE}"]
    prepared = understood(["fedmm", "deploy", "prepare", "federation", "--host", "link.example.org"])
    assert prepared.params["port"] == INSIDE
    for name in SITES:
        host, _, port = read_site(FOLDER / "sites" / f"{name}.toml").superlink.address.partition(":")
        assert (port, SERVICES["proxy"]["networks"]["sites"]["aliases"]) == (str(OUTSIDE), [host])


def test_only_the_proxy_is_reached_from_elsewhere() -> None:
    assert SERVICES["superlink"]["network_mode"] == "service:proxy"
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    assert COMPOSE["networks"]["sites"]["internal"]
    assert all(SERVICES[name]["networks"] == ["sites"] for name in SITES)
    locations = re.findall(r"location (?:= )?(\S+) \{[^\n]*\n\s*(.*?);", PROXY)
    assert locations == [
        ("/v1/fleet/", "proxy_pass https://fedmm_superlink/v1/fleet/"),
        ("/v1/fleet/push-object", "proxy_pass https://fedmm_superlink/v1/fleet/push-object"),
        ("/", "return 403"),
    ]
    for path in FOLDER.rglob("*"):
        assert not path.is_file() or "0.0.0.0" not in path.read_text(errors="replace")


def test_containers_have_bounds_and_write_only_to_their_volumes() -> None:
    for service in SERVICES.values():
        assert service["read_only"]
        assert {"mem_limit", "pids_limit", "tmpfs"} <= service.keys()
    assert SERVICES["superlink"]["mem_limit"] == shipped.unit(LINK)["MemoryMax"][0].lower()


def test_what_the_proxy_lets_through_fits_into_the_superlinks_memory() -> None:
    bodies = re.findall(r"client_max_body_size +(\d+)m;", PROXY)
    assert bodies == ["1", "16"]  # of every request, and of objects
    (at_once,) = re.findall(r"limit_conn fedmm_all_objects (\d+);", PROXY)
    (limit,) = shipped.unit(LINK)["MemoryMax"]
    assert limit.endswith("G")
    copies = 3  # of a body, while the SuperLink reads it
    assert int(at_once) * 16 * copies < int(limit[:-1]) * 1024
    assert "proxy_request_buffering on;" in PROXY


def mounts(service: str) -> dict[str, str]:
    """What a container sees, by where it sees it."""
    return {there: here for here, there, *_ in (each.split(":") for each in SERVICES[service]["volumes"])}


def test_containers_see_the_files_that_are_read_in_them() -> None:
    made = {f"./federation/certificates/{name}" for name in ("ca.crt", "server.pem", "server.key")}
    read = set(re.findall(rf"{COORDINATOR}/[\w./]+", PROXY))
    seen = mounts("proxy")
    assert read <= seen.keys()
    assert {seen[path] for path in read} == made  # and never the authority's key
    for name in SITES:
        site, seen = tomllib.loads((FOLDER / "sites" / f"{name}.toml").read_text()), mounts(name)
        assert seen["/etc/fedmm/site.toml"] == f"./sites/{name}.toml"
        assert seen[site["superlink"]["certificate"]] == "./federation/certificates/ca.crt"
        assert seen[site["superlink"]["key"]] == f"./federation/keys/{name}"
        assert seen[site["superlink"]["coordinator"]] == "./federation/coordinator.pub"
        assert seen[site["data"]["path"]] == f"./rows/{name}"
        assert (seen[KEPT], name in COMPOSE["volumes"]) == (name, True)
    for service in SERVICES:
        for path in mounts(service).values():
            made_later = not path.startswith("./") or path.startswith(("./federation", "./rows"))
            assert made_later or (FOLDER / path).exists(), path


def test_the_image_is_made_from_files_that_reach_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in lines if line.startswith("!")}
    copied = {name for line in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE) for name in line.split()[:-1]}
    assert "*" in lines
    assert copied == let_through
    assert all((ROOT / name).exists() for name in copied)
    extras = re.search(r'"/source\[(.*?)\]"', DOCKERFILE)
    assert extras is not None
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"flower"} <= set(extras[1].split(",")) <= known.keys()
    user = re.search(r"--uid (\d+) fedmm", DOCKERFILE)
    assert user is not None
    assert f"chown {user[1]} federation" in (FOLDER / "compose.yml").read_text()


# The guide ------------------------------------------------------------------------------------------------------------


def test_fedmm_understands_every_command_of_the_guide() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", guide, re.DOTALL)
    prompted = "\n".join(line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ "))
    quoted = "\n".join(re.findall(r"^#   (.*)$", (FOLDER / "compose.yml").read_text(), re.MULTILINE))
    commands = [*fedmm_commands(prompted), *fedmm_commands(quoted)]
    for words in commands:
        understood(words)
    assert {words[2] for words in commands} >= {
        "prepare", "invite", "join", "accept", "register", "run", "status", "resume", "watch", "metrics",
    }  # fmt: skip
    with pytest.raises(click.UsageError):
        understood([*commands[-1], "--no-such-option"])


def test_the_paths_of_the_guide_are_those_of_the_files() -> None:
    guide = (ROOT / "docs" / "deploy.md").read_text()
    for path in re.findall(r"(?:^|[\s`])(deploy/[\w./@-]+[\w/])", guide):
        assert (ROOT / path).exists(), path
    for needed in (f"venv {Path(shipped.INSTALLED).parent}", f"prepare {COORDINATOR} ", "/etc/nginx/conf.d/fedmm.conf"):
        assert needed in guide


def test_a_folder_by_a_relative_path_is_one_that_flower_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(Federation(Path("federation")), INSIDE, [])
    written = tomllib.loads(Path("federation/flower/config.toml").read_text())["superlink"][CONNECTION]
    connection = parse_superlink_connection(written, CONNECTION)
    assert Path(connection.root_certificates or "").read_bytes() == Path("federation/certificates/ca.crt").read_bytes()
