"""On a GPU: graphs that are captured once and replayed, and products of less than 24 bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines.batched.stacks import (
    STACKS,
    TERMS,
    Run,
    advanced,
    assert_agrees,
    assert_moved,
    assert_same_state,
    pictures,
    reference,
    seeded,
    stacked,
    vectors,
)
from torch import nn

from fedmm import FedAvgGDA, FedMM, Network
from fedmm.data import DomainPair, Labelled
from fedmm.engines.batched import Batched
from fedmm.models.devices import PRECISIONS, precision

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch"),  # advice on precision flags that differs between versions
]

GRAPHS = ("round", "step")
ROUNDS = 2


def gentle(runs: Sequence[Run]) -> list[Run]:
    """The same with learning rates at which float32 errors stay what they are."""
    return [replace(run, algorithm=replace(run.algorithm, lr_min=0.02, lr_max=0.03)) for run in runs]


@pytest.fixture(autouse=True)
def _accountant(request: pytest.FixtureRequest) -> None:
    """Noise is refused where nothing can tell what it is worth."""
    if "nois" in request.node.name:
        pytest.importorskip("dp_accounting", reason="noise in updates needs dp-accounting")


def on_gpu(runs: Sequence[Run], **options: Any) -> Batched:
    return stacked(runs, **{"device": "cuda", "dtype": torch.float32} | options)


@pytest.mark.parametrize("capture", GRAPHS)
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mixed", {}),
        ("mixed", {"chunk": 3}),
        ("dropout", {"chunk": 2}),
        ("pictures", {"looped": True}),
        ("cropped", {}),
        ("cropped bytes", {"looped": True}),
        ("batch norm averaged", {}),
        ("batch norm local", {"chunk": 2}),
        ("every algorithm", {}),
        ("beyond local steps", {"chunk": 1}),
        ("beyond local steps, batch norm averaged", {}),
        ("beyond local steps, dropout", {}),
        ("drawn steps", {}),
        ("drawn steps alone", {}),
        ("pairs of rounds", {}),
        ("pairs of rounds alone", {}),
        ("server optimisers", {}),
        ("objective dann, mcc", {}),
        ("objective cdan, im", {}),
        ("objective mdd, bnm", {"chunk": 1}),
        ("objective dann, smoothed", {}),
        ("half of the clients", {}),
        ("half, clipped", {"chunk": 4}),
        ("half, batch norm averaged", {}),
        ("bounded", {}),
        ("half, median", {}),
        ("trimmed_mean", {}),
        ("half, geometric_median", {"chunk": 2}),
        ("half, noisy", {}),
        ("noise shared", {"chunk": 4}),
        ("half, all in fp16", {"chunk": 3}),
        ("few", {}),
        ("few, mixed", {"chunk": 1}),
        ("few, all in int8", {}),
        ("few, noisy", {"chunk": 2}),
        ("few, dropout", {}),
    ],
)
def test_captured_rounds_are_those_that_run_operation_by_operation(
    name: str, options: dict[str, Any], capture: str
) -> None:
    # 2 rounds of up to 5 steps of 0.03: points agree to 1e-5 and what is divided by the learning rate to 1e-3.
    runs = gentle(STACKS[name])
    plain, graph = on_gpu(runs, **options), on_gpu(runs, capture=capture, **options)
    before = [graph.state(replica) for replica in range(len(runs))]
    expected, measures = advanced(plain, ROUNDS), advanced(graph, ROUNDS)
    torch.testing.assert_close(measures, expected, rtol=1e-3, atol=1e-4, equal_nan=True)
    for replica in range(len(runs)):
        state = graph.state(replica)
        torch.testing.assert_close(state.z, plain.state(replica).z, rtol=1e-5, atol=1e-5)
        assert_same_state(state, plain.state(replica), 1e-3)
        assert float((state.z - before[replica].z).norm()) > 1e-3  # a hundred times what points may differ by


@pytest.mark.parametrize("capture", GRAPHS)
def test_a_captured_stack_goes_on_from_states_it_gave(capture: str) -> None:
    graph = on_gpu(gentle(STACKS["every algorithm"]), capture=capture)
    graph.advance()
    states = [graph.state(replica) for replica in range(len(graph.replicas))]
    expected = advanced(graph, 2)
    graph.load(states)
    torch.testing.assert_close(advanced(graph, 2), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("capture", GRAPHS)
def test_in_a_captured_stack_a_replica_that_diverges_stops_alone(capture: str) -> None:
    def late(t: int, rounds: int) -> float:
        return 1e30 if t == 1 else 1.0

    good, bad = FedMM(0.05, 0.05, local_steps=3), FedMM(0.05, 0.05, local_steps=3, lr_schedule=late)
    runs = [Run(good), Run(bad, seed=1), Run(good, seed=2)]
    graph, without = on_gpu(runs, capture=capture), on_gpu(runs[::2], capture=capture)
    graph.advance()
    kept = graph.state(1)
    advanced(graph, 3)
    advanced(without, 4)
    assert graph.rounds_done.tolist() == [4, 1, 4]
    assert_same_state(graph.state(1), kept, 0.0)
    for replica, place in ((0, 0), (2, 1)):
        assert_same_state(graph.state(replica), without.state(place), 1e-4)


@pytest.mark.parametrize(
    "name",
    [
        "mixed", "dropout", "batch norm averaged", "bytes", "cropped", "cropped bytes", "half of the clients",
        "unusual", "bounded", "half, clipped", "half, median", "half, trimmed_mean", "half, geometric_median",
        "half, noisy", "noise shared", "half, all in int8", "noisy, in int8", "few", "few, mixed",
        "few, pairs of rounds",
    ],
)  # fmt: skip
def test_in_float64_a_gpu_agrees_with_the_reference_on_a_cpu(name: str) -> None:
    stack = stacked(STACKS[name], device="cuda")
    before = [stack.state(replica) for replica in range(len(stack.replicas))]
    measures = advanced(stack, len(reference(name)[0]))
    for replica, rounds in enumerate(reference(name)):
        assert_moved(before[replica], stack.state(replica), stack.layout.min_size, all_counted=name not in TERMS)
        assert_agrees(stack, replica, measures, rounds[-1], 1e-9)


# Precision ------------------------------------------------------------------------------------------------------------


def fusible(seed: int) -> Network:
    """Convolution, ReLU and pooling by two: what the fused kernels take."""
    return seeded(
        seed,
        lambda: nn.Conv2d(1, 5, 3, padding=1),
        nn.ReLU,
        lambda: nn.MaxPool2d(2),
        nn.Flatten,
        lambda: nn.Linear(45, 6),
        nn.ReLU,
        centre="train_mean",
    )


BOUNDS = {"fp32": 1e-4, "tf32": 0.03, "bf16": 0.3}
"""Of the distance that the runs have gone from their start."""


@pytest.mark.parametrize("capture", ["none", *GRAPHS])
@pytest.mark.parametrize("chosen", PRECISIONS)
def test_a_coarser_precision_goes_nearly_the_same_way(chosen: str, capture: str) -> None:
    runs = [Run(FedAvgGDA(0.05, 0.05, 4), seed=seed, network=fusible, pair=pictures()) for seed in range(3)]
    exact = stacked(runs, device="cuda")
    stack = on_gpu(runs, chosen=chosen, capture=capture)
    start = exact.z.clone()
    for each in (exact, stack):
        advanced(each, ROUNDS)
    distance = float((exact.z - start).norm())
    assert distance > 0.1
    assert float((stack.z.double() - exact.z).norm()) < BOUNDS[chosen] * distance


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_a_precision_is_as_it_was_after_its_block(chosen: Any) -> None:
    def flags() -> tuple[bool, bool, bool]:
        backends = torch.backends
        return backends.cuda.matmul.allow_tf32, backends.cudnn.allow_tf32, torch.is_autocast_enabled("cuda")

    before = flags()
    with precision(chosen, torch.device("cuda")):
        assert flags() == (chosen != "fp32", chosen != "fp32", chosen == "bf16")
    assert flags() == before


# Memory ---------------------------------------------------------------------------------------------------------------


def test_clients_that_share_a_tensor_bring_it_to_the_gpu_once() -> None:
    assert len(on_gpu([Run(FedAvgGDA())]).clients.pool.x) == 40 + 30


def test_replicas_share_what_is_on_the_gpu_already() -> None:
    pair = vectors()
    parts = (pair.source, pair.target, pair.source_test, pair.target_test)
    there = DomainPair(*(Labelled(part.x.cuda(), part.y.cuda()) for part in parts), class_names=pair.class_names)
    stack = on_gpu([Run(FedAvgGDA(), seed=seed, pair=there) for seed in range(3)])
    assert len(stack.clients.pool.x) == 40 + 30
