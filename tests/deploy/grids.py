"""A grid in one process whose nodes are real sites: their files, rows and states, and the app that Flower loads."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engines.flower.local_grid import LocalGrid, acting_as, called
from flwr.app import Error, Message

from fedmm.deploy.site_app import app

UNAVAILABLE = 5


class SitesGrid(LocalGrid):
    """files: of the sites. dead: nodes whose answers are Flower's word that they are gone, as often as it says.

    hanging: sites that never answer an invitation. silent: sites that never answer what they are to measure.
    """

    def __init__(self, files: Iterable[Path], run: dict[str, Any]) -> None:
        super().__init__()
        self.files = {9000 - 13 * number: file for number, file in enumerate(files)}
        self.run_config = run
        self.dead: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.silent: set[str] = set()
        self.on_reply: Any = lambda name, reply: reply

    def get_node_ids(self) -> list[int]:
        return list(self.files)

    def answered(self, message: Message) -> list[Message]:
        node, kind = message.metadata.dst_node_id, message.metadata.message_type
        name = self.files[node].stem
        if name in {"train": self.hanging, "evaluate": self.silent}.get(kind, set()):
            return []
        with acting_as(node):
            if self.dead.get(name, 0) > 0 and kind == "train":
                self.dead[name] -= 1
                return [Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=message)]
            return [self.on_reply(name, called(app, message, {"site": str(self.files[node])}, self.run_config))]
