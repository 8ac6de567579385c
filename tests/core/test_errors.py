"""What error messages are made of."""

from __future__ import annotations

import pytest

from fedmm.core.errors import count_of


@pytest.mark.parametrize(
    ("given", "words"),
    [((1, "seed"), "1 seed"), ((2, "seed"), "2 seeds"), ((0, "run"), "0 runs"), ((3, "class", "classes"), "3 classes")],
)
def test_one_of_a_thing_is_singular(given: tuple[int, str], words: str) -> None:
    assert count_of(*given) == words
