"""Flower's commands and their environment: no telemetry, no update check, no installing, no network."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedmm.config.toml import write_toml
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import write_text
from fedmm.deploy.layout import Federation
from fedmm.sites.credentials.files import AUTHORITY, CERTIFICATE, KEY

CONNECTION = "fedmm"
"""The SuperLink's name in Flower's configuration."""

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "PYTHONUNBUFFERED": "1",
}


def environment(home: Path, **more: str) -> dict[str, str]:
    """Return the environment of Flower's processes; home: the folder that Flower may write to."""
    here = str(Path(sys.executable).parent)
    path = os.pathsep.join([here, os.environ.get("PATH", "")])
    return {**os.environ, **QUIET, "FLWR_HOME": str(home.resolve()), "PATH": path, **more}


def tool(name: str) -> str:
    """Return the path of a Flower program, beside this Python or on the path."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    require(found is not None, f"{name} is not installed; federations of sites need Flower: install fedmm[flower]")
    return str(found)


def superlink_command(
    federation: Federation, host: str, port: int, *, insecure: bool, in_memory: bool = False
) -> list[str]:
    """Return the SuperLink's command: with TLS and authenticated nodes, unless it uses plain text.

    in_memory: keep nothing on disk, which is faster; nodes' keys must be registered again after a restart.
    """
    command = [tool("flower-superlink"), "--host", host, "--port", str(port)]
    command += ["--disable-runtime-dependency-installation"]
    command += [] if in_memory else ["--database", str(federation.folder / "superlink.db")]
    if insecure:
        return [*command, "--insecure"]
    return [*command, *_tls(federation.certificates), "--enable-supernode-auth"]


def _tls(folder: Path) -> list[str]:
    names = {"--ssl-ca-certfile": AUTHORITY, "--ssl-certfile": CERTIFICATE, "--ssl-keyfile": KEY}
    return [word for option, name in names.items() for word in (option, str(folder / name))]


def write_connection(federation: Federation, address: str, insecure: bool) -> None:
    """Write Flower's configuration of how ``flwr`` reaches the SuperLink."""
    authority = str(federation.certificates.resolve() / AUTHORITY)  # Flower requires an absolute path
    how = {"insecure": True} if insecure else {"root-certificates": authority}
    tables = {"superlink": {"default": CONNECTION, CONNECTION: {"address": address, **how}}}
    write_text(federation.flower / "config.toml", write_toml(tables))


_SECONDS = 120
"""Timeout of a Flower command."""


def flwr(federation: Federation, *words: str) -> dict[str, Any]:
    """Run a ``flwr`` command and return its JSON answer. Paths among the words must be absolute.

    It runs in the federation's folder: Flower also looks for apps in the current one, perhaps unsafe or unreadable.
    """
    command = [tool("flwr"), *words, "--format", "json"]
    try:
        done = subprocess.run(
            command,
            env=environment(federation.flower),
            cwd=federation.folder,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise FedmmError(f"flwr {words[0]} did not answer within {_SECONDS} seconds") from None
    answer = _last_json(done.stdout)
    if answer is None or not answer.get("success", done.returncode == 0):
        said = str((answer or {}).get("error-message") or done.stderr or done.stdout).strip().replace("\n", " ")
        raise FedmmError(f"flwr {' '.join(words[:2])} failed: {said[:400]}")
    return answer


def _last_json(text: str) -> dict[str, Any] | None:
    for start in [place for place, letter in enumerate(text) if letter == "{"]:
        try:
            found = json.loads(text[start:])
        except ValueError:
            continue
        return found if isinstance(found, dict) else None
    return None


def write_app(federation: Federation) -> None:
    """Write the app for the SuperLink: which modules to load, and the keys of a run's configuration."""
    write_text(federation.app / "pyproject.toml", APP)


APP = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "fedmm-federation"
version = "0.1.0"
description = "Federated minimax optimisation and domain adaptation by fedmm"
license = "Apache-2.0"
dependencies = ["fedmm[flower]"]

[tool.hatch.build.targets.wheel]
bypass-selection = true

[tool.flwr.app]
publisher = "fedmm"

[tool.flwr.app.components]
serverapp = "fedmm.deploy.flower_apps:server"
clientapp = "fedmm.deploy.flower_apps:client"

[tool.flwr.app.config]
run = ""
experiment = ""
resume = false
patience = 600.0
enrol-seconds = 600.0
min-sites = 0
tuning = ""
"""
