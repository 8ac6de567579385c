"""Clocks that differ are named."""

from __future__ import annotations

import datetime

import pytest

from fedmm.sites.compatibility import clock_difference, clock_problem

NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)
HEADER = "Sun, 01 Mar 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (7, "clock is 7 s ahead of the SuperLink's"),
        (-7, "clock is 7 s behind the SuperLink's"),
        (3600, "clock is 60 minutes ahead of"),
        (-86400 * 3, "clock is 3 days behind"),
    ],
)
@pytest.mark.parametrize("server", [HEADER, NOON])
def test_a_clock_that_differs_is_named(seconds: int, words: str, server: str | datetime.datetime) -> None:
    said = clock_problem(server, NOON + datetime.timedelta(seconds=seconds))
    assert words in said
    assert "timedatectl" in said
    assert "chrony" in said
    assert "\n" not in said


@pytest.mark.parametrize("server", [HEADER, NOON, None, "", "no date at all", "Sun, 99 Mar 2026 12:00:00 GMT"])
def test_clocks_that_agree_and_answers_without_a_date_give_no_sentence(server: str | datetime.datetime | None) -> None:
    assert clock_problem(server, NOON + datetime.timedelta(seconds=1.4)) == ""


def test_times_without_a_zone_are_utc() -> None:
    assert clock_difference(NOON.replace(tzinfo=None), NOON + datetime.timedelta(seconds=5)) == 5.0
    assert clock_difference("Sun, 01 Mar 2026 12:00:00 -0000", NOON) == 0.0
