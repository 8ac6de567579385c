"""Flower's grid without network and processes: nodes' answers are computed when messages are pushed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

SERVER = 1
RUN, TASK = 5, 9


@contextmanager
def acting_as(node: int) -> Iterator[None]:
    """Take on a node's identity, from which Flower fills in its messages' sender."""
    before = TaskIdentity._node_id
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, node, TASK
    try:
        yield
    finally:
        TaskIdentity._node_id = before


def called(app: ClientApp, message: Message, node: Mapping[str, Any], run: Mapping[str, Any]) -> Message:
    """Return the answer of the node that a message is for. node, run: the node's configuration and the run's."""
    number = message.metadata.dst_node_id
    with acting_as(number):
        return app(message, Context(RUN, number, dict(node), RecordDict(), dict(run)))


class LocalGrid(Grid):
    """A grid that numbers messages as they are pushed and keeps answers in ``replies`` until they are pulled."""

    def __init__(self) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, SERVER, TASK
        self.replies: dict[str, list[Message]] = {}
        self.pushed = 0

    def answered(self, message: Message) -> list[Message]:
        """Return the answers that come back at once."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *arguments: Any, **named: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            numbers.append(f"message-{self.pushed}")
            self.pushed += 1
            message.metadata.__dict__["_message_id"] = numbers[-1]
            self.replies[numbers[-1]] = self.answered(message)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [reply for number in list(message_ids) for reply in self.replies.pop(number, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(list(messages)))
