"""A site as an NVFlare executor: it lives as long as a job, and hands every task to a handler that is built once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedmm.core.errors import FedmmError
from fedmm.core.imports import import_allowed
from fedmm.remote.kinds import INTRODUCE, PROBLEM
from fedmm.remote.nvflare.job import BUILT_IN
from fedmm.remote.nvflare.messages import to_packed, to_shareable
from fedmm.remote.packed import Malformed, Packed

Handler = Callable[[str, Packed], Packed]
"""Answers a question of a kind."""


class SiteExecutor(Executor):  # type: ignore[misc] # NVFlare has no types
    """Answers tasks one after the other, also where one is put again before the first was answered.

    Asked to introduce itself, it builds its handler, and tells the number of its process.
    site: ``module:function``, which makes a handler from the client's name and the arguments; a job may name no other
        than ours, unless who runs the client has allowed it (:func:`fedmm.allow_import`).
    """

    def __init__(self, site: str, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._site = site
        self._arguments = dict(arguments or {})
        self._handler: Handler | None = None
        self._one_at_a_time = Lock()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """The handler's answer; a sentence that is meant for the user travels in its place."""
        try:
            with self._one_at_a_time:
                if self._handler is None:
                    make = import_allowed(self._site, "site", built_in=BUILT_IN)
                    self._handler = make(fl_ctx.get_identity_name(), **self._arguments)
                introduction = Packed({}, {"pid": os.getpid()}, {})
                answer = introduction if task_name == INTRODUCE else self._handler(task_name, to_packed(shareable))
        except (FedmmError, Malformed) as problem:
            answer = Packed({}, {PROBLEM: str(problem)}, {})
        return to_shareable(answer)
