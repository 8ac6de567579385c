"""What a site has answered and refused, read from its audit log, so it survives restarts. Needs no torch."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fedmm.core.errors import FedmmError
from fedmm.remote.packed import one_line

EXPERIMENT, PLAN, QUESTION, ANSWER = "experiment", "plan", "question", "answer"
REFUSAL, APPROVAL, POLICY = "refusal", "approval", "policy"
"""The events of an audit log, besides ``mended``."""


@dataclass
class Ledger:
    """The totals of a log's entries.

    questions: answered, of all kinds. rounds: those of them with a new update.
    precision: of the noise of all these rounds, the sum of 1 / multiplier^2; infinite after one without noise.
    answers: digests of answers by digest of the question. experiments: all that were asked for, by hash, as TOML.
    asked: by hash, the runs that it was asked for in. plans: the digests of those in the log.
    refused: number of refusals, at least. refused_on: the day of the last one.
    """

    questions: int = 0
    rounds: int = 0
    precision: float = 0.0
    answers: dict[str, set[str]] = field(default_factory=dict)
    experiments: dict[str, str] = field(default_factory=dict)
    asked: dict[str, list[str]] = field(default_factory=dict)
    approved: set[str] = field(default_factory=set)
    plans: set[str] = field(default_factory=set)
    policy: Mapping[str, Any] | None = None
    refused: int = 0
    refused_on: str = ""
    _refused_times: dict[tuple[str, str], int] = field(default_factory=dict)
    _refused_bytes: int = 0

    def take(self, entry: Mapping[str, Any]) -> None:
        """Count an entry."""
        event = entry["event"]
        if event == ANSWER:
            self.questions += 1
            self.rounds += int(entry["rounds"])
            precision = entry["precision"]
            self.precision += math.inf if precision is None else float(precision)
            self.answers.setdefault(entry["question"], set()).add(entry["answer"])
        elif event == EXPERIMENT:
            self.experiments[entry["experiment"]] = entry["text"]
        elif event == QUESTION and entry["run"] not in self.asked.setdefault(entry["experiment"], []):
            self.asked[entry["experiment"]].append(entry["run"])
        elif event == PLAN:
            self.plans.add(entry["plan"])
        elif event == APPROVAL:
            self.approved.add(entry["experiment"])
        elif event == POLICY:
            self.policy = entry["policy"]
        elif event == REFUSAL:
            self._take_refusal(entry)

    def _take_refusal(self, entry: Mapping[str, Any]) -> None:
        day = str(entry["time"])[:10]
        if day > self.refused_on:
            self.refused_on, self._refused_bytes = day, 0
            self._refused_times.clear()
        which, times = (str(entry["kind"]), str(entry["sentence"])), int(entry.get("times", 1))
        self.refused += max(times - self._refused_times.get(which, 0), 1)
        self._refused_times[which] = times
        self._refused_bytes += int(entry.get("bytes", 0)) + len(json.dumps(entry))

    def refused_bytes(self, day: str) -> int:
        """Return the bytes of the log taken by a day's refusals and their questions; day: the last one or later."""
        return self._refused_bytes if day == self.refused_on else 0

    def refused_times(self, day: str, kind: str, sentence: str) -> int:
        """Return how often this was refused on a day, as far as the log says; day: the last one or later."""
        return self._refused_times.get((kind, sentence), 0) if day == self.refused_on else 0

    def was_sent(self, question: str, answer: str) -> bool:
        """Return whether this answer left to this question before, bit for bit."""
        return answer in self.answers.get(question, ())


LONGEST_SENTENCE = 500
"""Characters of a refusal's sentence to log: another machine may have written part of it."""
MOST_BYTES_A_DAY = 4 << 20
"""Bytes of the audit log per day (UTC) for refused questions, their experiments and the refusals."""
_EACH = 10
"""How many refusals with the same sentence are logged one by one."""
FURTHER = "further refusals of this day, counted and not written down one by one"


class NotAllowed(FedmmError):  # noqa: N818 - reads as what is the matter
    """A refusal that stands until the site's owner changes something."""


def permit(condition: bool, message: str) -> None:
    """Raise ``NotAllowed(message)`` unless ``condition`` holds."""
    if not condition:
        raise NotAllowed(message)


class Counted(NamedTuple):
    """A refusal to log. times: how often it occurred this day, at least. details: whether to log its question too."""

    kind: str
    sentence: str
    times: int
    details: bool


class RefusalCounts:
    """Counts a day's refusals; the first ten of each sentence are logged, then the 16th, 32nd, 64th ...

    After ``MOST_BYTES_A_DAY``, all others count as one kind. The ledger has what was logged before a restart.
    """

    def __init__(self, ledger: Ledger, now: Callable[[], float] = time.time) -> None:
        self._ledger = ledger
        self._now = now
        self._day = ""
        self._times: dict[tuple[str, str], int] = {}
        self._unwritten = 0

    @property
    def exhausted(self) -> bool:
        """Whether refusals have used up their part of the log for this day."""
        self._turn()
        return self._ledger.refused_bytes(self._day) + self._unwritten >= MOST_BYTES_A_DAY

    def count(self, kind: str, sentence: str, size: int) -> Counted | None:
        """Count a refusal; None if it is not to be logged. size: bytes that its question added to the log."""
        full = self.exhausted
        name, said = ("", FURTHER) if full else (one_line(kind, 40), one_line(sentence, LONGEST_SENTENCE))
        before = max(self._times.get((name, said), 0), self._ledger.refused_times(self._day, name, said))
        times = self._times[name, said] = before + 1
        if times > _EACH and times & (times - 1):  # not a power of two
            self._unwritten += size
            return None
        return Counted(name, said, times, not full)

    def take_unwritten(self) -> int:
        """Return the bytes of questions with unlogged refusals, for which the next logged one accounts."""
        size, self._unwritten = self._unwritten, 0
        return size

    def _turn(self) -> None:
        day = max(time.strftime("%Y-%m-%d", time.gmtime(self._now())), self._ledger.refused_on)
        if day != self._day:
            self._day, self._unwritten = day, 0
            self._times.clear()
