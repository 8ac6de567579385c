"""A site as a Flower ClientApp and the server as a ServerApp; callables do the work, so neither needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.inflatable import inflatable_utils
from flwr.superlink.grid import http_grid

from fedmm.core.errors import FedmmError
from fedmm.remote.flower.envelope import read, to_records
from fedmm.remote.packed import DESCRIBE, INTRODUCE, MEASURE, PROBLEM, TRAIN, Malformed, Packed

__all__ = ["Grid", "Handler", "Serve", "Site", "client_app", "run_number", "server_app"]

Handler = Callable[[str, Packed], Packed]
"""Answers a question of a given kind."""

Site = Callable[[Mapping[str, Any], Mapping[str, Any]], Handler]
"""Makes a handler from a node's configuration and a run's."""


def client_app(site: Site, mods: Sequence[Any] = ()) -> ClientApp:
    """Build an app that passes every message to a site's handler and returns its answer. mods: Flower's, for rounds.

    Answers to rounds, and no others, also report the seconds they took.
    """
    app = ClientApp()

    def answered(kind: str, message: Message, context: Context) -> Message:
        began = time.perf_counter()
        try:
            asked = read(message.content)
            answer = site(context.node_config, context.run_config)(kind, asked)
        except (FedmmError, Malformed) as problem:
            answer = Packed({}, {PROBLEM: str(problem)}, {})
        if kind == TRAIN:
            answer.about["handled"] = round(time.perf_counter() - began, 3)
        return Message(to_records(answer), reply_to=message)

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        return answered(INTRODUCE, message, context)

    @app.query(DESCRIBE)
    def describe(message: Message, context: Context) -> Message:
        return answered(DESCRIBE, message, context)

    @app.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        return answered(TRAIN, message, context)

    @app.evaluate()
    def measure(message: Message, context: Context) -> Message:
        return answered(MEASURE, message, context)

    return app


_BACKOFF, _AT_ONCE = 0.05, 8

Serve = Callable[[Grid, Mapping[str, Any]], None]
"""Runs a federation over a grid, according to the run's configuration."""


def server_app(serve: Serve) -> ServerApp:
    """Build an app that runs a federation from its first round, or the one to resume from, to its last."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        _shorten_waits()
        serve(grid, context.run_config)

    return app


def run_number(grid: Grid) -> int:
    """Return Flower's number of a grid's run; 0 if it has none."""
    return int(getattr(grid.run, "run_id", 0))


def _shorten_waits() -> None:
    """Shorten the second that Flower waits if it lists a reply before its parts; it has no option for that."""
    pull = partial(inflatable_utils.pull_objects, initial_backoff=_BACKOFF, max_concurrent_pulls=_AT_ONCE)
    setattr(http_grid, "pull_objects", pull)  # noqa: B010 - a name that Flower does not export
