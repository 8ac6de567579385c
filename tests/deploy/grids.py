"""A grid in one process whose nodes are real sites: their files, rows and states, and the app that Flower loads."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engines.flower.loopback import SERVER, acting_as
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedmm.deploy.site_app import app

UNAVAILABLE = 5


class SitesGrid(Grid):
    """files: of the sites. dead: nodes whose answers are Flower's word that they are gone, as often as it says.

    hanging: sites that never answer an invitation. silent: sites that never answer what they are to measure.
    """

    def __init__(self, files: Iterable[Path], run: dict[str, Any]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 5, SERVER, 9
        self.files = {9000 - 13 * number: file for number, file in enumerate(files)}
        self.run_config = run
        self.dead: dict[str, int] = {}
        self.hanging: set[str] = set()
        self.silent: set[str] = set()
        self.on_reply: Any = lambda name, reply: reply
        self.replies: dict[str, Message] = {}
        self.pushed = 0
        self._numbers = itertools.count()

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.files)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            message.metadata.__dict__["_message_id"] = number
            if not self._hangs(message):
                self.replies[number] = self._called(message)
            numbers.append(number)
            self.pushed += 1
        return numbers

    def _hangs(self, message: Message) -> bool:
        name = self.files[message.metadata.dst_node_id].stem
        return name in {"train": self.hanging, "evaluate": self.silent}.get(message.metadata.message_type, set())

    def _called(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        name = self.files[node].stem
        with acting_as(node):
            if self.dead.get(name, 0) > 0 and message.metadata.message_type == "train":
                self.dead[name] -= 1
                return Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=message)
            context = Context(5, node, {"site": str(self.files[node])}, RecordDict(), self.run_config)
            return self.on_reply(name, app(message, context))

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(number) for number in list(message_ids) if number in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
