"""What a site has answered, ever: read from its audit log, and so the same after restarts. Needs no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

EXPERIMENT, PLAN, QUESTION, ANSWER = "experiment", "plan", "question", "answer"
REFUSAL, APPROVAL, POLICY = "refusal", "approval", "policy"
"""The events of an audit log, beside ``mended``."""


@dataclass
class Ledger:
    """The sums over a log's entries.

    questions: answered, of all kinds. rounds: of them, updates that were not sent before.
    precision: of the noise of all these rounds, the sum of 1 / multiplier^2; infinite after one without noise.
    answers: of questions and their answers, the digests. experiments: all that were asked for, by hash, as TOML.
    asked: by hash, the runs that it was asked for in. plans: the digests of those that are written down.
    refused: how many refusals, at least. refused_on: the last day of one.
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
        """What the refusals of a day, the last one or later, have taken of the log, with their questions."""
        return self._refused_bytes if day == self.refused_on else 0

    def refused_times(self, day: str, kind: str, sentence: str) -> int:
        """How often this was refused on a day, the last one or later, as far as it is written."""
        return self._refused_times.get((kind, sentence), 0) if day == self.refused_on else 0

    def was_sent(self, question: str, answer: str) -> bool:
        """Whether this answer left to this question before, to the bit."""
        return answer in self.answers.get(question, ())
