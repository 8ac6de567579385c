"""The list of long tests names tests that are there."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
LISTED = (FOLDER / "slow.txt").read_text(encoding="utf-8").splitlines()[2:]


@pytest.mark.parametrize("name", sorted({line.partition("[")[0] for line in LISTED}))
def test_a_long_test_is_there(name: str) -> None:
    file, _, function = name.partition("::")
    assert f"def {function}(" in (FOLDER / file).read_text(encoding="utf-8")
