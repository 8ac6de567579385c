"""A Ray cluster of several nodes, on this machine: one of them is lost, then so many that there is no room left."""

from __future__ import annotations

import gc
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

pytest.importorskip("ray", reason="the engine 'ray' needs fedmm[ray]")

from problems import played, with_options
from ray_federation import Federation

from fedmm import ALGORITHMS, FedmmError
from fedmm.engines.in_process import InProcess
from fedmm.remote.ray import Actors, RayEngine, ray_cluster
from fedmm.remote.ray.cluster import loopback_environment

pytestmark = [
    pytest.mark.processes,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore:unclosed file <_io.* name='/dev/null':ResourceWarning"),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]
ROUNDS = 20


def test_a_lost_node_changes_no_bit_and_lost_room_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray.cluster_utils import Cluster as Nodes

    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))  # where ray_federation lies
    federation, algorithm = Federation(), with_options(ALGORITHMS["fedmm"])
    *_, (expected, _) = played(InProcess(federation.problem(), algorithm, ROUNDS), ROUNDS)
    size = {"num_cpus": 1, "object_store_memory": 80 << 20}
    with ExitStack() as stack:
        stack.enter_context(loopback_environment())
        nodes = Nodes(initialize_head=True, head_node_args={**size, "include_dashboard": False})
        stack.callback(gc.collect)
        stack.callback(nodes.shutdown)
        others = [nodes.add_node(**size) for _ in range(2)]
        with ray_cluster(nodes.address) as cluster:
            assert cluster.cores == 3
            actors = Actors(cluster, federation, federation.names, number=2, patience=300.0)
            engine = RayEngine(federation.problem(), algorithm, ROUNDS, actors)
            where = ray.get(
                [
                    handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id())
                    for handle in actors.handles
                ]
            )
            lost = next(node for node in others if node.node_id in where)
            state = engine.start()
            for number in range(ROUNDS):
                if number == 7:
                    nodes.remove_node(lost, allow_graceful=False)
                state, _ = engine.run_round(state)
            assert torch.equal(state.z, expected.z)
            assert all(torch.equal(own["dual"], expected.clients[name]["dual"]) for name, own in state.clients.items())

            actors.patience = 5.0
            nodes.remove_node(next(node for node in others if node is not lost), allow_graceful=False)
            with pytest.raises(FedmmError, match="an actor is not back after 5 s; has Ray lost a node"):
                engine.run_round(state)
