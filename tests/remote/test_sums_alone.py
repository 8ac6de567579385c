"""What a server reads of single updates, and what it would still learn if it were shown their sum alone.

docs/secure_aggregation.md stands on these facts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from problems import (
    FLOAT64,
    generator,
    network,
    played,
    random_game,
    source_client,
    target_client,
    train_options,
    with_options,
)
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, Terms
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.algorithm import Algorithm, State
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.engines.messages import Invitation, Update
from fedmm.engines.server import Server
from fedmm.remote.engine import Host
from fedmm.remote.messaging import Exchange, Messaging
from fedmm.training.adaptation import Adaptation

CLIENTS = 5
UNREPORTED = {name: kind for name, kind in ALGORITHMS.items() if not kind.reports}
"""Those whose clients send nothing but vectors; masks are refused with the others."""
each_algorithm = pytest.mark.parametrize("kind", UNREPORTED.values(), ids=UNREPORTED)


def server(kind: type[Algorithm], **terms: Any) -> Server:
    return Server(random_game(0, clients=CLIENTS).problem(), with_options(kind), 10, Terms(**terms))


def two_splits(names: list[str], like: State) -> tuple[dict[str, State], dict[str, State]]:
    """Two sets of uploads with the same sum, and nothing else in common."""

    def drawn(seed: int) -> dict[str, Tensor]:
        random = generator(seed)
        shape = (len(names), len(like["z"]))
        return {name: torch.randn(shape, generator=random, dtype=FLOAT64) for name in like}

    first, second = drawn(1), drawn(2)
    second = {name: each + (first[name] - each).mean(dim=0) for name, each in second.items()}
    return tuple(
        {who: {name: each[name][place] for name in like} for place, who in enumerate(names)} for each in (first, second)
    )  # type: ignore[return-value]


def settled(host: Server, uploads: dict[str, State]) -> tuple[FederatedState, RoundRecord]:
    """The state and the record of a round in which these were sent, by the server's own code."""
    state = host.start()
    by_messages = Host(host)
    invitations = {name: each for name, each in by_messages.invitations(state).items() if name in uploads}
    updates = [
        Update(each.round, name, uploads[name], session=each.session, base=each.counted)
        for name, each in invitations.items()
    ]
    return by_messages.settle_round(state, invitations, updates, began=0.0)


def outcomes(host: Server, present: int = CLIENTS) -> list[tuple[FederatedState, RoundRecord]]:
    like = host.inbox(host.invitations(host.start()))._like
    return [settled(host, each) for each in two_splits(host.names[:present], like)]


def same(one: State, other: State) -> bool:
    return all(torch.allclose(one[name], other[name], rtol=1e-9, atol=1e-9) for name in one)


@each_algorithm
@pytest.mark.parametrize("present", [2, CLIENTS])
def test_the_servers_next_state_is_a_function_of_the_sum_alone(kind: type[Algorithm], present: int) -> None:
    (one, _), (other, _) = outcomes(server(kind), present)
    assert same(one.server, other.server)
    assert not torch.allclose(one.z, server(kind).start().z)


@each_algorithm
@pytest.mark.parametrize("aggregation", [name for name, each in AGGREGATIONS.items() if each.robust])
def test_a_robust_centre_needs_the_updates_themselves(kind: type[Algorithm], aggregation: str) -> None:
    (one, _), (other, _) = outcomes(server(kind, aggregation=AGGREGATIONS[aggregation]()))
    assert not same(one.server, other.server)


@pytest.mark.parametrize("bound", ["max_update_norm", "max_update_ratio"])
def test_so_do_bounds_on_norms(bound: str) -> None:
    (one, first), (other, second) = outcomes(server(ALGORITHMS["fedavg_gda"], **{bound: 1.2}))
    assert {each.client for each in first.refused} != {each.client for each in second.refused}
    assert not same(one.server, other.server)


def test_so_do_the_sums_that_give_a_site_its_state_back() -> None:
    (one, _), (other, _) = outcomes(server(ALGORITHMS["fedmm"], restore=True))
    assert same(one.server, other.server)
    assert not any(same(one.totals[name], other.totals[name]) for name in one.totals)


def test_so_does_the_record_of_a_round() -> None:
    (_, one), (_, other) = outcomes(server(ALGORITHMS["fedmm"]))
    for what in ("drift", "consensus_gap"):
        assert getattr(one, what) != pytest.approx(getattr(other, what), rel=1e-3)
    assert one.by_client["drift"] != other.by_client["drift"]


# What a sum tells -----------------------------------------------------------------------------------------------------


class Overheard(Exchange):
    """Keeps what arrives. updates: by round and site, z_i - z_0."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []
        self.updates: list[dict[str, Tensor]] = []

    def invited(self, client: str, invitation: Invitation) -> bool:
        self.points.append(invitation.sent["z"])
        return True

    def arriving(self, t: int, answers: Sequence[Update]) -> Sequence[Update]:
        self.updates.append({each.client: each.vectors["z"] - self.points[-1] for each in answers})
        return answers


@pytest.mark.parametrize("name", ["fedavg_gda", "fedmm", "fedmm_smoothed"])
def test_with_one_labelled_site_the_sum_of_the_classifiers_updates_is_that_sites_own(name: str) -> None:
    """Only a site with labels moves the task head: masks hide nothing of it where there is one."""
    sites = [source_client(), *(target_client(f"target-{number}", seed=number) for number in range(2, 5))]
    algorithm = with_options(ALGORITHMS[name])
    options = train_options(FLOAT64, rounds=3, batch_size=8)
    problem = Adaptation(sites, network(), fedmm.DANN(), algorithm, options).problem
    heard = Overheard()
    list(played(Messaging(problem, algorithm, 3, exchange=heard), 3))
    head = problem.layout.join_all({"task_head": 1.0, "*": 0.0}).bool()
    for updates in heard.updates:
        total = sum(updates.values())
        assert isinstance(total, Tensor)
        assert torch.equal(total[head], updates["source"][head])
        assert float(updates["source"][head].norm()) > 0
        assert not torch.allclose(total[~head], updates["source"][~head])


# Libraries ------------------------------------------------------------------------------------------------------------


def test_flowers_own_masks_come_of_32_bits() -> None:
    """So they can be tried out one by one. When this fails, look again whether Flower's protocol can be used."""
    utils = pytest.importorskip("flwr.common.secure_aggregation.secaggplus_utils")
    one, other = bytes(range(32)), bytes([*range(4, 8), *range(4), *range(8, 32)])
    assert one != other
    first, second = (utils.pseudo_rand_gen(seed, 1 << 32, [(100,)])[0] for seed in (one, other))
    assert np.array_equal(first, second)
