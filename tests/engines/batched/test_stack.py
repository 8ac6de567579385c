"""A stack of replicas: none disturbs another, one that fails stops alone, and any state can be gone on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest
import torch
from engines.batched.stacks import (
    MIXED,
    STACKS,
    Run,
    advanced,
    assert_agrees,
    assert_same_state,
    convolving,
    normalising,
    pictures,
    reference,
    referred,
    small,
    stacked,
    tensors,
    vectors,
)
from problems import played

from fedmm import DANN, Ball, Box, FedAvgGDA, FedMM, FedmmError, FedSGDA, InProcess, ScaffoldGDA, Simplex
from fedmm.core.engine import FederatedState
from fedmm.data import DomainPair, SourceTarget
from fedmm.engines.batched import Batched
from fedmm.models import Network


def states(stack: Batched) -> list[FederatedState]:
    return [stack.state(replica) for replica in range(len(stack.replicas))]


@pytest.mark.parametrize("name", ["every algorithm", "beyond local steps", "drawn steps", "pairs of rounds"])
def test_a_step_can_be_tried_before_any_round(name: str) -> None:
    stack = stacked(STACKS[name], chunk=1)
    stack.try_step()
    stack.try_step()
    assert stack.now.z.isfinite().all()


# Constraints ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk", [None, 1])
def test_constraints_hold_as_they_do_in_the_reference(chunk: int | None) -> None:
    sets = {"adversary": Ball(0.5), "task_head": Box(-0.1, 0.2), "features.0": Simplex(2.0)}
    runs = [replace(run, constraints=sets) for run in STACKS["beyond local steps"]]
    stack = stacked(runs, chunk=chunk)
    measures = advanced(stack, 3)
    for replica, run in enumerate(runs):
        adaptation = run.adaptation()
        *_, last = played(InProcess(run.problem(adaptation), run.algorithm, run.rounds), 3)
        assert_agrees(stack, replica, measures, last, 1e-9)
        parts = {block.name: part for block, part in adaptation.function.layout.tensors(last[0].z)}
        adversary = torch.cat([part.flatten() for name, part in parts.items() if name.startswith("adversary.")])
        assert float(adversary.norm()) <= 0.5 + 1e-12
        assert float(parts["features.0.weight"].sum() + parts["features.0.bias"].sum()) == pytest.approx(2.0, abs=1e-9)


def test_replicas_with_unlike_constraints_are_refused() -> None:
    runs = STACKS["beyond local steps"][:2]
    with pytest.raises(FedmmError, match="the same constraints"):
        stacked([replace(runs[0], constraints={"adversary": Ball(0.5)}), runs[1]])


# Independence ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
@pytest.mark.parametrize("name", ["mixed", "dropout", "pictures", "batch norm averaged"])
def test_a_replica_is_the_same_whatever_it_is_stacked_with(name: str, looped: bool) -> None:
    runs = STACKS[name]
    together = stacked(runs, looped=looped)
    backwards = stacked(runs[::-1], looped=looped)
    measures, reversed_measures = advanced(together, 2), advanced(backwards, 2)
    for replica in (0, len(runs) // 2, len(runs) - 1):
        alone = stacked([runs[replica]], looped=looped)
        expected = advanced(alone, 2)[0]
        for stack, place, measured in (
            (together, replica, measures),
            (backwards, len(runs) - 1 - replica, reversed_measures),
        ):
            assert_same_state(stack.state(place), alone.state(0), 1e-12)
            torch.testing.assert_close(measured[place], expected, rtol=1e-12, atol=1e-12)


def test_runs_of_one_algorithm_need_not_stand_together() -> None:
    runs = [Run(FedMM(0.2, 0.2, local_steps=2)), Run(FedSGDA(0.2, 0.2)), Run(FedMM(0.1, 0.3, local_steps=2), seed=1)]
    stack = stacked(runs)
    measures = advanced(stack, 3)
    for replica, run in enumerate(runs):
        assert_agrees(stack, replica, measures, referred(run, 3), 1e-9)


def test_replicas_with_unlike_numbers_of_clients_are_refused() -> None:
    with pytest.raises(FedmmError, match="must have the same number of clients"):
        stacked([Run(FedSGDA()), Run(FedSGDA(), partition=SourceTarget(1, 2))])


def test_groups_that_are_not_there_are_refused() -> None:
    with pytest.raises(FedmmError, match="no parameter belongs to group 'feature'"):
        stacked([Run(FedSGDA({"feature": 0.1, "*": 0.2}))])


def test_measures_of_a_round_are_not_overwritten_by_the_next() -> None:
    stack = stacked(MIXED[:2])
    first = stack.advance()
    kept = first.clone()
    assert not torch.equal(stack.advance(), kept)
    assert torch.equal(first, kept)


def test_a_state_is_not_overwritten_by_the_next_round() -> None:
    stack = stacked(STACKS["batch norm averaged"])
    for _ in range(2):
        before = states(stack)
        kept = [{name: tensor.clone() for name, tensor in tensors(state).items()} for state in before]
        stack.advance()
        for state, copy in zip(before, kept, strict=True):
            torch.testing.assert_close(tensors(state), copy, rtol=0, atol=0)


def test_all_computation_of_a_round_happens_inside_the_given_context() -> None:
    entered: list[str] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    plain = stacked(MIXED[:1])
    stack = Batched(plain.replicas, plain.network, around=around)
    advanced(stack, 2)
    assert entered == ["in", "out"] * 2


# Divergence -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Explosion:
    """A learning rate without measure in one round alone: whoever survived it would go on as if nothing had been."""

    at: int

    def __call__(self, t: int, rounds: int) -> float:
        return 1e200 if t == self.at else 1.0


Given = tuple[Callable[[int], Network], DomainPair]
NETWORKS: dict[str, Given] = {
    "vectors": (small, vectors()),
    "pictures": (convolving, pictures()),
    **{f"batch norm {policy}": (normalising(policy), pictures()) for policy in ("averaged", "frozen", "local")},
}
each_network = pytest.mark.parametrize("name", NETWORKS)


def doomed(name: str) -> tuple[list[Run], dict[int, int]]:
    """Runs of which some explode, and after how many good rounds, by their number."""
    network, pair = NETWORKS[name]
    rates = {"lr_min": 0.1, "lr_max": 0.1, "local_steps": 2}
    algorithms = [
        FedAvgGDA(**rates),
        FedAvgGDA(**rates, lr_schedule=Explosion(2)),
        FedMM(**rates, lr_schedule=Explosion(4)),
        FedMM(**rates),
        ScaffoldGDA(**rates, lr_schedule=Explosion(0)),
        ScaffoldGDA(**rates),
    ]
    runs = [Run(each, DANN(nu=0.3), seed, network=network, pair=pair) for seed, each in enumerate(algorithms)]
    return runs, {1: 2, 2: 4, 4: 0}


@pytest.mark.parametrize("chunk", [None, 2])
@each_network
def test_replicas_beside_one_that_diverges_are_unaffected(name: str, chunk: int | None) -> None:
    runs, failing = doomed(name)
    healthy = [replica for replica in range(len(runs)) if replica not in failing]
    stack, without = stacked(runs, chunk=chunk), stacked([runs[replica] for replica in healthy], chunk=chunk)
    for _ in range(6):
        measures, expected = stack.advance(), without.advance()
        torch.testing.assert_close(measures[healthy], expected, rtol=1e-12, atol=1e-12)
    for place, replica in enumerate(healthy):
        assert_same_state(stack.state(replica), without.state(place), 1e-12)
        assert stack.state(replica).round == 6
        assert all(bool(tensor.isfinite().all()) for tensor in tensors(stack.state(replica)).values())


@each_network
def test_a_replica_that_diverges_keeps_its_last_good_state(name: str) -> None:
    runs, failing = doomed(name)
    stack = stacked(runs)
    advanced(stack, 6)
    assert stack.rounds_done.tolist() == [failing.get(replica, 6) for replica in range(len(runs))]
    for replica, good in failing.items():
        engine = runs[replica].adaptation().engine
        expected = referred(runs[replica], good)[0] if good else engine.start()
        assert_same_state(stack.state(replica), expected, 1e-9)


def test_a_replica_that_has_diverged_never_comes_back() -> None:
    runs, failing = doomed("vectors")
    stack = stacked(runs)
    kept: dict[int, FederatedState] = {}
    for done in range(1, 8):
        stack.advance()
        for replica, good in failing.items():
            if done > good:
                assert_same_state(stack.state(replica), kept.setdefault(replica, stack.state(replica)), 0.0)
    assert sorted(kept) == sorted(failing)


def test_the_reference_diverges_in_the_same_round() -> None:
    runs, failing = doomed("vectors")
    for replica, good in failing.items():
        with pytest.raises(FedmmError, match=f"non-finite parameters in round {good + 1}:"):
            referred(runs[replica], 6)


# Going on -------------------------------------------------------------------------------------------------------------

resumable = pytest.mark.parametrize(
    "name", ["every algorithm", "mixed", "dropout", "both domains", "batch norm averaged", "batch norm local"]
)


@resumable
def test_a_stack_goes_on_exactly_from_states_it_gave(name: str) -> None:
    straight = stacked(STACKS[name])
    advanced(straight, 3)
    middle = states(straight)
    expected = advanced(straight, 3)
    resumed = stacked(STACKS[name])
    resumed.load(middle)
    assert torch.equal(advanced(resumed, 3), expected)
    for one, other in zip(states(resumed), states(straight), strict=True):
        assert one.round == 6
        assert_same_state(one, other, 0.0)


@resumable
def test_a_stack_goes_back_to_states_it_gave_before(name: str) -> None:
    stack = stacked(STACKS[name])
    advanced(stack, 1)
    early = states(stack)
    expected = advanced(stack, 4)
    after = states(stack)
    stack.load(early)
    assert torch.equal(advanced(stack, 4), expected)
    for one, other in zip(states(stack), after, strict=True):
        assert_same_state(one, other, 0.0)


@resumable
def test_a_stack_goes_on_from_states_of_the_reference(name: str) -> None:
    stack = stacked(STACKS[name])
    stack.load([rounds[1][0] for rounds in reference(name)])
    measures = advanced(stack, 2)
    for replica, rounds in enumerate(reference(name)):
        assert_agrees(stack, replica, measures, rounds[3], 1e-9)


def test_where_statistics_are_averaged_those_of_clients_are_not_needed_to_go_on() -> None:
    (run, *_) = STACKS["batch norm averaged"]
    engine = run.adaptation().engine
    middle = replace(referred(run, 1)[0], client_statistics={})
    expected, _ = engine.run_round(middle)
    stack = stacked([run])
    stack.load([middle])
    stack.advance()
    assert_same_state(stack.state(0), expected, 1e-9)


def test_loading_leaves_the_states_alone_and_revives_the_dead() -> None:
    runs, _ = doomed("vectors")
    stack = stacked(runs)
    start = states(stack)
    kept = [{name: tensor.clone() for name, tensor in tensors(state).items()} for state in start]
    advanced(stack, 6)
    stack.load(start)
    advanced(stack, 2)
    assert stack.rounds_done.tolist() == [2, 2, 2, 2, 0, 2]
    for state, copy in zip(start, kept, strict=True):
        torch.testing.assert_close(tensors(state), copy, rtol=0, atol=0)


def test_states_after_unlike_numbers_of_rounds_are_refused() -> None:
    runs = MIXED[:2]
    early, late = ([referred(run, rounds)[0] for run in runs] for rounds in (1, 2))
    with pytest.raises(FedmmError, match="must have finished the same number of rounds"):
        stacked(runs).load([early[0], late[1]])


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_than_one_state_a_replica_is_refused(count: int) -> None:
    runs = MIXED[:2]
    stack = stacked(runs)
    given = [referred(runs[0], 1)[0]] * count
    with pytest.raises(FedmmError, match=f"a stack of 2 replicas needs 2 states, not {count}"):
        stack.load(given)
    assert stack.round == 0
