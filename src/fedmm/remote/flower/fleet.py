"""A SuperLink node without an app: it speaks Flower's Fleet API itself, with the same TLS and node keys.

It pulls a message object by object, confirms it and answers; it executes nothing from a message, starts no process and
opens no port. The names it uses are internal to Flower, as they are in the versions ``TESTED``.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import flwr
import httpx
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedmm.core.errors import require
from fedmm.remote.packed import MESSAGE_TYPES, Malformed, one_line

TESTED = ("1.41.0",)
"""The versions of Flower with whose Fleet API this was tested."""

BEAT = 15.0
"""Heartbeat interval that a node announces, in seconds; the SuperLink drops it after twice as long."""

_MOST_OBJECTS, _MOST_BYTES, _AT_ONCE = 1000, 4 << 30, 8
_TRIES, _PAUSE, _LONGEST_PAUSE = 200, 0.1, 1.0
_KINDS = {message_type: kind for kind, message_type in MESSAGE_TYPES.items()}

T = TypeVar("T")


class Unreachable(Exception):  # noqa: N818 - reads as what is the matter
    """The SuperLink cannot be reached, or is not ready."""


class TurnedAway(Exception):  # noqa: N818 - reads as what happened
    """The SuperLink refused a request. status, date: of the HTTP response; the date is by the responder's clock."""

    def __init__(self, status: int, reason: str, date: str | None = None) -> None:
        super().__init__(reason)
        self.status = status
        self.date = date


@dataclass(frozen=True)
class Question:
    """A message for this node. kind: of the question. run: Flower's number of the run."""

    message: Message
    kind: str
    run: int

    @property
    def records(self) -> RecordDict:
        """The message's content."""
        return self.message.content


def require_tested() -> None:
    """Raise FedmmError if this version of Flower is untested, since its Fleet API may differ."""
    require(
        flwr.__version__ in TESTED,
        f"this node was tested with flwr {', '.join(TESTED)}, not with {flwr.__version__}; "
        f"pip install 'flwr=={TESTED[-1]}'",
    )


