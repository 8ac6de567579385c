"""The server's end of an NVFlare job: it relays the questions of the process that drives the rounds to the clients."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Client
from pathlib import Path
from uuid import uuid4

from nvflare.apis.client import Client as FLClient
from nvflare.apis.fl_constant import ReservedKey, ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.server_engine_spec import ServerEngineSpec
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from fedmm.remote.nvflare.executor import to_packed, to_shareable
from fedmm.remote.nvflare.job import Place
from fedmm.remote.packed import ANSWERS, PROBLEM, Malformed, Packed, receive_each, send_each

_PAUSE = 0.2
_UNREACHED = (ReturnCode.COMMUNICATION_ERROR, ReturnCode.TIMEOUT)


class RelayController(Controller):  # type: ignore[misc] # NVFlare has no types
    """Pushes tasks to the clients over the channel of NVFlare's own client-controlled workflows.

    If clients fetched tasks, every round would cost a polling interval or more; executors and a site's filters see no
    difference. socket: where the driver listens. secret: the file with its key. log: where to look if a client fails.
    """

    def __init__(self, socket: str, secret: str, log: str) -> None:
        super().__init__()
        self._log = log
        self._socket = socket
        self._secret = secret

    def start_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: there is nothing to prepare."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """Relay questions and answers until the driver is gone; then end the processes that it had no time to end."""
        with (
            suppress(EOFError, OSError),
            Client(self._socket, family="AF_UNIX", authkey=Path(self._secret).read_bytes()) as driver,
        ):
            while not abort_signal.triggered:
                kind, questions, seconds = receive_each(driver)
                answers = self._answers(kind, questions, seconds, abort_signal, fl_ctx)
                send_each(driver, ANSWERS, answers)
        Place(Path(self._socket).parent).stop()

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Do nothing: everything to keep is with the driver and the sites."""

    def process_result_of_unknown_task(
        self, client: FLClient, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """Do nothing: clients fetch no tasks."""

    def _answers(
        self, kind: str, questions: Mapping[str, Packed], seconds: float, abort_signal: Signal, fl_ctx: FLContext
    ) -> dict[str, Packed]:
        """Return the answers that arrive within ``seconds``."""
        deadline = time.monotonic() + seconds

        def asked(name: str) -> Packed | None:
            reply = _reply(name, _task(kind, questions[name]), deadline, abort_signal, fl_ctx.get_engine())
            return None if reply is None else self._answer(name, reply)

        with ThreadPoolExecutor(len(questions)) as threads:
            found = dict(zip(questions, threads.map(asked, questions), strict=True))
        return {name: answer for name, answer in found.items() if answer is not None}

    def _answer(self, name: str, reply: Shareable) -> Packed:
        code = reply.get_return_code()
        if code != ReturnCode.OK:
            return Packed({}, {PROBLEM: f"the client {name!r} of NVFlare failed: {code}; {self._log} says why"}, {})
        try:
            return to_packed(reply)
        except Malformed as problem:
            return Packed({}, {PROBLEM: f"the answer of the client {name!r} cannot be read: {problem}"}, {})


def _reply(
    name: str, task: Shareable, deadline: float, abort_signal: Signal, engine: ServerEngineSpec
) -> Shareable | None:
    """Return a client's reply; until the deadline, ask again if it cannot be reached."""
    while not abort_signal.triggered and (left := deadline - time.monotonic()) > 0:
        with engine.new_context() as fl_ctx:
            replies = engine.send_aux_request([name], ReservedTopic.DO_TASK, task, left, fl_ctx, optional=True)
        reply = replies.get(name)
        if reply is not None and reply.get_return_code() not in _UNREACHED:
            return reply
        time.sleep(_PAUSE)
    return None


def _task(kind: str, question: Packed) -> Shareable:
    shareable = to_shareable(question)
    shareable.set_header(ReservedKey.TASK_NAME, kind)
    shareable.set_header(ReservedHeaderKey.TASK_ID, str(uuid4()))
    return shareable
