"""What is far longer than usual is refused, and the right client is blamed."""

from __future__ import annotations

import math

import pytest
import torch

from fedmm.algorithms import ALGORITHMS
from fedmm.core.layout import Layout
from fedmm.core.usual_norms import UsualNorms, harmless_norms, update_norms


def refused(norms: dict[str, float], known: dict[str, float] | None = None, harmless: float = 5.0) -> list[str]:
    before = {name: {"z": norm} for name, norm in (known or {}).items()}
    usual = UsualNorms({"z": harmless}, before)
    return list(usual.refusals({name: {"z": norm} for name, norm in norms.items()}))


@pytest.mark.parametrize(
    ("norms", "known", "expected"),
    [
        ({"a": 1.0, "b": 1.0}, {}, []),
        ({"a": 1.0, "b": 1e6}, {}, ["b"]),
        ({"a": 1e6, "b": 1.0}, {}, ["a"]),
        ({"a": 1.0, "b": math.inf}, {}, ["b"]),
        ({"a": 1.0, "b": 2.0, "c": 1e6}, {}, ["c"]),
        ({"a": 1.0, "b": 2.0, "c": 1e6, "d": 1e7, "e": 0.5}, {}, ["c", "d"]),
        ({"a": 1.0, "b": 9.9}, {}, []),  # clients may differ
        ({"a": 0.001, "b": 4.9}, {}, []),  # and be far apart, up to the first model's length
        ({"a": 0.0, "b": 4.9, "c": 4.9}, {}, []),  # one that sends nothing has nobody refused
        ({"a": 0.0, "b": 60.0, "c": 60.0}, {}, []),  # even where the others go further than that
        ({"a": 700.0, "b": 800.0}, {}, []),  # a noisy or diverging run is no attack
        ({"b": 1e6}, {"a": 1.0}, ["b"]),  # alone in a round: compared with what the others sent before
        ({"b": 1e6}, {"a": 1.0, "b": 1e6}, ["b"]),  # its own history is no excuse
        ({"b": 49.0}, {}, []),  # compared with nobody
        ({"b": 51.0}, {}, ["b"]),
        ({}, {"a": 1.0}, []),
    ],
)
def test_a_client_is_compared_with_the_others(
    norms: dict[str, float], known: dict[str, float], expected: list[str]
) -> None:
    assert refused(norms, known) == expected


def test_the_reason_names_what_is_too_long() -> None:
    usual = UsualNorms({"z": 1.0, "control_change": 1.0, "running statistics": 1.0})
    good = {"z": 1.0, "control_change": 1.0, "running statistics": 1.0}
    for part, word in (("z", "update"), ("control_change", "'control_change'"), ("running statistics",) * 2):
        reasons = usual.refusals({"a": good, "b": {**good, part: 1e6}})
        assert list(reasons) == ["b"]
        expected = (
            f"its {word} has norm 1e+06, above 10, the larger of 10 times what is usual among the other clients (1)"
        )
        assert reasons["b"].startswith(expected)


def test_an_honest_site_of_a_diverging_run_is_refused_and_told_what_to_do() -> None:
    """Norms of ``fedmm deploy demo`` with ten local steps at step size 0.1, whose loss had grown from 1.8 to 35."""
    usual = UsualNorms({"z": 9.52})
    before = {"source-1": {"z": 0.54}, "target-1": {"z": 0.53}}
    assert usual.refusals(before) == {}
    reasons = usual.refusals({"source-1": {"z": 24.95}, "target-1": {"z": 1.16}})
    assert list(reasons) == ["source-1"]
    assert "above 11.6, the larger of 10 times what is usual among the other clients (1.16) and" in reasons["source-1"]
    assert "a run that diverges looks so too: lower its step sizes, or set max_update_norm" in reasons["source-1"]
    alone = usual.refusals({"source-1": {"z": 96.0}})["source-1"]
    assert "above 95.2, 10 times the first model's own; a run that diverges" in alone


def test_who_takes_more_local_steps_may_go_further() -> None:
    """Norms of a calm run in which one site takes 50 local steps and the other one."""
    norms = {"source-1": {"z": 18.7}, "target-1": {"z": 1.0}}
    steps = {"source-1": 50, "target-1": 1}
    assert list(UsualNorms({"z": 5.0}).refusals(norms)) == ["source-1"]
    assert UsualNorms({"z": 5.0}, steps=steps).refusals(norms) == {}
    fewer = {"source-1": 1, "target-1": 50}
    assert list(UsualNorms({"z": 5.0}, steps=fewer).refusals(norms)) == ["source-1"]
    hostile = {**norms, "source-1": {"z": 501.0}}
    assert list(UsualNorms({"z": 5.0}, steps=steps).refusals(hostile)) == ["source-1"]
    assert UsualNorms({"z": 5.0}, steps=steps).refusals({**norms, "target-1": {"z": 186.0}}) == {}
    assert list(UsualNorms({"z": 5.0}, steps=steps).refusals({**norms, "target-1": {"z": 188.0}})) == ["target-1"]


@pytest.mark.parametrize("name", ["fedmm", "scaffold_gda", "fedavg_gda"])
def test_what_is_harmless_follows_from_the_first_model(name: str) -> None:
    layout = Layout({"w": (3,)}, {"v": (2,)})
    start = torch.arange(1.0, 6.0)
    norms = harmless_norms(ALGORITHMS[name](), layout, start, {}, 4)
    assert norms["z"] == pytest.approx(float(start.norm()))
    assert all(norm > 0 for norm in norms.values())


def test_lengths_of_everything_that_is_sent() -> None:
    sent, shared = {"z": torch.ones(4)}, {"mean": torch.zeros(2), "seen": torch.tensor(3)}
    vectors = {"z": torch.full((4,), 3.0), "more": torch.full((4,), 2.0)}
    norms = update_norms(vectors, {"mean": torch.tensor([3.0, 4.0]), "seen": torch.tensor(9)}, sent, shared)
    assert norms == {"z": 4.0, "more": 4.0, "running statistics": 5.0}
    assert update_norms({"z": torch.full((4,), 1e38)}, {}, sent, {})["z"] == pytest.approx(2e38)
