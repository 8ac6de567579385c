"""Messages by client between the process that drives a run and NVFlare's server. Needs no NVFlare."""

from __future__ import annotations

from collections.abc import Mapping

from fedmm.remote.framing import Pipe, receive, send
from fedmm.remote.packed import Packed

ANSWERS = "answers"


def send_each(pipe: Pipe[bytes, bytes], kind: str, messages: Mapping[str, Packed], seconds: float = 0.0) -> None:
    """Send a message of a kind for, or from, each of these clients. seconds: that answers are waited for."""
    send(pipe, kind, Packed({}, {"messages": len(messages), "seconds": seconds}, {}))
    for name, packed in messages.items():
        send(pipe, name, packed)


def receive_each(pipe: Pipe[bytes, bytes]) -> tuple[str, dict[str, Packed], float]:
    """The next messages: their kind, each by its client, and the seconds."""
    kind, head = receive(pipe)
    messages = dict(receive(pipe) for _ in range(int(head.about["messages"])))
    return kind, messages, float(head.about["seconds"])
