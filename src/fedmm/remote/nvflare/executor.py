"""A site as an NVFlare executor: it lives as long as a job, and passes every task to a handler that is built once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.executor import Executor
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from fedmm.core.errors import FedmmError
from fedmm.core.imports import import_allowed
from fedmm.remote.nvflare.job import BUILT_IN
from fedmm.remote.packed import INTRODUCE, PROBLEM, Malformed, Packed

Handler = Callable[[str, Packed], Packed]
"""Answers a question of a given kind."""


class SiteExecutor(Executor):  # type: ignore[misc] # NVFlare has no types
    """Answers tasks one at a time, even if one is repeated before its first answer.

    Asked to introduce itself, it builds its handler and returns its process id.
    site: ``module:function``, which makes a handler from the client's name and the arguments; a job may only name ours,
        unless whoever runs the client has allowed it (:func:`fedmm.allow_import`).
    """

    def __init__(self, site: str, arguments: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._site = site
        self._arguments = dict(arguments or {})
        self._handler: Handler | None = None
        self._one_at_a_time = Lock()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """Return the handler's answer; the message of a FedmmError travels in its place."""
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


# Messages as data exchange objects, whose arrays NVFlare's filters see by name ----------------------------------------

_ABOUT, _METRICS = "about", "metrics"


def to_shareable(packed: Packed) -> Shareable:
    """Convert a message to an NVFlare ``Shareable``."""
    return DXO(DataKind.WEIGHTS, dict(packed.arrays), {_ABOUT: packed.about, _METRICS: packed.metrics}).to_shareable()


def to_packed(shareable: Shareable) -> Packed:
    """Read a message from an NVFlare ``Shareable``."""
    try:
        found = from_shareable(shareable)
        about, metrics = found.get_meta_prop(_ABOUT), found.get_meta_prop(_METRICS)
    except Exception as problem:  # whatever arrived, report it as the sender's error
        raise Malformed(f"it did not send a data exchange object: {problem}") from problem
    if not isinstance(about, dict) or not isinstance(metrics, dict):
        raise Malformed("it does not say what its message is about")
    for name, array in found.data.items():
        if not isinstance(array, np.ndarray):
            raise Malformed(f"its {name!r} is not an array")
    return Packed(dict(found.data), about, metrics)
