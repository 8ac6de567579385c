"""A server's half as a Flower ServerApp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

__all__ = ["Grid", "Serve", "server_app"]

Serve = Callable[[Grid, Mapping[str, Any]], None]
"""Runs a federation over a grid, as the run's configuration says."""


def server_app(serve: Serve) -> ServerApp:
    """An app that runs a federation from its first round, or the one it goes on from, to its last."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        serve(grid, context.run_config)

    return app
