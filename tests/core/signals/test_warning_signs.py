"""What speaks against a run by itself."""

from __future__ import annotations

import pytest

from fedmm.core.signals.warning_signs import Measured, find_warning_signs


def rounds(*values: float) -> Measured:
    return list(enumerate(values, start=1))


@pytest.mark.parametrize(
    ("values", "classes", "sign"),
    [
        ((0.1, 0.04), 10, "target_information is 0.04 nats, near 0: it collapsed, or has not learned yet"),
        ((0.04,), 2, ""),  # 0.05 log 2 is 0.035
        ((0.03,), 2, "near 0"),
        ((0.3, 1.5, 0.7), 10, "target_information fell from 1.5 in round 2 to 0.7: a collapse"),
        ((0.3, 1.5, 0.8), 10, ""),
        ((), 10, ""),
    ],
)
def test_information_that_is_lost(values: tuple[float, ...], classes: int, sign: str) -> None:
    found = find_warning_signs({"target_information": rounds(*values)}, classes, None)
    assert len(found) == bool(sign)
    assert sign in "".join(found)


@pytest.mark.parametrize(
    ("values", "sign"),
    [
        ((1.0, 0.2, 0.5), "source_risk rose from 0.2 in round 2 to 0.5"),
        ((0.2, 0.39), ""),
        ((0.01, 0.05), ""),  # five times as high, and still next to nothing
        ((), ""),
    ],
)
def test_a_source_risk_that_rises(values: tuple[float, ...], sign: str) -> None:
    assert find_warning_signs({"source_risk": rounds(*values)}, 2, None) == ([sign] if sign else [])


def test_a_label_shift_that_is_estimated_to_be_large() -> None:
    shift = {"notable": True, "reliable": True, "distance": 0.3}
    (sign,) = find_warning_signs({}, 2, shift)
    assert sign == "the class mixes of source and target are estimated to differ in 30% of the rows"
    (rough,) = find_warning_signs({}, 2, {**shift, "reliable": False})
    assert rough == f"{sign}, roughly"
    assert find_warning_signs({}, 2, {**shift, "notable": False}) == []


def test_signs_add_up() -> None:
    history = {"target_information": rounds(1.0, 0.0), "source_risk": rounds(0.1, 1.0)}
    assert len(find_warning_signs(history, 2, {"notable": True, "reliable": True, "distance": 0.3})) == 3
    assert find_warning_signs({}, 2, None) == []
