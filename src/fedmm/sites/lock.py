"""One process at a time with a site's state folder. Needs no torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedmm.core.errors import FedmmError

LOCK = "site.lock"


@contextmanager
def holding_site(state: Path) -> Iterator[None]:
    """Be the one process that works with a site's state; refused while another one does."""
    import fcntl  # noqa: PLC0415 - not on every system

    number = os.open(state / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(number, "r+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FedmmError(f"the site with its state in {state} is at work; end it first") from None
        yield
