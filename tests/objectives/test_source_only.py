from __future__ import annotations

import torch
from problems import CLASSES, WIDTH, adapt, mixed_client, network, source_client, target_client

from fedmm import FedAvgGDA, FedMM, SourceOnly
from fedmm.models import FlatNetwork


def test_there_is_no_psi() -> None:
    assert SourceOnly().adversary_shape(WIDTH, CLASSES) is None
    function = FlatNetwork(network(), SourceOnly(), torch.zeros(2, WIDTH), seed=0)
    assert function.layout.min_size == function.layout.size
    assert {block.side for block in function.layout.blocks} == {"min"}
    assert not [name for name in adapt(objective=SourceOnly()).tensors() if name.startswith("adversary")]


def test_target_rows_change_nothing() -> None:
    # A target-only client has nothing to add and leaves the federation; a mixed client keeps its source rows.
    algorithm = FedAvgGDA(0.1, 0.1, local_steps=2)
    alone = adapt([source_client()], objective=SourceOnly(), algorithm=algorithm)
    joined = adapt([source_client(), target_client()], objective=SourceOnly(), algorithm=algorithm)
    assert torch.equal(alone.state.z, joined.state.z)
    assert sorted(joined.state.clients) == ["source"]


def test_a_mixed_clients_batch_is_all_source() -> None:
    mixed = mixed_client()
    source = source_client("mixed", seed=3)
    algorithm = FedMM(0.1, 0.1, local_steps=2)
    with_target = adapt([mixed], objective=SourceOnly(), algorithm=algorithm)
    without = adapt([source], objective=SourceOnly(), algorithm=algorithm)
    assert torch.equal(with_target.state.z, without.state.z)


def test_the_domain_loss_is_nothing_whatever_nu_is() -> None:
    history = adapt(objective=SourceOnly(nu=7.0)).history
    assert history["domain_loss"] == [0.0, 0.0]
    assert history["loss"] == history["task_loss"]
