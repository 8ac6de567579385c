"""Who takes part in a round."""

from __future__ import annotations

from collections import Counter

import pytest

from fedmm.core.federation import head_count, taking_part

NAMES = [f"client-{number:02d}" for number in range(10)]


@pytest.mark.parametrize(
    ("clients", "share", "count"),
    [(4, 0.5, 2), (4, 1.0, 4), (5, 0.5, 3), (10, 0.25, 3), (10, 0.24, 2), (10, 0.01, 1), (1, 0.1, 1), (3, 0.34, 1)],
)
def test_a_share_is_rounded_and_at_least_one(clients: int, share: float, count: int) -> None:
    assert head_count(clients, share) == count
    assert len(taking_part(NAMES[:clients], share, 0, 0)) == count


def test_who_takes_part_is_a_function_of_seed_round_and_names() -> None:
    first = [taking_part(NAMES, 0.3, 7, t) for t in range(20)]
    assert first == [taking_part(NAMES[::-1], 0.3, 7, t) for t in range(20)]
    assert first != [taking_part(NAMES, 0.3, 8, t) for t in range(20)]
    assert len({tuple(each) for each in first}) > 10


def test_the_names_come_in_order_and_all_of_them_with_a_whole_share() -> None:
    assert taking_part(NAMES[::-1], 1.0, 0, 3) == NAMES
    for t in range(10):
        chosen = taking_part(NAMES[::-1], 0.5, 0, t)
        assert chosen == sorted(set(chosen))


def test_everybody_takes_part_about_equally_often() -> None:
    # 1,000 rounds of 3 in 10: 300 each, with standard deviation sqrt(1000 x 0.3 x 0.7) = 14.5
    times = Counter(name for t in range(1000) for name in taking_part(NAMES, 0.3, 0, t))
    assert all(300 - 5 * 14.5 < times[name] < 300 + 5 * 14.5 for name in NAMES)


def test_one_client_less_changes_little_about_the_others() -> None:
    # Whoever is drawn from all is drawn from fewer as well: the order is each name's own hash.
    for t in range(20):
        chosen = set(taking_part(NAMES, 0.3, 0, t))
        assert chosen - {NAMES[0]} <= set(taking_part(NAMES[1:], 0.34, 0, t))
