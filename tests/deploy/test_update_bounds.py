"""A deployed server bounds the length of updates by default, and blames the right site."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.grids import SitesGrid
from deploy.test_serving import crashing, grid_of, log, served, small
from flwr.app import Array, Message

from fedmm.config.schema import Experiment
from fedmm.deploy import server as serving
from fedmm.deploy.local import same_result
from fedmm.deploy.server import serve
from fedmm.engines.server import Server
from fedmm.remote.flower.engine import Patience
from fedmm.remote.flower.envelope import read
from fedmm.runs.build import DataCache, prepare

THREE = {"name": "source_target", "source_clients": 2, "target_clients": 1}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


def attacking(grid: SitesGrid, site: str, change: Callable[[Any], Any], names: tuple[str, ...] = ()) -> None:
    """A site changes the arrays of its updates, or some of them, before it sends them."""

    def spoil(name: str, reply: Message) -> Message:
        if name == site and reply.metadata.message_type == "train" and "problem" not in reply.content["config"]:
            arrays = reply.content["arrays"]
            for key in list(arrays):
                if not names or key.startswith(names):
                    arrays[key] = Array(np.asarray(change(arrays[key].numpy()), dtype=arrays[key].numpy().dtype))
        return reply

    grid.on_reply = spoil


def refused(tmp_path: Path) -> list[dict[str, Any]]:
    path = tmp_path / "runs" / "one" / "refused.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def last_z(each: Experiment, tmp_path: Path) -> torch.Tensor:
    checkpoints = serving.checkpoints_of(each.run, tmp_path / "runs" / "one")
    return checkpoints.load(max(checkpoints.rounds()), torch.device("cpu"))[0].z


@pytest.mark.parametrize("policy", ["stop", "skip"])
@pytest.mark.parametrize("partition", [{"name": "source_target"}, THREE])
def test_an_update_scaled_by_minus_a_million_is_refused_in_every_round_and_nobody_else_is(
    tmp_path: Path, policy: str, partition: dict[str, Any]
) -> None:
    each = small(run={"on_bad_update": policy}, partition=partition)
    grid = grid_of(tmp_path, each)
    attacking(grid, "target-1", lambda array: -1e6 * array)
    serve(grid, served(tmp_path, each))
    found = refused(tmp_path)
    assert [(line["round"], line["client"]) for line in found] == [(t, "target-1") for t in range(1, 5)]
    assert all("10 times the other clients' median" in line["reason"] for line in found)
    assert "round 1: target-1 was not counted: its update has norm" in log(tmp_path)
    away = small(run={"on_bad_update": policy}, partition=partition)
    silent = grid_of(tmp_path / "away", away)
    silent.hanging = {"target-1"}
    serve(silent, served(tmp_path / "away", away, patience=0.05))
    assert torch.equal(last_z(each, tmp_path), last_z(away, tmp_path / "away"))


def test_what_goes_beyond_floats_is_refused_too(tmp_path: Path) -> None:
    each = small()
    grid = grid_of(tmp_path, each)
    attacking(grid, "target-1", lambda array: np.full_like(array, 3e38))
    serve(grid, served(tmp_path, each))
    assert {line["client"] for line in refused(tmp_path)} == {"target-1"}


def test_the_second_vector_of_an_upload_is_bounded_as_well(tmp_path: Path) -> None:
    each = small(algorithm={"name": "scaffold_gda"})
    names: set[str] = set()
    grid = grid_of(tmp_path, each)

    def spoil(name: str, reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            arrays = reply.content["arrays"]
            names.update(arrays)
            for key in [key for key in arrays if "control" in key and name == "target-1"]:
                arrays[key] = Array(arrays[key].numpy() * np.float32(1e6))
        return reply

    grid.on_reply = spoil
    serve(grid, served(tmp_path, each))
    assert any("control" in name for name in names)
    assert [line["client"] for line in refused(tmp_path)] == ["target-1"] * 4
    assert "its 'control_change' has norm" in log(tmp_path)


def test_a_site_that_sends_nearly_nothing_has_nobody_refused(tmp_path: Path) -> None:
    each = small()
    grid = grid_of(tmp_path, each)
    sent: dict[str, Any] = {}
    answered = grid.answered

    def remember(message: Message) -> list[Message]:
        if message.metadata.message_type == "train":
            sent.update(read(message.content).arrays)
        return answered(message)

    grid.answered = remember  # type: ignore[method-assign]

    def stay(name: str, reply: Message) -> Message:
        if name == "target-1" and reply.metadata.message_type == "train":
            for key in list(reply.content["arrays"]):
                reply.content["arrays"][key] = Array(sent[key].copy())
        return reply

    grid.on_reply = stay
    serve(grid, served(tmp_path, each))
    assert refused(tmp_path) == []


@pytest.mark.parametrize("crash_in", [1, 2, 3])
def test_the_bound_is_the_same_after_a_resume(tmp_path: Path, crash_in: int) -> None:
    """An attacker that is alone in a round is compared with what the others sent before the crash."""
    each = small()

    def grid(folder: Path) -> SitesGrid:
        made = grid_of(folder, each)
        attacking(made, "target-1", lambda array: -1e6 * array)
        answered = made.answered

        def others_fall_silent(message: Message) -> list[Message]:
            invited = message.metadata.message_type == "train" and int(message.metadata.group_id) > crash_in
            source = made.files[message.metadata.dst_node_id].stem == "source-1"
            return [] if invited and source else answered(message)

        made.answered = others_fall_silent  # type: ignore[method-assign]
        return made

    serve(grid(tmp_path / "whole"), served(tmp_path / "whole", each, patience=0.05))
    crashed = grid(tmp_path / "crashed")
    with crashing(crash_in):
        serve(crashed, served(tmp_path / "crashed", each, patience=0.05))
    serve(crashed, served(tmp_path / "crashed", each, patience=0.05, resume=True))
    reasons = [refused(tmp_path / folder) for folder in ("whole", "crashed")]
    assert reasons[0] == reasons[1]
    assert sum(line["client"] == "target-1" for line in reasons[0]) == 4
    assert torch.equal(last_z(each, tmp_path / "whole"), last_z(each, tmp_path / "crashed"))


def test_a_bound_of_the_experiments_own_replaces_it(tmp_path: Path) -> None:
    each = small(run={"rounds": 1, "max_update_norm": 1e30})
    grid = grid_of(tmp_path, each)
    attacking(grid, "target-1", lambda array: -1e3 * array)
    serve(grid, served(tmp_path, each))
    assert refused(tmp_path) == []
    assert "the experiment bounds the length of updates: max_update_norm = 1e+30" in log(tmp_path)


def test_where_noise_is_shared_the_sites_clip_is_the_bound_and_the_run_says_so(tmp_path: Path) -> None:
    noise = {
        "name": "gaussian",
        "norm_min": 0.1,
        "norm_max": 0.2,
        "noise_min": 2.0,
        "noise_max": 2.0,
        "trust": "server",
    }
    each = small(transmission=noise, model={"centre": "none"}, algorithm={"name": "fedavg_gda"}, run={"rounds": 1})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    said = [line for line in log(tmp_path).splitlines() if "trust = 'server'" in line]
    assert len(said) == 1
    assert "the clip that sites apply themselves is the bound (norm_min = 0.1, norm_max = 0.2)" in said[0]


def test_the_bound_knows_the_local_steps_of_the_experiment() -> None:
    steps = {"source-1": 50, "target-1": 1}
    ready = prepare(small(algorithm={"name": "fedavg_gda", "local_steps": steps}), DataCache())
    usual = Server(ready.problem, ready.algorithm, 1, ready.terms, bounded=True).usual_norms({})
    assert usual is not None
    assert usual.steps == steps
    long = 30 * usual.harmless["z"]
    assert usual.refusals({"source-1": {"z": long}, "target-1": {"z": long / 30}}) == {}
    assert list(usual.refusals({"source-1": {"z": long / 30}, "target-1": {"z": long}})) == ["target-1"]


@pytest.mark.parametrize("name", ["fedmm", "scaffold_gda", "fedavg_gda"])
@pytest.mark.parametrize(
    "partition",
    [
        {"name": "disjoint_classes", "source_clients": 3, "target_clients": 2},
        {"name": "dirichlet", "alpha": 0.1, "source_clients": 3, "target_clients": 3},
    ],
)
def test_honest_sites_that_differ_pass_from_the_first_round_on(
    tmp_path: Path, name: str, partition: dict[str, Any]
) -> None:
    each = small(algorithm={"name": name, "local_steps": 8}, partition=partition, run={"rounds": 3})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    assert refused(tmp_path) == []
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)
