"""Clients of a stack that are away or refused: the same ones as in the reference, and whatever they hold stays out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import pytest
import torch
from engines.batched.stacks import (
    RATES,
    TERMS,
    Run,
    advanced,
    assert_same_state,
    every_algorithm,
    many_clients,
    on_terms,
    stacked,
    tensors,
)
from problems import FLOAT64, played, with_options

from fedmm import ALGORITHMS, CoordinateMedian, Diverged, FedAvgGDA, FedMM, FedmmError, Terms
from fedmm.core.aggregation import Aggregation
from fedmm.core.algorithm import Algorithm
from fedmm.data import SourceTarget
from fedmm.engines.batched import BatchedEngine
from fedmm.engines.batched.settle import REASONS
from fedmm.training.adaptation import Adaptation
from fedmm.training.loop import train

each_algorithm = pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)


@pytest.mark.parametrize("name", ["bounded", "unusual"])
def test_the_same_clients_are_refused_in_every_round_as_in_the_reference(name: str) -> None:
    refused = 0
    for run in TERMS[name]:
        fast, readable = BatchedEngine(stacked([run])), run.adaptation().engine
        for (state, record), (expected, its_record) in zip(played(fast, 6), played(readable, 6), strict=True):
            assert_same_state(state, expected, 1e-9)
            assert sorted(each.client for each in record.refused) == sorted(each.client for each in its_record.refused)
            assert record.clients == its_record.clients
            assert {each.reason for each in record.refused} <= set(REASONS.values())
            refused += len(record.refused)
    assert refused > 10


def test_the_round_goes_on_without_anybody() -> None:
    # Where a round is for numbers alone, no update in it is too long.
    sending = [run for run in every_algorithm() if not run.algorithm.reports_only(1)]
    runs = on_terms(sending, max_update_norm=1e-9)
    stack = stacked(runs)
    before = [tensors(stack.state(replica)) for replica in range(len(runs))]
    measures = advanced(stack, 2)
    assert stack.rounds_done.tolist() == [2] * len(runs)
    assert not measures[:, -1].any()
    for replica, run in enumerate(runs):
        torch.testing.assert_close(tensors(stack.state(replica)), before[replica], rtol=0, atol=0)
        *_, (state, record) = played(run.adaptation().engine, 2)
        torch.testing.assert_close(tensors(state), before[replica], rtol=0, atol=0)
        invited = 0 if run.algorithm.in_pairs else 4  # a second round is for those who were counted in the first
        assert (record.clients, len(record.refused), record.drift, record.metrics) == (0, invited, 0.0, {})
        assert (record.bytes_up, record.bytes_down) == stack.traffic(replica, 1, 0)


@dataclass(frozen=True)
class Poisoned:
    """A learning rate that is right but in one round."""

    at: int

    def __call__(self, t: int, rounds: int) -> float:
        return math.nan if t == self.at else 1.0


@each_algorithm
def test_where_bad_updates_are_skipped_a_round_of_nothing_else_changes_nothing(kind: type[Algorithm]) -> None:
    at = 2 if kind.in_pairs or with_options(kind).reports_only(1) else 1  # a round in which rates of its own count
    poisoned = Run(with_options(kind, **RATES | {"lr_schedule": Poisoned(at)}), seed=2)
    (skipping,) = on_terms([poisoned], on_bad_update="skip")
    stack = stacked([skipping])
    advanced(stack, at)
    before = tensors(stack.state(0))
    stack.advance()
    torch.testing.assert_close(tensors(stack.state(0)), before, rtol=0, atol=0)
    assert [each.reason for each in stack.refusals(0, stack.verdicts[0].tolist())] == ["its update is not finite"] * 4
    stack.advance()
    assert stack.rounds_done.tolist() == [at + 2]
    *_, (expected, _) = played(skipping.adaptation().engine, at + 2)
    assert_same_state(stack.state(0), expected, 1e-9)
    with pytest.raises(Diverged, match=f"in round {at + 1}:"):
        list(played(BatchedEngine(stacked([poisoned])), 3))


@dataclass(frozen=True, eq=False)
class BrokenRun(Run):
    """A run of which one client's field is beyond all measure."""

    client: str = ""

    def adaptation(self, device: str = "cpu", dtype: torch.dtype = FLOAT64) -> Adaptation:
        built = super().adaptation(device, dtype)
        for client in built.problem.clients:
            if client.name == self.client:
                client.field_scale = 1e300 * client.field_scale
        return built


def broken(runs: Sequence[Run], client: str) -> list[Run]:
    return [
        BrokenRun(**{option.name: getattr(run, option.name) for option in fields(run)}, client=client) for run in runs
    ]


@pytest.mark.parametrize("aggregation", [Terms().aggregation, CoordinateMedian()], ids=lambda each: each.name)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_one_broken_client_is_skipped_and_the_others_go_on(share: float, aggregation: Aggregation) -> None:
    terms = {"on_bad_update": "skip", "aggregation": aggregation}
    runs = broken(on_terms(many_clients(), share, **terms), "source-2")
    stack = stacked(runs)
    times = 0
    for _ in range(5):
        stack.advance()
        for replica, verdicts in enumerate(stack.verdicts.tolist()):
            refused = [each.client for each in stack.refusals(replica, verdicts)]
            assert refused in ([], ["source-2"])
            times += len(refused)
    # In the second round of a pair it is not asked, or tells its loss alone, which is a number.
    asked = sum(3 if run.algorithm.in_pairs or run.algorithm.reports_only(1) else 5 for run in runs)
    assert times == asked if share == 1.0 else times > 5
    assert stack.rounds_done.tolist() == [5] * len(runs)
    for replica, run in enumerate(runs):
        *_, (expected, _) = played(run.adaptation().engine, 5)
        assert_same_state(stack.state(replica), expected, 1e-9)
        assert all(bool(tensor.isfinite().all()) for tensor in tensors(stack.state(replica)).values())


def test_a_broken_client_that_is_away_does_not_end_the_run() -> None:
    (run,) = broken([Run(FedAvgGDA(0.1, 0.1, 2), terms=Terms(participation=0.25))], "source-1")
    stack = stacked([run])
    ended = train(run.adaptation().engine, 12)
    assert ended.error is not None
    assert ended.error.client == "source-1"
    assert ended.state.round > 0
    advanced(stack, 12)
    assert stack.rounds_done.tolist() == [ended.state.round]
    assert stack.offender(0) == "source-1"


def test_replicas_may_differ_in_who_takes_part_and_in_nothing_else_of_their_terms() -> None:
    runs = [Run(FedMM(0.1, 0.1, local_steps=2), terms=Terms(participation=share)) for share in (0.25, 0.5, 1.0)]
    stack = stacked(runs)
    assert advanced(stack, 1)[:, -1].tolist() == [1.0, 2.0, 4.0]
    point = 8 * stack.layout.size
    assert [stack.traffic(replica, 0, 0) for replica in range(3)] == [(n * point, n * point) for n in (1, 2, 4)]
    with pytest.raises(FedmmError, match="must have the same terms"):
        stacked([runs[0], replace(runs[1], terms=Terms(max_update_norm=1.0))])


def test_clients_of_one_domain_are_a_group() -> None:
    run = Run(FedMM(), partition=SourceTarget(2, 3))
    problem = run.adaptation().problem
    assert set(problem.groups.values()) == {"source", "target"}
    assert stacked([run]).clients.groups.of.tolist() == [[0, 0, 1, 1, 1]]
