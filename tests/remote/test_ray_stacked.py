"""An actor's clients as one program of the batched engine; the actors are called here without Ray."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import played, with_options

from fedmm import ALGORITHMS, Terms
from fedmm.config.schema import experiment
from fedmm.core.mechanisms import ClippedUpdate
from fedmm.engines.in_process import InProcess
from fedmm.remote.ray import RayEngine
from fedmm.remote.ray.actor import ActorSetup, Answer, Call, ClientActor, GivenState
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.on_ray import FromTables

MOONS: dict[str, Any] = {
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "partition": {"name": "source_target", "source_clients": 2, "target_clients": 2},
    "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
    "run": {"rounds": 4, "batch_size": 8, "dtype": "float64"},
}
TERMS = [Terms(), Terms(participation=0.5, transmission=ClippedUpdate(0.05)), Terms(uploads="int8")]
ROUNDS = 5


class HereActors:
    """Two actors in this process."""

    retries = 0

    def __init__(self, build: FromTables, names: list[str], folder: Path | None = None) -> None:
        durable = None if folder is None else (folder, "run")
        self.shares = [names[first::2] for first in range(2)]
        self.actors = [ClientActor(ActorSetup(build, share, 1, durable)) for share in self.shares]

    def sent(self, call: Call) -> Call:
        return call

    def load(self, states: Mapping[str, GivenState]) -> None:
        for actor, share in zip(self.actors, self.shares, strict=True):
            actor.load({name: states[name] for name in share if name in states})

    def work(self, call: Call, names: Iterable[str]) -> dict[str, Answer]:
        asked, answers = set(names), {}
        for actor, share in zip(self.actors, self.shares, strict=True):
            answers |= actor.work(call, [name for name in share if name in asked])
        return answers


def _compared(
    device: str, dtype: str, name: str, terms: Terms, *, stacked: bool = True, **options: Any
) -> tuple[float, float]:
    """How far engine and reference are apart in points and duals, relative to the way from the start."""
    each = experiment({**MOONS, "run": {**MOONS["run"], "device": device, "dtype": dtype}})
    adaptation = prepare(each, DataCache())
    names = sorted(client.name for client in adaptation.problem.clients)
    actors: Any = HereActors(FromTables(each.tables(), stacked), names)
    algorithm = replace(with_options(ALGORITHMS[name], **options), lr_min=0.01, lr_max=0.01)
    ours = list(played(RayEngine(adaptation.problem, algorithm, ROUNDS, actors, terms), ROUNDS))
    reference = list(played(InProcess(adaptation.problem, algorithm, ROUNDS, terms), ROUNDS))
    (state, record), (expected, expected_record) = ours[-1], reference[-1]
    way = float((expected.z - adaptation.problem.start).norm())
    assert record.clients == expected_record.clients
    assert record.metrics == pytest.approx(expected_record.metrics, rel=1e-2)
    own = [
        float((vector - expected.clients[client][key]).norm())
        for client, kept in state.clients.items()
        for key, vector in kept.items()
    ]
    return float((state.z - expected.z).norm()) / way, max(own, default=0.0) / way


@pytest.mark.parametrize("terms", TERMS, ids=["usual", "half, clipped", "int8"])
@pytest.mark.parametrize("name", ["fedmm", "scaffold_gda", "fedmm_agnostic", "drfa"])
def test_stacked_shares_agree_with_in_process(name: str, terms: Terms) -> None:
    """To the batched engine's tolerance in float64; coded uploads are left to each client alone, so to the bit."""
    point, own = _compared("cpu", "float64", name, terms)
    assert max(point, own) <= (0.0 if terms.uploads != "exact" else 1e-9)


@pytest.mark.parametrize("name", ["fedmm_agnostic", "drfa"])
def test_stacked_shares_agree_with_in_process_where_targets_are_weighed(name: str) -> None:
    assert max(_compared("cpu", "float64", name, Terms(), weighs="target")) <= 1e-9


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("terms", TERMS, ids=["usual", "half, clipped", "int8"])
@pytest.mark.parametrize("name", ["fedmm", "scaffold_gda", "fedmm_agnostic", "drfa"])
def test_stacked_shares_agree_with_in_process_on_a_gpu(name: str, terms: Terms) -> None:
    """Captured graphs, and messages that leave the device and come back: the batched engine's tolerance in float32."""
    point, own = _compared("cuda", "float32", name, terms)
    assert max(point, own) <= 1e-3


def test_a_state_that_is_not_there_is_not_made_up() -> None:
    each = experiment(MOONS)
    adaptation = prepare(each, DataCache())
    engine = adaptation.engine
    names = sorted(client.name for client in adaptation.problem.clients)
    actors: Any = HereActors(FromTables(each.tables(), stacked=True), names)
    ours = RayEngine(adaptation.problem, adaptation.algorithm, 4, actors)
    state, _ = ours.run_round(engine.start())
    actors.actors[0] = ClientActor(ActorSetup(FromTables(each.tables(), stacked=True), actors.shares[0], 1))
    actors.retries = 1
    again, _ = ours.run_round(state)
    expected, _ = engine.run_round(state)
    torch.testing.assert_close(again.z, expected.z, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(again.clients, expected.clients, rtol=1e-9, atol=1e-12)
