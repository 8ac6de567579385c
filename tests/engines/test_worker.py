"""Which of its states a client goes on from."""

from __future__ import annotations

import pytest
import torch

from fedmm import FedmmError
from fedmm.engines.messages import NEVER
from fedmm.engines.worker import ClientMemory, Kept


def state(number: int) -> Kept:
    return Kept({"dual": torch.tensor([float(number)])}, {})


def number(kept: Kept | None) -> float | None:
    return None if kept is None else float(kept.own["dual"])


@pytest.fixture
def memory() -> ClientMemory:
    return ClientMemory({NEVER: state(-1)})


def test_a_new_state_waits_beside_the_old_one(memory: ClientMemory) -> None:
    assert number(memory.state_for(NEVER)) == -1
    memory.remember(0, state(0))
    assert list(memory.held) == [NEVER, 0]
    assert number(memory.state_for(0)) == 0


def test_a_state_that_was_not_counted_is_dropped(memory: ClientMemory) -> None:
    memory.state_for(NEVER)
    memory.remember(0, state(0))
    assert number(memory.state_for(NEVER)) == -1
    assert list(memory.held) == [NEVER]
    memory.remember(4, state(4))
    assert number(memory.state_for(4)) == 4


def test_no_more_than_two_states_are_kept(memory: ClientMemory) -> None:
    for t in range(6):
        memory.state_for(t - 1)
        memory.remember(t, state(t))
        assert list(memory.held) == [t - 1, t]


def test_a_longer_memory_follows_a_server_that_goes_back(memory: ClientMemory) -> None:
    longer = ClientMemory({NEVER: state(-1)}, depth=4)
    for each in (memory, longer):
        for t in range(5):
            each.state_for(t - 1)
            each.remember(t, state(t))
    assert number(memory.state_for(2)) is None
    assert number(longer.state_for(2)) == 2
    longer.remember(3, state(30))
    assert number(longer.state_for(3)) == 30


def test_what_is_lost_is_lost_and_can_be_put_back(memory: ClientMemory) -> None:
    memory.remember(0, state(0))
    memory.forget(0)
    memory.forget(7)
    assert memory.state_for(0) is None
    memory.remember(0, state(9))
    assert number(memory.state_for(0)) == 9


def test_a_memory_can_be_stored_and_made_again(memory: ClientMemory) -> None:
    memory.remember(0, state(0))
    again = ClientMemory(memory.held)
    assert number(again.state_for(0)) == 0


@pytest.mark.parametrize("depth", [0, 1, 2.5])
def test_a_memory_of_one_state_is_refused(depth: int) -> None:
    with pytest.raises(FedmmError, match="depth"):
        ClientMemory(depth=depth)
