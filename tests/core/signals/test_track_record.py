"""What is said of how often the rule is right is what the benchmark counted."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from fedmm.core.signals.track_record import NOT_SUPPORTED, SUPPORTED, UNJUDGED, Count, tell_record

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "verdicts.json"


def results() -> dict[str, dict[str, Any]]:
    """By part: several methods on three kinds of shift, and the default on the data sets of the tuning benchmark."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8")))


def test_the_counts_are_those_of_the_results_file() -> None:
    total = {True: [0, 0], False: [0, 0], None: [0, 0]}
    for part in results().values():
        found = {True: [0, 0], False: [0, 0], None: [0, 0]}
        for each in part["data"].values():
            plain = fmean(each["methods"]["source only"]["target_accuracy"])
            for label, own in each["methods"].items():
                if label != "source only":
                    found[own["supported"]][0] += 1
                    found[own["supported"]][1] += fmean(own["target_accuracy"]) > plain
        assert [list(each.values()) for each in part["counts"].values()] == list(found.values())
        total = {verdict: [a + b for a, b in zip(total[verdict], found[verdict], strict=True)] for verdict in total}
    assert {True: list(SUPPORTED), False: list(NOT_SUPPORTED), None: list(UNJUDGED)} == total


def test_every_comparison_has_the_seeds_that_a_verdict_needs() -> None:
    for part in results().values():
        for each in part["data"].values():
            for own in each["methods"].values():
                assert len(own["target_accuracy"]) == part["seeds"] == 3


@pytest.mark.parametrize(
    ("supported", "yes", "words"),
    [
        (
            True,
            Count(6, 5),
            "in our 20 comparisons .*, of which the rule could not judge 4, adapting had helped in 5 of the 6",
        ),
        (
            True,
            Count(0, 0),
            "in our 14 comparisons .* it never supported adapting, so how often that is right is not known",
        ),
        (
            False,
            Count(6, 5),
            "of which the rule could not judge 4, adapting had not helped in 7 of the 10 that it did not",
        ),
        (
            None,
            Count(6, 5),
            "judged 16, and was right in 12 of these; of the 4 that it could not judge adapting had helped in 1",
        ),
    ],
)
def test_a_verdict_is_told_with_how_often_it_was_right(supported: bool | None, yes: Count, words: str) -> None:
    assert re.search(words, tell_record(supported, yes, Count(10, 3), Count(4, 1)))
