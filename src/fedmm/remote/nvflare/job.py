"""An NVFlare job as a folder: names of classes and their arguments, no code."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CONTROLLER = "fedmm.remote.nvflare.controller.RelayController"
EXECUTOR = "fedmm.remote.nvflare.executor.SiteExecutor"
CLASSES = (CONTROLLER, EXECUTOR)
"""What a job names; sites have to allow it."""

BUILT_IN = ("fedmm.runs.on_nvflare:site",)
"""The functions that a job may name as ``site`` without leave."""

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Job:
    """Clients, and what makes a site of each.

    clients: their names. site, arguments: ``module:function``, which makes a handler of packed questions from a
    client's name and these arguments. socket, secret: where the driver listens, and the file with the key to it.
    log: where to look when a client fails.
    """

    clients: Sequence[str]
    site: str
    arguments: Mapping[str, Any]
    socket: Path
    secret: Path
    log: Path

    def write(self, folder: Path) -> None:
        """Leave the job in a folder that is not there yet."""
        config = folder / "app" / "config"
        config.mkdir(parents=True)
        relay = {"socket": str(self.socket), "secret": str(self.secret), "log": str(self.log)}
        site = {"site": self.site, "arguments": dict(self.arguments)}
        _json(
            folder / "meta.json",
            {
                "name": "fedmm",
                "resource_spec": {},
                "min_clients": len(self.clients),
                "mandatory_clients": list(self.clients),
                "deploy_map": {"app": ["@ALL"]},
            },
        )
        _json(
            config / "config_fed_server.json",
            {
                "server": {"task_request_interval": _POLL_SECONDS},
                "workflows": [{"id": "relay", "path": CONTROLLER, "args": relay}],
            },
        )
        _json(
            config / "config_fed_client.json",
            {
                "executors": [
                    {"tasks": ["*"], "executor": {"path": EXECUTOR, "args": site}},
                ],
            },
        )


def _json(path: Path, table: dict[str, Any]) -> None:
    path.write_text(json.dumps({"format_version": 2, **table}, indent=2) + "\n", encoding="utf-8")
