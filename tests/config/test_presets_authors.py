"""Three rounds of the paper's own program, recorded in golden/authors_dann_*.json, by the ``authors`` preset.

The recording was made in TensorFlow, in float32: convolution weights lie [height, width, in, out], dense weights
[in, out], and features are flattened as (height, width, channel).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from problems import InOrder, golden, played
from torch import Tensor

from fedmm import DANN
from fedmm.config.presets import Preset, preset
from fedmm.core.problem import FederatedProblem
from fedmm.data.rows import TensorRows
from fedmm.engines.in_process import InProcess
from fedmm.models import FlatNetwork
from fedmm.training.clients import ClientData

NAMES = [
    *("features.0.weight", "features.0.bias", "features.3.weight", "features.3.bias"),
    *("task_head.0.weight", "task_head.0.bias", "task_head.2.weight", "task_head.2.bias"),
    *("task_head.4.weight", "task_head.4.bias"),
    *("adversary.0.weight", "adversary.0.bias", "adversary.2.weight", "adversary.2.bias"),
]
"""Our names of the program's variables, in its order."""
RELATIVE = 1e-4
BATCH = 8


@pytest.fixture(params=["fedavg_gda", "fedmm"])
def setup(request: pytest.FixtureRequest) -> tuple[dict[str, Any], Preset]:
    recorded = golden(f"authors_dann_{request.param.removesuffix('_gda')}")
    authors = preset("authors", objective="dann", algorithm=request.param)
    steps = recorded["args"]["local_steps"]
    return recorded, dataclasses.replace(authors, algorithm=dataclasses.replace(authors.algorithm, local_steps=steps))


def ours(value: np.ndarray[Any, Any], name: str) -> Tensor:
    """One of the program's tensors in torch's layout."""
    tensor = torch.from_numpy(value)
    if tensor.dim() == 4:
        return tensor.permute(3, 2, 0, 1)
    if name in ("task_head.0.weight", "adversary.0.weight"):
        tensor = tensor.reshape(7, 7, 48, -1).permute(2, 0, 1, 3).flatten(0, 2)
    return tensor.T if tensor.dim() == 2 else tensor


def first_weights(recorded: dict[str, Any]) -> dict[str, Tensor]:
    stream = np.random.RandomState(1)
    shapes = [shape for _, shape in recorded["vars"]]
    values = [(stream.standard_normal(shape) * 0.05).astype(np.float32) for shape in shapes]
    return {name: ours(value, name) for name, value in zip(NAMES, values, strict=True)}


def pictures() -> tuple[TensorRows, TensorRows]:
    """Source rows with labels, and target rows: bytes [rows, channels, height, width]."""
    stream = np.random.RandomState(2)
    source, target = (stream.randint(0, 256, (64, 28, 28, 3)) for _ in range(2))
    labels = torch.from_numpy(stream.randint(0, 10, 64))
    x_source, x_target = (torch.from_numpy(x.astype(np.uint8)).permute(0, 3, 1, 2) for x in (source, target))
    return TensorRows(x_source, labels), TensorRows(x_target)


def build(recorded: dict[str, Any], authors: Preset) -> tuple[FlatNetwork, Tensor]:
    """The preset's network, and the recorded start as a flat vector."""
    network = authors.model.build((3, 28, 28), 10, seed=0)
    assert network.centre == "batch_mean"
    function = FlatNetwork(network, authors.objective, torch.zeros(2, 3, 28, 28), seed=0)
    weights = first_weights(recorded)
    assert [block.name for block in function.layout.blocks] == NAMES
    assert function.layout.size == 522_792
    assert [block.shape for block in function.layout.blocks] == [tuple(weights[name].shape) for name in NAMES]
    return function, torch.cat([weights[name].flatten() for name in NAMES])


def norms(function: FlatNetwork, vector: Tensor) -> list[float]:
    return [float(tensor.double().norm()) for _, tensor in function.layout.tensors(vector)]


def test_the_preset_holds_the_programs_hyperparameters(setup: tuple[dict[str, Any], Preset]) -> None:
    recorded, authors = setup
    args, algorithm = recorded["args"], authors.algorithm
    assert algorithm.lr_min == algorithm.lr_max == args["lr"]
    assert authors.objective.nu == 1.0
    if recorded["args"]["trainer"] == "fedmm":
        assert algorithm.penalty_min == algorithm.penalty_max == args["mu"]
        assert algorithm.dual_decay == pytest.approx(args["decay"] ** (-1 / 100), rel=1e-15)


def test_three_rounds_are_those_of_the_papers_program(setup: tuple[dict[str, Any], Preset]) -> None:
    recorded, authors = setup
    function, start = build(recorded, authors)
    source, target = pictures()
    clients_data = [ClientData("1 target", None, target, 1.0), ClientData("2 source", source, None, 1.0)]
    clients = [InOrder(h, function, authors.objective, seed=0, batch_size=BATCH) for h in clients_data]
    for client in clients:
        client.skip = BATCH  # the program draws a batch and discards it
    problem = FederatedProblem(function.layout, start, clients)

    for state, record in played(InProcess(problem, authors.algorithm, recorded["args"]["rounds"]), 3):
        assert norms(function, state.z) == pytest.approx(recorded[f"round{record.round}_norm"], rel=RELATIVE)
        assert norms(function, state.z - start) == pytest.approx(recorded[f"round{record.round}_delta"], rel=RELATIVE)


@pytest.mark.parametrize("kind", ["mixed", "source", "target"])
def test_losses_and_gradients_are_those_of_the_papers_program(kind: str, setup: tuple[dict[str, Any], Preset]) -> None:
    recorded, authors = setup
    function, start = build(recorded, authors)
    source, target = pictures()
    held = (None if kind == "target" else source, None if kind == "source" else target)
    client = InOrder(ClientData(kind, *held, 1.0), function, DANN(), seed=0, batch_size=BATCH)

    local = client.open_round(0, 1, 1, {})
    field = local.field(start, 0)

    # 2-norms do not see the sign of psi's part.
    assert norms(function, field) == pytest.approx(recorded[f"gradnorm_{kind}"], rel=RELATIVE, abs=1e-12)
    if recorded[f"loss_{kind}"] is not None:
        assert local.close().metrics["loss"] == pytest.approx(recorded[f"loss_{kind}"], rel=RELATIVE)