class FleetNode:
    """One node's connection to a SuperLink.

    address: host:port. context: TLS with the trusted certificates and the node's own; None for plain text.
    key: the node's private key; None, for plain text only, creates one and registers it for this connection.
    """

    def __init__(self, address: str, context: ssl.SSLContext | None, key: Any = None) -> None:
        require_tested()
        self._made_up = key is None
        private, public = generate_key_pairs() if key is None else (key, key.public_key())
        self._public = public_key_to_bytes(public)
        self._client = FleetHttpClient(
            f"{'http' if context is None else 'https'}://{address}",
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, public),
            ],
            verify=context if context is not None else False,
        )
        self._node: Node | None = None
        self._transfers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="transfer")
        self._pause = threading.Event()

    @property
    def number(self) -> int:
        """Flower's number of this node; 0 before it is activated."""
        return int(self._node.node_id) if self._node is not None else 0

    def activate(self, former: int = 0) -> int:
        """Come online; return the node's number. former: that of an earlier process that may still count as online."""
        if self._made_up:
            _call(self._client.RegisterNode, RegisterNodeFleetRequest(public_key=self._public))
        if former:
            with suppress(TurnedAway):
                _call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=former))
        response = _call(
            self._client.ActivateNode, ActivateNodeRequest(public_key=self._public, heartbeat_interval=BEAT)
        )
        self._node = Node(node_id=response.node_id)
        return self.number

    def beat(self) -> bool:
        """Send a heartbeat; return whether the SuperLink still knows the node."""
        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=BEAT)
        return bool(_call(self._client.SendNodeHeartbeat, request).success)

    def receive(self) -> Question | None:
        """Return the next message, complete; None if there is none. Raise Malformed for any that no server sends."""
        response = _call(self._client.PullMessages, PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        asked = message_from_proto(response.messages_list[0])
        about = asked.metadata
        kind = _KINDS.get(about.message_type)
        objects = [tree.object_id for tree in iterate_object_tree(response.message_object_trees[0])]
        if about.src_node_id != SUPERLINK_NODE_ID or about.reply_to_message_id:
            raise Malformed(f"a message from node {about.src_node_id}, which is not the server, is ignored")
        if kind is None or len(objects) > _MOST_OBJECTS:
            raise Malformed(
                f"a message of type {one_line(about.message_type, 40)!r} with {len(objects)} parts is not valid"
            )
        contents = self._pulled(about.run_id, list(dict.fromkeys(objects)))
        _call(
            self._client.ConfirmMessageReceived,
            ConfirmMessageReceivedRequest(node=self._node, run_id=about.run_id, message_object_id=about.message_id),
        )
        try:
            whole = inflate_object_from_contents(about.message_id, contents)
        except Exception as problem:  # whatever the bytes contain, the node must go on
            raise Malformed(f"a message cannot be read: {one_line(problem)}") from problem
        if not isinstance(whole, Message) or not whole.has_content():
            raise Malformed("a message has no content")
        whole.metadata.__dict__["_message_id"] = about.message_id
        return Question(whole, kind, int(about.run_id))

    def reply(self, question: Question, content: RecordDict, seconds: float) -> None:
        """Answer a message. seconds: how long the work took."""
        reply = Message(content, reply_to=question.message)
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            objects = get_all_nested_objects(reply)
            response = _call(
                self._client.PushMessages,
                PushMessagesRequest(
                    node=self._node,
                    messages_list=[message_to_proto(remove_content_from_message(reply))],
                    message_object_trees=[get_object_tree(reply)],
                    clientapp_runtime_list=[seconds],
                ),
            )
            wanted = [(name, objects[name].deflate()) for name in response.objects_to_push]

        def push(entry: tuple[str, bytes]) -> None:
            name, content = entry
            request = PushObjectRequest(
                node=self._node,
                run_id=question.run,
                object_id=name,
                object_content=content,
                session_id=response.session_id,
            )
            if not self._patiently(self._client.PushObject, request).stored:
                raise Unreachable("the SuperLink did not accept a part of the answer")

        list(self._transfers.map(push, wanted))

    def close(self) -> None:
        """Go offline, if the SuperLink can be reached."""
        with suppress(Unreachable, TurnedAway):
            if self._node is not None:
                _call(self._client.DeactivateNode, DeactivateNodeRequest(node_id=self.number))
                if self._made_up:
                    _call(self._client.UnregisterNode, UnregisterNodeFleetRequest(node_id=self.number))
        self._transfers.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _patiently(self, method: Callable[[Any], T], request: Any) -> T:
        """Make a request; retry if the SuperLink is unreachable, for example behind a proxy that limits requests."""
        for pause in (0.1, 0.3, 1.0, 3.0):
            try:
                return _call(method, request)
            except Unreachable:
                self._pause.wait(pause)
        return _call(method, request)

    def _pulled(self, run: int, names: list[str]) -> dict[str, bytes]:
        """Pull a message's objects, which may be listed before they are available."""
        total = 0

        def pull(name: str) -> bytes:
            nonlocal total
            pause = _PAUSE
            for _ in range(_TRIES):
                response = self._patiently(
                    self._client.PullObject, PullObjectRequest(node=self._node, run_id=run, object_id=name)
                )
                if not response.object_found:
                    raise Malformed("a part of a message is missing")
                if response.object_available:
                    total += len(response.object_content)
                    if total > _MOST_BYTES:
                        raise Malformed(f"a message has more than {_MOST_BYTES} bytes")
                    return bytes(response.object_content)
                self._pause.wait(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE)
            raise Malformed("a part of a message did not arrive")

        first = {name: pull(name) for name in names[:1]}  # until it is available, the others are not either
        return first | dict(zip(names[1:], self._transfers.map(pull, names[1:]), strict=True))


def _call(method: Callable[[Any], T], request: Any) -> T:
    """Make a request; turn Flower's and HTTP's errors into the two exceptions above."""
    try:
        return method(request)
    except httpx.HTTPStatusError as problem:
        response = problem.response
        if response.status_code in (502, 503, 504):
            raise Unreachable(f"HTTP {response.status_code}") from problem
        reason = f"HTTP {response.status_code}: {one_line(response.text)}"
        raise TurnedAway(response.status_code, reason, response.headers.get("date")) from problem
    except (httpx.HTTPError, OSError) as problem:
        raise Unreachable(one_line(problem) or type(problem).__name__) from problem
