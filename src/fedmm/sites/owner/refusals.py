"""What a site refuses: which refusals of a day are written to its audit log, so that nobody can fill its disk.

Needs no torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from fedmm.core.errors import FedmmError
from fedmm.remote.packed import one_line
from fedmm.sites.owner.ledger import Ledger

LONGEST_SENTENCE = 500
"""Characters of a refusal's sentence that are written down: a part of it may be another machine's."""
MOST_BYTES_A_DAY = 4 << 20
"""Of the audit log, for questions that are refused, their experiments and the refusals, in a day (UTC)."""
_EACH = 10
"""So many refusals of a sentence are written one by one."""
FURTHER = "further refusals of this day, counted and not written down one by one"


class NotAllowed(FedmmError):  # noqa: N818 - reads as what is the matter
    """What a site refuses whenever it is asked, as long as its owner changes nothing."""


def permit(condition: bool, message: str) -> None:
    """Raise ``NotAllowed(message)`` unless ``condition`` holds."""
    if not condition:
        raise NotAllowed(message)


class Counted(NamedTuple):
    """A refusal that is written. times: how often it was met this day, at least. details: whether to say more of it."""

    kind: str
    sentence: str
    times: int
    details: bool


class RefusalCounts:
    """Counts a day's refusals; the first ten of each sentence are written, then the 16th, 32nd, 64th ...

    Beyond ``MOST_BYTES_A_DAY`` all that follow are counted as one. The ledger has what was written before a restart.
    """

    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._now = now
        self._day = ""
        self._times: dict[tuple[str, str], int] = {}
        self._unwritten = 0

    @property
    def exhausted(self) -> bool:
        """Whether refusals have taken their part of the log for this day."""
        self._turn()
        return self._ledger.refused_bytes(self._day) + self._unwritten >= MOST_BYTES_A_DAY

    def count(self, kind: str, sentence: str, size: int) -> Counted | None:
        """Count a refusal. size: bytes that its question added to the log. None where it is not to be written."""
        full = self.exhausted
        name, said = ("", FURTHER) if full else (one_line(kind, 40), one_line(sentence, LONGEST_SENTENCE))
        before = max(self._times.get((name, said), 0), self._ledger.refused_times(self._day, name, said))
        times = self._times[name, said] = before + 1
        if times > _EACH and times & (times - 1):  # no power of two
            self._unwritten += size
            return None
        return Counted(name, said, times, not full)

    def take_unwritten(self) -> int:
        """The bytes of questions whose refusals were not written, which the next one that is accounts for."""
        size, self._unwritten = self._unwritten, 0
        return size

    def _turn(self) -> None:
        day = max(time.strftime("%Y-%m-%d", time.gmtime(self._now())), self._ledger.refused_on)
        if day != self._day:
            self._day, self._unwritten = day, 0
            self._times.clear()
