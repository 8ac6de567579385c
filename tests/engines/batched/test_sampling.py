"""Every client of a stack sees the rows, and drops the units, that it would see and drop by itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import pytest
import torch
from engines.batched.stacks import BATCH, MIXED, STACKS, Run, dropping, stacked, two_methods, vectors
from hypothesis import given
from hypothesis import strategies as st
from problems import WIDTH, network, rows
from torch import Tensor, nn
from torch.utils.data import Dataset

from fedmm import DANN, Client, FedmmError, FedSGDA
from fedmm.core.problem import HeldRows
from fedmm.core.seeding import permutation
from fedmm.data.rows import TensorRows
from fedmm.engines.batched.sampling import RoundSampler, RowPool
from fedmm.models import FlatNetwork
from fedmm.training.clients import ClientData, take_stock
from fedmm.training.problem import AdaptationClient

CPU = torch.device("cpu")


@cache
def flat_network() -> FlatNetwork:
    return FlatNetwork(network(), DANN(), torch.zeros(2, WIDTH), seed=0)


def numbered(count: int, first: int) -> Tensor:
    """Rows that tell who they are."""
    return torch.arange(first, first + count).unsqueeze(1).expand(-1, WIDTH).contiguous()


def pooled(clients: Sequence[AdaptationClient]) -> RowPool:
    return RowPool([held for client in clients for held in client.held], CPU)


def drawn(client: AdaptationClient, t: int, steps: int) -> tuple[Tensor, Tensor]:
    """The rows and labels of each local step, as the client draws them by itself; labels of target rows are 0."""
    x, y = [], []
    for domain, held, count in (
        ("source", client.source, client.source_rows),
        ("target", client.target, client.target_rows),
    ):
        if held is not None:
            index = client.indices(domain, len(held), t, steps, count)
            x.append(held.take(index))
            y.append(held.labels(index) if domain == "source" else torch.zeros_like(index))
    return torch.cat(x, dim=1), torch.cat(y, dim=1)


# Batches --------------------------------------------------------------------------------------------------------------


class Site(NamedTuple):
    """source, target: how many rows it holds, at least one of them; steps: its local steps."""

    source: int
    target: int
    steps: int

    def client(self, number: int, seed: int, batch_size: int, pool_of: tuple[Tensor, Tensor]) -> AdaptationClient:
        """Every second site holds chosen rows of shared tensors, the others tensors of their own."""

        def held(count: int, labelled: bool) -> TensorRows | None:
            if not count:
                return None
            if number % 2:
                x = numbered(count, 1000 * number + 100 * labelled)
                return TensorRows(x, x[:, 0] % 7 if labelled else None)
            index = permutation(number, len(pool_of[0]))[:count]
            return TensorRows(pool_of[0], pool_of[1] if labelled else None, index=index)

        client_data = ClientData(f"site-{number}", held(self.source, True), held(self.target, False), 1.0)
        return AdaptationClient(client_data, flat_network(), DANN(), seed=seed, batch_size=batch_size)


sites = st.lists(
    st.builds(Site, st.integers(0, 30), st.integers(0, 30), st.integers(1, 4)).filter(lambda s: s.source + s.target),
    min_size=1,
    max_size=5,
)


@given(sites, st.integers(2, 12), st.integers(0, 99), st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_a_round_holds_the_rows_that_each_client_draws_by_itself(
    sites: list[Site], batch_size: int, seed: int, rounds: list[int]
) -> None:
    # Rounds in any order: nothing that the sampler remembers may matter.
    x = numbered(30, 0)
    shared = (x, x[:, 0] % 5)
    clients = [site.client(number, seed, batch_size, shared) for number, site in enumerate(sites)]
    pool = pooled(clients)
    sampler = RoundSampler(clients, [site.steps for site in sites], pool)
    for t in rounds:
        index = sampler.indices(t)
        assert index.shape == (len(sites), max(site.steps for site in sites), batch_size)
        for client, site, own in zip(clients, sites, index, strict=True):
            expected, labels = drawn(client, t, site.steps)
            assert torch.equal(pool.x[own[: site.steps]], expected)
            assert torch.equal(pool.y[own[: site.steps]], labels)
            assert not bool(own[site.steps :].any())
        some = permutation(t, len(sites))[: t % len(sites) + 1]
        assert torch.equal(sampler.indices(t, seated=some.tolist()), index[some])


def test_rounds_on_end_pass_over_every_row_before_they_begin_anew() -> None:
    # 12 rows in batches of 5, two a round: epochs end within rounds and within batches, 6 rounds are 5 epochs.
    client = Site(12, 0, 2).client(1, 0, 5, (numbered(1, 0), torch.zeros(1, dtype=torch.int64)))
    sampler = RoundSampler([client], [2], pooled([client]))
    seen = torch.cat([sampler.indices(t).flatten() for t in range(6)])
    for epoch in seen.split(12):
        assert sorted(epoch.tolist()) == list(range(12))


@pytest.mark.parametrize("name", ["mixed", "both domains"])
def test_the_rows_of_a_stack_are_those_of_its_clients(name: str) -> None:
    runs = STACKS[name]
    stack = stacked(runs).clients
    for t in range(12):
        index = stack.sampler.indices(t).view(*stack.shape, stack.most_steps, BATCH)
        for r in range(len(runs)):
            for i, client in enumerate(stack.flat[r * stack.count : (r + 1) * stack.count]):
                steps = int(stack.steps[r, i])
                assert torch.equal(stack.pool.x[index[r, i, :steps]], drawn(client, t, steps)[0])


# Dropout --------------------------------------------------------------------------------------------------------------


def test_the_keys_of_a_stacks_masks_are_those_of_its_clients() -> None:
    stack = stacked(MIXED).clients
    for t in (0, 3):
        keys = stack.dropout_keys(t).flatten(0, 1)
        for client, own in zip(stack.flat, keys, strict=True):
            assert own.tolist() == [client.dropout_key(t, step) for step in range(stack.most_steps)]


@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
def test_masks_are_the_same_in_a_stack_and_alone(looped: bool) -> None:
    # The features are nothing but two layers of dropout: of ones, they are the masks.
    runs = two_methods(DANN(), network=lambda seed: network(nn.Dropout(0.4), nn.Dropout(0.2)))
    stack = stacked(runs, looped=looped)
    which = stack.clients.which.flatten()
    z = stack.z[which]
    ones = torch.ones(len(which), BATCH, WIDTH, dtype=z.dtype)
    keys = stack.clients.dropout_keys(5)[:, :, 1].flatten()
    masks = stack.network.outputs(z, ones, stack.network.constants(which), keys, {}).features
    for position, client in enumerate(stack.clients.flat):
        client.network.train({})
        alone = client.network.outputs(z[position], ones[position], client.dropout_key(5, 1)).features
        assert torch.equal(masks[position], alone)
        assert 0.2 < float((alone == 0).double().mean()) < 0.8


# The pool -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [1, 5])
def test_tensors_that_clients_and_replicas_share_are_stored_once(runs: int) -> None:
    pair = vectors()
    pool = stacked([Run(FedSGDA(), seed=seed) for seed in range(runs)]).clients.pool
    assert torch.equal(pool.x, torch.cat([pair.source.x, pair.target.x]))
    assert torch.equal(pool.y, torch.cat([pair.source.y, torch.zeros_like(pair.target.y)]))


def test_one_tensor_for_all_is_not_even_copied() -> None:
    x, y = rows(1), torch.arange(24) % 3
    held = [HeldRows(x, y, torch.arange(start, 24, 2), (start,), 4) for start in range(2)]
    pool = RowPool(held, CPU)
    assert pool.x.data_ptr() == x.data_ptr()
    assert torch.equal(pool.x[pool.numbers(held[1])], x[1::2])


def test_equal_rows_in_tensors_of_their_own_are_kept_apart() -> None:
    x = rows(1)
    labelled = [HeldRows(x.clone(), torch.full((24,), label), None, (label,), 4) for label in range(2)]
    pool = RowPool(labelled, CPU)
    assert [pool.y[pool.numbers(held)].unique().tolist() for held in labelled] == [[0], [1]]


@pytest.mark.parametrize("other", [slice(0, 12), slice(0, 24, 2)], ids=["the first half", "every second row"])
def test_views_of_one_tensor_keep_their_own_rows(other: slice) -> None:
    x = rows(1)
    held = [HeldRows(view, None, None, (number,), 4) for number, view in enumerate((x[other], x))]
    pool = RowPool(held, CPU)
    for each in held:
        assert torch.equal(pool.x[pool.numbers(each)], each.x)


@pytest.mark.parametrize(
    "other", [torch.zeros(4, WIDTH + 1), torch.zeros(4, WIDTH, dtype=torch.uint8)], ids=["shape", "type"]
)
def test_rows_of_unlike_shape_or_type_are_refused(other: Tensor) -> None:
    held = [HeldRows(x, None, None, (), 4) for x in (rows(1), other)]
    with pytest.raises(FedmmError, match="must hold rows of the same shape and dtype"):
        RowPool(held, CPU)


def test_batches_of_unlike_sizes_are_refused() -> None:
    clients = [Site(9, 9, 1).client(1, 0, size, (numbered(1, 0), torch.zeros(1))) for size in (4, 5)]
    with pytest.raises(FedmmError, match="must have the same batch size"):
        RoundSampler(clients, [1, 1], pooled(clients))


def test_rows_that_are_not_in_memory_are_refused() -> None:
    class Read(Dataset[Tensor]):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, number: int) -> Tensor:
            return rows(number, 1)[0]

    clients_data = take_stock([Client(source=(rows(1), torch.arange(24) % 3), target=Read(), name="site")], DANN(), 3)
    client = AdaptationClient(clients_data[0], flat_network(), DANN(), seed=0, batch_size=4)
    with pytest.raises(FedmmError, match="client 'site' reads its target rows from a Dataset"):
        _ = client.held


def test_a_network_with_dropout_says_so() -> None:
    assert stacked([Run(FedSGDA(), network=dropping)]).network.has_dropout
    assert not stacked([Run(FedSGDA())]).network.has_dropout
