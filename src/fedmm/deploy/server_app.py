"""The ServerApp that Flower loads beside the SuperLink."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedmm.core.errors import require
from fedmm.deploy.layout import RunRequest
from fedmm.remote.flower.apps import Grid, server_app

FEDERATION = "FEDMM_FEDERATION"
"""The variable that names the federation's folder on the SuperLink's machine."""


def _serve(grid: Grid, run: Mapping[str, Any]) -> None:
    from fedmm.deploy.server import serve  # noqa: PLC0415 - torch is not loaded before it is needed

    folder = os.environ.get(FEDERATION, "")
    require(bool(folder), f"the SuperLink was started without {FEDERATION}, the folder for runs and keys")
    serve(grid, RunRequest.from_run_config(Path(folder), run))


app = server_app(_serve)
