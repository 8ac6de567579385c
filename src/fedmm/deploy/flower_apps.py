"""The two apps that Flower loads: its ServerApp beside the SuperLink, and a ClientApp for its simulations.

``flwr run`` simulates one SuperNode per share of the data. Sites on other machines run :mod:`fedmm.sites.node` instead,
which executes no app.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmm.core.errors import require
from fedmm.deploy.layout import RunRequest
from fedmm.deploy.processes import MARK
from fedmm.remote.flower.apps import Grid, Handler, client_app, server_app
from fedmm.remote.packed import Packed
from fedmm.sites.config import SiteConfig, read_site

SITE, PARTITION = "site", "partition-id"
"""Keys of a node's configuration: the site's file or, in Flower's simulation, the number of the site."""


def _serve(grid: Grid, run: Mapping[str, Any]) -> None:
    from fedmm.deploy.server import serve  # noqa: PLC0415 - torch is not loaded before it is needed
    from fedmm.deploy.tuning import serve_tuning  # noqa: PLC0415 - as above

    folder = os.environ.get(MARK, "")
    require(bool(folder), f"the SuperLink was started without {MARK}, the folder for runs and keys")
    request = RunRequest.from_run_config(Path(folder), run)
    (serve_tuning if request.tuning else serve)(grid, request)


def _handler(node: Mapping[str, Any], run: Mapping[str, Any]) -> Handler:
    from fedmm.sites.work import SiteWork  # noqa: PLC0415 - torch is not loaded before it is needed

    work = SiteWork(_config(node, run))

    def handle(kind: str, question: Packed) -> Packed:
        told = {key: value for key, value in run.items() if key in ("run", "experiment")}
        return work(kind, question._replace(about={**question.about, **told}))

    return handle


def _config(node: Mapping[str, Any], run: Mapping[str, Any]) -> SiteConfig:
    if SITE in node:
        return read_site(Path(str(node[SITE])))
    require(PARTITION in node, f"the SuperNode was started without --node-config '{SITE}=\"FILE.toml\"'")
    from fedmm.deploy.local import build_simulated_site  # noqa: PLC0415 - torch is not loaded before it is needed

    return build_simulated_site(int(node[PARTITION]), str(run["experiment"]))


server = server_app(_serve)
client = client_app(_handler)
