"""The fast engine computes what the readable one does: every row of the tables, in one stack and alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines.batched.stacks import (
    POLICIES,
    ROUNDS,
    STACKS,
    TERMS,
    Run,
    advanced,
    assert_agrees,
    assert_moved,
    normalised,
    pictures,
    reference,
    referred,
    small,
    stacked,
)

from fedmm import (
    AFL,
    CDAN,
    DRFA,
    MDD,
    QFFL,
    AgnosticFedMM,
    CropAndFlip,
    FedAvgGDA,
    FedMM,
    FedmmError,
    MinimumClassConfusion,
    Terms,
)
from fedmm.core.algorithm import Algorithm
from fedmm.data import SourceTarget
from fedmm.engines.batched import Batched, Replica
from fedmm.engines.in_process import InProcess

TOLERANCE = 1e-9

WAYS: dict[str, dict[str, Any]] = {
    "layer by layer": {},
    "network by network": {"looped": True},
    "chunks of 1": {"chunk": 1},
    "chunks of 2": {"chunk": 2},
    "chunks of 3": {"chunk": 3},
}
CHUNKED = (
    "mixed",
    "dropout",
    "cropped",
    *(f"batch norm {policy}" for policy in POLICIES),
    "half, clipped",
    "bounded",
    "few",
)

CASES = [(name, way) for name in STACKS for way, options in WAYS.items() if "chunk" not in options or name in CHUNKED]


@pytest.mark.parametrize(("name", "way"), CASES)
def test_every_replica_of_a_stack_agrees_with_the_reference(name: str, way: str) -> None:
    stack = stacked(STACKS[name], **WAYS[way])
    assert stack.network.layer_by_layer == (way != "network by network")
    before = [stack.state(replica) for replica in range(len(STACKS[name]))]
    measures = advanced(stack, ROUNDS)
    for replica, expected in enumerate(reference(name)):
        assert_agrees(stack, replica, measures, expected[-1], TOLERANCE)
        assert_moved(before[replica], stack.state(replica), stack.layout.min_size, all_counted=name not in TERMS)


@pytest.mark.parametrize("name", [name for name in STACKS if name.startswith("few")])
def test_clients_that_are_away_are_not_computed_where_few_take_part(name: str) -> None:
    stack = stacked(STACKS[name])
    most = max(stack.clients.taking_part)
    assert stack.now.z.shape[1] == most <= stack.clients.count // 2
    for _ in range(ROUNDS):
        stack.advance()
        for working, seated in zip(stack.now.working.tolist(), stack.clients.seats.of.tolist(), strict=True):
            assert len(set(seated)) == most
            assert {place for place, works in enumerate(working) if works} <= set(seated)


@pytest.mark.parametrize("kind", [AFL, AgnosticFedMM, DRFA, QFFL])
def test_methods_that_weigh_their_clients_compute_all_of_them(kind: type[Algorithm]) -> None:
    stack = stacked([Run(kind(), terms=Terms(participation=0.25))])
    assert stack.now.z.shape[1] == 4


def assert_parity(runs: Sequence[Run], rounds: int = 3, **options: Any) -> None:
    stack = stacked(runs, **options)
    measures = advanced(stack, rounds)
    for replica, run in enumerate(runs):
        assert_agrees(stack, replica, measures, referred(run, rounds), TOLERANCE)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_of_clients_with_fewer_steps_agree_with_the_reference(
    policy: str, looped: bool, chunk: int | None
) -> None:
    assert_parity(normalised(policy, local_steps=[1, 3, 2, 3]), looped=looped, chunk=chunk)


@pytest.mark.parametrize("chunk", [None, 2])
@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
@pytest.mark.parametrize("policy", POLICIES)
def test_sam_steps_of_unlike_radii_agree_with_the_reference(policy: str, looped: bool, chunk: int | None) -> None:
    pair = zip(normalised(policy, local_steps=[1, 3, 2, 3]), (0.05, 0.5), strict=True)
    runs = [replace(run, objective=replace(run.objective, sam_radius=radius)) for run, radius in pair]
    assert_parity(runs, looped=looped, chunk=chunk)


@pytest.mark.parametrize("policy", POLICIES)
def test_statistics_move_where_the_policy_lets_them(policy: str) -> None:
    stack = stacked(normalised(policy))
    before = stack.state(1)
    stack.advance()
    after = stack.state(1)
    for name, tensor in after.statistics.items():
        assert torch.equal(tensor, before.statistics[name]) == (policy != "averaged")
        own = torch.stack([after.client_statistics[client][name] for client in stack.clients.names[1]])
        assert bool((own == before.statistics[name]).all()) == (policy == "frozen")
        assert bool((own == own[0]).all()) == (policy == "frozen" or name.endswith("num_batches_tracked"))


def test_statistics_for_predictions_are_the_mean_of_the_clients_asked_for() -> None:
    runs = normalised("local")
    stack = stacked(runs)
    advanced(stack, 2)
    for replica, run in enumerate(runs):
        expected = run.adaptation().prediction_statistics(referred(run, 2)[0])
        got = stack.prediction_statistics(replica, ["target-1", "target-2"])
        torch.testing.assert_close(got, expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_listed_steps_go_to_clients_in_the_order_of_the_problem() -> None:
    # A problem that lists nothing else: its clients' order counts, which is not that of their names here.
    run = Run(FedAvgGDA(0.2, 0.2, [4, 1]), partition=SourceTarget(1, 1))
    problem = run.adaptation().problem
    problem = replace(problem, clients=problem.clients[::-1], listed=())
    expected, _ = (engine := InProcess(problem, run.algorithm, 1)).run_round(engine.start())
    stack = Batched([Replica(problem, run.algorithm, 1)], stacked([run]).network)
    stack.advance()
    torch.testing.assert_close(stack.state(0).z, expected.z, rtol=TOLERANCE, atol=TOLERANCE)


def test_crops_are_drawn_anew_in_every_step_and_for_every_client() -> None:
    run = STACKS["cropped"][0]
    clients = run.adaptation().problem.clients
    keys = [client.view_key(t, step) for client in clients for t in range(3) for step in range(3)]
    assert len(set(keys)) == len(keys)
    whole = replace(run, pair=replace(run.pair, view=CropAndFlip(5, flip=False)))
    stacks = [stacked([each]) for each in (run, whole)]
    for stack in stacks:
        stack.advance()
    assert not torch.equal(stacks[0].z, stacks[1].z)


UNLIKE = {
    "view": [
        replace(STACKS["cropped"][0], pair=replace(pictures(), view=CropAndFlip(5, flip=f))) for f in (True, False)
    ],
    "target losses": [Run(FedMM(), MDD(target_loss=name)) for name in ("none", "mcc")],
    "temperatures": [Run(FedMM(), MDD(target_loss=MinimumClassConfusion(t))) for t in (1.0, 2.5)],
    "domain smoothing": [Run(FedMM(), CDAN(domain_smoothing=e)) for e in (0.0, 0.1)],
    "sharpened or not": [Run(FedMM(), MDD(sam_radius=radius)) for radius in (0.0, 0.1)],
    "margins": [Run(FedMM(), MDD(gamma=gamma)) for gamma in (1.0, 4.0)],
    "softmax detached or not": [Run(FedMM(), CDAN(detach_softmax=detached)) for detached in (False, True)],
    "centring": [Run(FedMM(), network=lambda s, c=c: small(s, centre=c)) for c in ("none", "batch_mean")],
    "statistics": [normalised(policy)[0] for policy in ("averaged", "local")],
}


@pytest.mark.parametrize("runs", UNLIKE.values(), ids=UNLIKE)
def test_runs_that_differ_in_what_a_stack_shares_are_refused(runs: Sequence[Run]) -> None:
    with pytest.raises(FedmmError):
        stacked(runs)
