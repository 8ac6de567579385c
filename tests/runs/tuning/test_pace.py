"""What runs take, by made-up times."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fedmm.runs.tuning.halving import Pace
from fedmm.runs.tuning.pace import pace_of, seconds_to_write


def test_a_pace_is_told_by_rounds_by_writing_and_by_what_is_left() -> None:
    runs = [{"rounds": 5, "seconds": 1.0}, {"rounds": 5, "seconds": 3.0}]
    assert pace_of(runs, 10.0, 2.0) == Pace(pytest.approx(0.4), pytest.approx(4.0), pytest.approx(1.0))
    assert pace_of(runs, 3.0, 0.5) == Pace(pytest.approx(0.3), 0.0, pytest.approx(0.25))
    assert pace_of([{"rounds": 0, "seconds": 0.0}], 1.0, 0.0) is None
    assert pace_of([], 1.0, 0.0) is None


def test_writing_lasts_from_the_last_round_to_the_last_summary(tmp_path: Path) -> None:
    for name, ended in (("a", 101.0), ("b", 103.0)):
        (tmp_path / name).mkdir()
        for file, when in (("rounds.jsonl", 100.0), ("summary.json", ended)):
            (tmp_path / name / file).touch()
            os.utime(tmp_path / name / file, (when, when))
    (tmp_path / "c").mkdir()  # never begun
    assert seconds_to_write([tmp_path / name for name in "abc"]) == pytest.approx(3.0)
    assert seconds_to_write([]) == 0.0
