from __future__ import annotations

import math

import pytest

from fedmm import FedmmError
from fedmm.core.schedules import (
    SCHEDULES,
    Constant,
    CosineDecay,
    DannDecay,
    DannWarmup,
    InverseDecay,
    Schedule,
    TllibWarmup,
)


@pytest.mark.parametrize(
    ("schedule", "t", "rounds", "expected"),
    [
        (Constant(), 0, 10, 1.0),
        (Constant(), 9, 10, 1.0),
        # DANN: (1 + 10 p)^-0.75; at p = 1/2 that is 6^-0.75 = 0.26084743
        (DannDecay(), 0, 10, 1.0),
        (DannDecay(), 5, 10, 0.26084743),
        (DannDecay(alpha=3.0, beta=1.0), 1, 3, 0.5),
        # tllib: (1 + 0.001 t)^-0.75; at t = 1000 that is 2^-0.75 = 0.59460356, however long the run
        (InverseDecay(), 0, 10, 1.0),
        (InverseDecay(), 1000, 2000, 0.59460356),
        (InverseDecay(), 1000, 50_000, 0.59460356),
        (CosineDecay(), 0, 8, 1.0),
        (CosineDecay(), 4, 8, 0.5),
        (CosineDecay(final=0.2), 8, 8, 0.2),
        # DANN: 2 / (1 + exp(-10 p)) - 1 = tanh(5 p); at p = 1/10 that is tanh(0.5) = 0.46211716
        (DannWarmup(), 0, 10, 0.0),
        (DannWarmup(), 1, 10, 0.46211716),
        # tllib: 2 / (1 + exp(-t / 1000)) - 1 = tanh(t / 2000); at t = 1000 that is tanh(0.5), however long the run
        (TllibWarmup(), 0, 10, 0.0),
        (TllibWarmup(), 1000, 10, 0.46211716),
        (TllibWarmup(alpha=2.0, length=100), 50, 7, 0.46211716),
    ],
    ids=repr,
)
def test_a_schedule_has_its_published_values(schedule: Schedule, t: int, rounds: int, expected: float) -> None:
    assert schedule(t, rounds) == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("kind", SCHEDULES.values(), ids=SCHEDULES)
def test_a_schedule_is_a_finite_factor_in_every_round(kind: type[Schedule]) -> None:
    for t in range(20):
        assert 0.0 <= kind()(t, 20) <= 1.0
    assert kind() == kind()
    assert hash(kind()) == hash(kind())


def test_a_warm_up_never_falls_and_a_decay_never_rises() -> None:
    for kind in SCHEDULES.values():
        factors = [kind()(t, 50) for t in range(50)]
        rising = kind in (DannWarmup, TllibWarmup)
        assert factors == sorted(factors, reverse=not rising)


@pytest.mark.parametrize("length", [0, -5, math.nan])
def test_a_warm_up_without_length_is_refused(length: float) -> None:
    with pytest.raises(FedmmError, match="length"):
        TllibWarmup(length=length)


@pytest.mark.parametrize("schedule", [lambda: DannDecay(alpha=-20.0), lambda: InverseDecay(rate=-1.0)])
def test_a_decay_that_leaves_the_real_numbers_is_refused(schedule: object) -> None:
    with pytest.raises(FedmmError):
        schedule()(5, 10)
