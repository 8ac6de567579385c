from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.moons import Moons


def test_shapes() -> None:
    pair = Moons(rows=301, test_rows=50).load()
    for part, rows in ((pair.source, 301), (pair.target, 301), (pair.source_test, 50), (pair.target_test, 50)):
        assert part.x.shape == (rows, 2)
        assert part.x.dtype == torch.float32
        assert part.y.shape == (rows,)
        assert part.y.dtype == torch.int64
    assert pair.classes == 2
    assert set(pair.target.y.tolist()) == {0, 1}


def test_without_noise_the_moons_are_where_they_should_be() -> None:
    pair = Moons(rows=200, noise=0.0, angle=35.0).load()
    turn = math.radians(35.0)
    for part, angle in ((pair.source, 0.0), (pair.target, turn)):
        for label, centre in ((0, (-0.5, -0.25)), (1, (0.5, 0.25))):
            turned = (
                centre[0] * math.cos(angle) - centre[1] * math.sin(angle),
                centre[0] * math.sin(angle) + centre[1] * math.cos(angle),
            )
            distance = (part.x[part.y == label] - torch.tensor(turned)).norm(dim=1)
            torch.testing.assert_close(distance, torch.ones_like(distance))


def test_the_centre_stays() -> None:
    pair = Moons(rows=4000).load()
    assert pair.source.x.mean(dim=0).abs().max() < 0.05
    assert pair.target.x.mean(dim=0).abs().max() < 0.05


def test_domains_and_tests_are_draws_of_their_own() -> None:
    pair = Moons(rows=100, angle=0.0, test_rows=100).load()
    parts = [pair.source.x, pair.target.x, pair.source_test.x, pair.target_test.x]
    assert len({tuple(row) for row in torch.cat(parts).tolist()}) == 400


def test_same_options_same_rows_and_the_seed_matters() -> None:
    assert torch.equal(Moons().load().target.x, Moons().load().target.x)
    assert not torch.equal(Moons().load().target.x, Moons(seed=1).load().target.x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": 1}, "rows must be at least 2"),
        ({"rows": 100_000_001}, "rows must be at most 100000000, not 100000001"),
        ({"test_rows": 10**14}, "test_rows must be at most 100000000"),
        ({"noise": -0.1}, "noise must be 0 or more"),
        ({"noise": float("nan")}, "noise must be finite"),
        ({"angle": 361}, "angle must be between -360 and 360"),
        ({"test_rows": 1}, "test_rows must be at least 2"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        Moons(**options)
