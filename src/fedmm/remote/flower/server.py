"""A server's half as a Flower ServerApp."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable import inflatable_utils
from flwr.superlink.grid import http_grid

__all__ = ["Grid", "Serve", "run_number", "server_app"]

_BACKOFF, _AT_ONCE = 0.05, 8

Serve = Callable[[Grid, Mapping[str, Any]], None]
"""Runs a federation over a grid, as the run's configuration says."""


def server_app(serve: Serve) -> ServerApp:
    """An app that runs a federation from its first round, or the one it goes on from, to its last."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _shorten_waits()
        serve(grid, context.run_config)

    return app


def run_number(grid: Grid) -> int:
    """Flower's number of a grid's run; 0 of one that has none."""
    return int(getattr(grid.run, "run_id", 0))


def _shorten_waits() -> None:
    """Flower lists a reply before its parts are there, and then waits a second; none of its options shortens that."""
    pull = partial(inflatable_utils.pull_objects, initial_backoff=_BACKOFF, max_concurrent_pulls=_AT_ONCE)
    setattr(http_grid, "pull_objects", pull)  # noqa: B010 - a name that Flower does not export
