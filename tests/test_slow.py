"""The list of long tests names tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LISTED = (FOLDER / "slow.txt").read_text(encoding="utf-8").splitlines()[2:]


def test_long_tests_are_there(request: pytest.FixtureRequest) -> None:
    """Where all tests are collected: a test that has another name now would be run with the quick ones."""
    config = request.config
    whole = all(Path(given).resolve() in (FOLDER, FOLDER.parent) for given in config.args)
    if not whole or config.option.keyword or config.option.markexpr:
        pytest.skip("only some tests are collected")
    assert sorted(set(LISTED) - {item.nodeid.removeprefix("tests/") for item in request.session.items}) == []
