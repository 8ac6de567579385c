"""A site's half as a Flower ClientApp. Needs no torch: what a site computes is behind a handler that is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmm.core.errors import FedmmError
from fedmm.remote.flower.envelope import read, to_records
from fedmm.remote.packed import DESCRIBE, INTRODUCE, MEASURE, PROBLEM, TRAIN, Malformed, Packed

Handler = Callable[[str, Packed], Packed]
"""Answers a question of one of the kinds."""

Site = Callable[[Mapping[str, Any], Mapping[str, Any]], Handler]
"""A handler for the configuration of a node and that of a run."""


def client_app(site: Site, mods: Sequence[Any] = ()) -> ClientApp:
    """An app that hands every message to a site's handler, and its answer back. mods: of Flower's, for rounds.

    To the answers of rounds, and to no others, it adds the seconds that it took.
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
