"""The files of ``deploy/``, parsed as their programs read them, and the paths and ports that they contain."""

from __future__ import annotations

import shlex
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yml").read_text())
PROXY = (FOLDER / "nginx.conf").read_text()
INSTALLED = "/opt/fedmm/bin"
KEPT = "/var/lib/fedmm"
COORDINATOR = f"{KEPT}/federation"
SITES = "/etc/fedmm"
OUTSIDE, INSIDE = 9092, 9093
"""The ports of the proxy, to which sites connect, and of the SuperLink, to which the proxy connects."""


def unit(name: str) -> dict[str, list[str]]:
    """Return a unit's settings by name, with continued lines joined; a setting may occur more than once."""
    text = (FOLDER / "systemd" / name).read_text().replace("\\\n", " ")
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            settings.setdefault(key, []).append(value.strip())
    return settings


def command(name: str) -> list[str]:
    """Return the command that a unit starts."""
    (line,) = unit(name)["ExecStart"]
    return shlex.split(line)


def variables(name: str) -> dict[str, str]:
    """Return the environment that a unit sets."""
    words = (word for line in unit(name)["Environment"] for word in shlex.split(line))
    return dict(word.split("=", 1) for word in words)
