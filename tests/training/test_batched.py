"""Whenever Ctrl-C comes to a stack, the rounds that are known and the states agree, and can be gone on from."""

from __future__ import annotations

import signal
import sys
import tomllib
import types
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from engines.batched.stacks import assert_same_state
from reproduction.small_paper import FILES, dedented

from fedmm.config.sweep_grid import grid
from fedmm.engines.batched import Batched
from fedmm.engines.batched.bands import Band
from fedmm.engines.batched.local_steps import LocalWork
from fedmm.engines.batched.settle import Settlement
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.history import History
from fedmm.training.snapshots import ResumePoint

TABLES = {**tomllib.loads(dedented(FILES["common.toml"])), "algorithm": {"name": "fedmm_smoothed", "local_steps": 2}}
ROUNDS = 6


def built(resume_from: Sequence[ResumePoint] = ()) -> StackRun:
    """Two seeds of FedMM, smoothed."""
    cache = DataCache()
    return StackRun([prepare(each, cache) for each in grid(TABLES)], "fp32", StackSettings(), resume_from=resume_from)


@pytest.fixture(name="straight", scope="module")
def _straight() -> list[StackRun]:
    """The stack after each number of rounds, none interrupted."""
    found = []
    for rounds in range(ROUNDS + 1):
        stack = built()
        stack.run(rounds, 2)
        found.append(stack)
    return found


@pytest.fixture
def ctrl_c_at(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Presses Ctrl-C at the beginning of certain calls of a function."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def arm(function: types.FunctionType, *numbers: int) -> None:
        calls = 0

        def press(frame: types.FrameType, event: str, argument: object) -> None:
            nonlocal calls
            if event == "call" and frame.f_code is function.__code__:
                calls += 1
                if calls == max(numbers):
                    sys.setprofile(None)
                if calls in numbers:
                    signal.raise_signal(signal.SIGINT)

        sys.setprofile(press)

    yield arm
    sys.setprofile(None)
    signal.signal(signal.SIGINT, before)


def without_seconds(history: History) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in history]


@pytest.mark.parametrize(
    "moment",
    [Batched.advance, LocalWork.finish, Settlement.settle, Settlement._measure, Band.set_round, StackRun.evaluate,
     StackRun._flush, History.append],
    ids=lambda moment: moment.__qualname__,
)  # fmt: skip
@pytest.mark.parametrize("call", [1, 3])
def test_histories_and_states_are_those_of_the_last_whole_round(
    straight: list[StackRun], ctrl_c_at: Callable[..., None], moment: types.FunctionType, call: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("fedmm.training.batched._FLUSH_SECONDS", 0.0)
    stack = built()
    ctrl_c_at(moment, call)
    status = stack.run(ROUNDS, 2)
    done = stack.engine.round
    assert status == "interrupted" or done == ROUNDS
    expected = straight[done]
    for replica in range(2):
        assert_same_state(stack.engine.state(replica), expected.engine.state(replica), 0.0)
        kept = [row["drift"] for row in stack.histories[replica]]
        assert kept == [row["drift"] for row in expected.histories[replica]]
    resumed = built([(stack.engine.state(replica), stack.histories[replica]) for replica in range(2)])
    assert resumed.run(ROUNDS, 2) == "completed"
    for replica in range(2):
        assert_same_state(resumed.engine.state(replica), straight[-1].engine.state(replica), 0.0)
        assert without_seconds(resumed.histories[replica]) == without_seconds(straight[-1].histories[replica])


def test_a_second_ctrl_c_is_felt_at_once_and_passed_on(ctrl_c_at: Callable[..., None]) -> None:
    stack = built()
    ctrl_c_at(LocalWork.step, 5, 6)
    with pytest.raises(KeyboardInterrupt):
        stack.run(ROUNDS, 2)
    assert stack.engine.round == 2


def test_a_word_to_stop_is_heard_between_rounds(monkeypatch: pytest.MonkeyPatch, straight: list[StackRun]) -> None:
    monkeypatch.setattr("fedmm.training.batched._FLUSH_SECONDS", 0.0)
    stack, asked = built(), []

    def stop() -> bool:
        asked.append(stack.engine.round)
        return stack.engine.round == 4

    assert stack.run(ROUNDS, 2, stop) == "interrupted"
    assert asked == [1, 2, 3, 4]
    assert torch.equal(stack.engine.z, straight[4].engine.z)
