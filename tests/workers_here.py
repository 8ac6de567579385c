"""Replace parallel worker processes by a thread of this process, which executes runs one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def workers_here() -> Iterator[None]:
    def pool(number: int, *, initializer: Any, initargs: Any, **_: Any) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(1, initializer=initializer, initargs=initargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedmm.runs.workers.ProcessPoolExecutor", pool)
        yield
