"""What a server accepts, and the words in which it refuses the rest."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedmm import Diverged, Terms
from fedmm.algorithms import ALGORITHMS
from fedmm.core.layout import Layout
from fedmm.engines.inbox import Inbox, UsualNorms, harmless_norms, update_norms
from fedmm.engines.messages import NEVER, Invitation, Update

Z_0 = torch.tensor([1.0, 2.0, 3.0])
LIKE = {"z": torch.zeros(3), "change": torch.zeros(3)}
STATISTICS = {"mean": torch.zeros(2), "count": torch.tensor(0)}
CLIENTS = ("a", "b", "c", "d")
T, SESSION, COUNTED = 6, 3, 4


def inbox(groups: Mapping[str, str] | None = None, **terms: Any) -> Inbox:
    """Of round 7, to which a, b and c were invited; all were counted in round 5, but c was never."""
    invitations = {
        client: Invitation(T, {"z": Z_0}, SESSION, NEVER if client == "c" else COUNTED) for client in CLIENTS[:3]
    }
    return Inbox(invitations, LIKE, STATISTICS, Terms(**terms), groups or {})


def update(client: str = "a", moved: float = 0.5, **changes: Any) -> Update:
    vectors = {"z": Z_0 + torch.tensor([moved, 0.0, 0.0]), "change": torch.ones(3)}
    statistics = {"mean": torch.ones(2), "count": torch.tensor(3)}
    given = Update(T, client, vectors, statistics, {}, SESSION, NEVER if client == "c" else COUNTED)
    return replace(given, **changes)


def with_vectors(**changes: Any) -> Update:
    return update(vectors={**update().vectors, **changes})


REFUSALS: dict[str, tuple[Update, str]] = {
    "a stranger": (update("stranger"), "it was not asked to take part"),
    "one that was not invited": (update("d"), "it was not asked to take part"),
    "an old round": (update(round=4), "its update is for round 5, and this is round 7"),
    "a round to come": (update(round=9), "its update is for round 10, and this is round 7"),
    "another session": (update(session=2), "its update answers an invitation from before the server restarted"),
    "a lost state": (update(vectors={}, lost=True), "it has lost its state after round 5"),
    "a lost first state": (update("c", vectors={}, lost=True), "it has lost its first state"),
    "another state": (update(base=2), "it continued from its state after round 3, not from its state after round 5"),
    "a first state": (update(base=NEVER), "it continued from its first state, not from its state after round 5"),
    "no vectors": (update(vectors={}), "its update lacks the vector 'change'"),
    "a vector too few": (update(vectors={"z": Z_0}), "its update lacks the vector 'change'"),
    "a vector too many": (with_vectors(extra=Z_0), "its update holds an unknown vector 'extra'"),
    "a name that is none": (update(vectors={**update().vectors, 7: Z_0}), "its update holds an unknown vector '7'"),
    "not a tensor": (with_vectors(z=[1.0, 2.0, 3.0]), "its 'z' is not a tensor but list"),
    "another shape": (with_vectors(z=torch.zeros(4)), "its 'z' has shape (4,), not (3,)"),
    "another rank": (with_vectors(z=torch.zeros(1, 3)), "its 'z' has shape (1, 3), not (3,)"),
    "another dtype": (with_vectors(z=Z_0.double()), "its 'z' has dtype torch.float64, not torch.float32"),
    "whole numbers": (with_vectors(change=torch.ones(3, dtype=torch.int64)), "its 'change' has dtype torch.int64"),
    "no statistics": (update(statistics={}), "its update lacks the running statistic 'count'"),
    "statistics of another shape": (
        update(statistics={"mean": torch.zeros(3), "count": torch.tensor(1)}),
        "its 'mean' has shape (3,), not (2,)",
    ),
}


@pytest.mark.parametrize("on_bad_update", ["stop", "skip"])
@pytest.mark.parametrize("case", REFUSALS)
def test_what_is_no_answer_or_malformed_is_refused_by_name_and_reason(case: str, on_bad_update: str) -> None:
    given, reason = REFUSALS[case]
    box = inbox(on_bad_update=on_bad_update)
    box.put(given)
    box.put(update("b"))
    box.close()
    ((client, said),) = box.refused
    assert client == given.client
    assert said.startswith(reason)
    assert list(box.accepted) == ["b"]


def test_a_right_update_is_accepted() -> None:
    box = inbox(max_update_norm=1.0, max_update_ratio=3.0, on_bad_update="skip")
    for client in "bca":
        box.put(update(client))
    box.close()
    assert sorted(box.accepted) == ["a", "b", "c"]
    assert not box.refused


def test_a_second_update_is_refused_and_the_first_one_stays() -> None:
    box = inbox()
    box.put(update(moved=0.1))
    box.put(update(moved=0.2))
    assert [tuple(each) for each in box.refused] == [("a", "it has already sent an update in this round")]
    assert float(box.accepted["a"].vectors["z"][0]) == pytest.approx(1.1)


def test_after_a_refusal_a_client_may_send_again() -> None:
    box = inbox()
    box.put(update(vectors={}))
    box.put(update())
    assert list(box.accepted) == ["a"]
    assert len(box.refused) == 1


# Not finite -----------------------------------------------------------------------------------------------------------


def spoilt(name: str, value: float) -> Update:
    given = update()
    tensor: Tensor = {**given.vectors, **given.statistics}[name].clone()
    tensor[1] = value
    part = "vectors" if name in given.vectors else "statistics"
    return replace(given, **{part: {**getattr(given, part), name: tensor}})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["z", "change", "mean"])
def test_what_is_not_finite_ends_the_run_or_is_skipped_as_the_terms_say(name: str, value: float) -> None:
    with pytest.raises(Diverged, match="client 'a' produced non-finite parameters in round 7"):
        inbox().put(spoilt(name, value))
    box = inbox(on_bad_update="skip")
    box.put(spoilt(name, value))
    assert [tuple(each) for each in box.refused] == [("a", f"its {name!r} is not finite")]


def test_what_is_too_large_to_be_measured_is_skipped_with_the_rest() -> None:
    # 1e30 is a float32, its square is not.
    box = inbox(on_bad_update="skip")
    box.put(spoilt("z", 1e30))
    assert [tuple(each) for each in box.refused] == [("a", "its 'z' is too large for its norm to be finite")]


# Norms ----------------------------------------------------------------------------------------------------------------


def test_an_update_beyond_the_bound_is_refused() -> None:
    box = inbox(max_update_norm=2.0)
    box.put(update("a", 2.0))
    box.put(update("b", -2.5))
    assert [tuple(each) for each in box.refused] == [("b", "its update has norm 2.5, above the bound 2")]
    assert list(box.accepted) == ["a"]


def test_an_update_of_unusual_length_is_refused_when_all_are_there() -> None:
    box = inbox(max_update_ratio=3.0)
    for client, moved in zip("abc", (0.5, 1.0, 4.0), strict=True):
        box.put(update(client, moved))
    assert len(box.accepted) == 3
    box.close()
    reason = "its update has norm 4, above 3 times the median 1 of its group"
    assert [tuple(each) for each in box.refused] == [("c", reason)]
    assert sorted(box.accepted) == ["a", "b"]


def test_what_is_usual_goes_by_the_group() -> None:
    # One source client moves far, three target clients little: across groups it would be refused.
    invitations = {client: Invitation(T, {"z": Z_0}, SESSION, COUNTED) for client in "abcd"}
    for groups, refused in (({}, ["d"]), ({"a": "target", "b": "target", "c": "target", "d": "source"}, [])):
        box = Inbox(invitations, LIKE, STATISTICS, Terms(max_update_ratio=3.0), groups)
        for client, moved in zip("abcd", (0.5, 1.0, 1.5, 9.0), strict=True):
            box.put(update(client, moved, base=COUNTED))
        box.close()
        assert [each.client for each in box.refused] == refused


def test_updates_that_rest_are_usual() -> None:
    box = inbox(max_update_ratio=2.0)
    for client in "abc":
        box.put(update(client, 0.0))
    box.close()
    assert len(box.accepted) == 3


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
        expected = f"its {word} has norm 1e+06, above 10, the larger of 10 times the other clients' median (1)"
        assert reasons["b"].startswith(expected)


def test_an_honest_site_of_a_diverging_run_is_refused_and_told_what_to_do() -> None:
    """Norms of ``fedmm deploy demo`` with ten local steps at step size 0.1, whose loss had grown from 1.8 to 35."""
    usual = UsualNorms({"z": 9.52})
    before = {"source-1": {"z": 0.54}, "target-1": {"z": 0.53}}
    assert usual.refusals(before) == {}
    reasons = usual.refusals({"source-1": {"z": 24.95}, "target-1": {"z": 1.16}})
    assert list(reasons) == ["source-1"]
    assert "above 11.6, the larger of 10 times the other clients' median (1.16) and" in reasons["source-1"]
    assert "a run that diverges looks the same: lower its step sizes, or set max_update_norm" in reasons["source-1"]
    alone = usual.refusals({"source-1": {"z": 96.0}})["source-1"]
    assert "above 95.2, 10 times the norm of the initial model; a run that diverges" in alone


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
