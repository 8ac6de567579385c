"""A stack of one replica is an engine like any other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engines.batched.stacks import POLICIES, RATES, STACKS, Run, assert_same_state, normalised, stacked, tensors
from problems import played, with_options

from fedmm import ALGORITHMS, Diverged, FedAvgGDA
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.engines.batched import BatchedEngine
from fedmm.engines.in_process import InProcess
from fedmm.training.loop import train

ROUNDS = 5


def engines(run: Run, **options: Any) -> tuple[BatchedEngine, InProcess]:
    return BatchedEngine(stacked([run], **options)), run.adaptation().engine


def assert_same_record(one: RoundRecord, other: RoundRecord) -> None:
    for name in ("round", "bytes_up", "bytes_down"):
        assert getattr(one, name) == getattr(other, name)
    for name in ("drift", "consensus_gap", "dual_norm"):
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=1e-9, abs=1e-12)
    assert one.metrics == pytest.approx(other.metrics, rel=1e-9)


def copied(state: FederatedState) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in tensors(state).items()}


RUNS = {name: Run(with_options(kind, **RATES), seed=2) for name, kind in ALGORITHMS.items()} | {
    f"batch norm {policy}": normalised(policy)[1] for policy in POLICIES
}
each_run = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


@each_run
@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
def test_round_after_round_it_gives_what_the_reference_gives(run: Run, looped: bool) -> None:
    fast, readable = engines(run, looped=looped)
    assert_same_state(fast.start(), readable.start(), 0.0)
    for (state, record), (expected, its_record) in zip(played(fast, ROUNDS), played(readable, ROUNDS), strict=True):
        assert_same_state(state, expected, 1e-9)
        assert_same_record(record, its_record)
        assert record.seconds > 0


@each_run
def test_a_round_leaves_its_state_alone_and_repeats_itself(run: Run) -> None:
    engine, _ = engines(run)
    state = engine.start()
    for _ in range(3):
        before = copied(state)
        after, _ = engine.run_round(state)
        again, _ = engine.run_round(state)
        torch.testing.assert_close(tensors(state), before, rtol=0, atol=0)
        assert_same_state(again, after, 0.0)
        moves = not run.algorithm.reports_only(state.round)
        assert torch.equal(after.z, state.z) != moves
        state = after


@each_run
def test_the_two_engines_go_on_from_each_others_states(run: Run) -> None:
    fast, readable = engines(run)
    *_, (expected, _) = played(readable, 4)
    state = readable.start()
    for engine in (readable, fast, readable, fast):
        state, _ = engine.run_round(state)
    assert_same_state(state, expected, 1e-9)


def test_any_earlier_state_can_be_gone_on_from() -> None:
    engine, _ = engines(RUNS["fedmm"])
    states = [engine.start(), *(state for state, _ in played(engine, 3))]
    for t in (0, 2, 1, 1):
        assert_same_state(engine.run_round(states[t])[0], states[t + 1], 0.0)


def test_it_trains_like_any_engine() -> None:
    fast, readable = engines(STACKS["mixed"][5])
    one, other = (train(engine, ROUNDS) for engine in (fast, readable))
    assert_same_state(one.state, other.state, 1e-9)
    assert one.status == other.status == "completed"
    for row, expected in zip(one.history, other.history, strict=True):
        assert row.keys() == expected.keys()
        assert row["loss"] == pytest.approx(expected["loss"], rel=1e-9)


def test_the_start_is_the_state_before_the_first_round_at_any_time() -> None:
    engine, readable = engines(RUNS["fedmm"])
    engine.run_round(engine.start())
    assert_same_state(engine.start(), readable.start(), 0.0)


# Divergence -----------------------------------------------------------------------------------------------------------


def exploding() -> Algorithm:
    return FedAvgGDA(1e200, 1e200, local_steps=2)


def test_a_round_that_diverges_raises_and_leaves_the_state_alone() -> None:
    engine, _ = engines(Run(exploding()))
    start = engine.start()
    before = copied(start)
    for _ in range(2):
        with pytest.raises(Diverged, match="non-finite parameters in round 1:") as caught:
            engine.run_round(start)
        assert caught.value.round == 1
        torch.testing.assert_close(tensors(start), before, rtol=0, atol=0)


def test_training_that_diverges_keeps_the_last_good_round() -> None:
    def late(t: int, rounds: int) -> float:
        return 1e200 if t >= 2 else 1.0

    fast, readable = engines(Run(FedAvgGDA(0.1, 0.1, local_steps=2, lr_schedule=late)))
    one, other = (train(engine, ROUNDS) for engine in (fast, readable))
    assert one.error is not None
    assert one.error.round == other.error.round == 3
    assert_same_state(one.state, other.state, 1e-9)


def test_an_engine_goes_on_from_a_good_state_after_a_bad_one() -> None:
    fast, readable = engines(RUNS["fedmm"])
    good = readable.start()
    broken = replace(good, server={name: vector * float("nan") for name, vector in good.server.items()})
    expected, _ = readable.run_round(good)
    with pytest.raises(Diverged):
        fast.run_round(broken)
    assert_same_state(fast.run_round(good)[0], expected, 1e-9)


def test_a_client_that_diverges_is_named_as_in_the_reference() -> None:
    fast, readable = engines(Run(exploding()))
    said = []
    for engine in (readable, fast):
        with pytest.raises(Diverged) as caught:
            engine.run_round(engine.start())
        said.append((caught.value.client, str(caught.value)))
    assert said[0] == said[1]
