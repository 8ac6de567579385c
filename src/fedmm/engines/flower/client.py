"""A site's half as a Flower ClientApp. Needs no torch: what a site computes is behind a handler that is given."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedmm.core.errors import FedmmError
from fedmm.engines.flower.kinds import DESCRIBE, INTRODUCE, MEASURE, PROBLEM, TRAIN
from fedmm.engines.flower.records import from_records, to_records
from fedmm.engines.packed import Malformed, Packed

Handler = Callable[[str, Packed], Packed]
"""Answers a question of one of the kinds."""

Site = Callable[[Mapping[str, Any], Mapping[str, Any]], Handler]
"""A handler for the configuration of a node and that of a run."""


def client_app(site: Site, mods: Sequence[Any] = ()) -> ClientApp:
    """An app that hands every message to a site's handler, and its answer back. mods: of Flower's, for rounds.

    To the answers of rounds, and to no others, it adds the seconds that it took.
    """
    app = ClientApp()
    before: list[str] = []

    def answered(kind: str, message: Message, context: Context) -> Message:
        began = time.time()
        try:
            asked = from_records(message.content)
            answer = site(context.node_config, context.run_config)(kind, asked)
        except (FedmmError, Malformed) as problem:
            answer = Packed({}, {PROBLEM: str(problem)}, {})
        if kind == TRAIN:
            answer.about["handled"] = round(time.time() - began, 3)
            if not before and "partition-id" not in context.node_config:  # in a simulation processes live on, and wait
                answer.about.update(process=round(_LOADED - _BEGAN, 3), started=round(began - _LOADED, 3))
        before.append(message.metadata.message_id)
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


def _process_began(now: float) -> float:
    """When this process was started, where the system tells; else now."""
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return now
    return now - up + ticks / os.sysconf("SC_CLK_TCK")


_LOADED = time.time()
"""When Flower loaded the app; until then its process has started, and has fetched the message."""
_BEGAN = _process_began(_LOADED)
