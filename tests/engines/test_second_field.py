"""A second field in a local step: the same batch, and nothing else that a client would notice."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from problems import features, labels, mixed_client, network, rows
from torch import nn

import fedmm
from fedmm.core.federation import Terms
from fedmm.engines.worker import take_step
from fedmm.training.clients import take_stock
from fedmm.training.problem import AdaptationClient, adaptation_problem


def opened(client: fedmm.Client, *layers: nn.Module, **options: Any) -> Any:
    """A client's second round of a network with dropout, and its start."""
    clients_data = take_stock([client], fedmm.DANN(), 3)
    model = network(*layers, head_dropout=0.4, task_hidden=(5,), **options)
    problem, _ = adaptation_problem(clients_data, model, fedmm.DANN(), seed=0, batch_size=8)
    held = problem.clients[0]
    assert isinstance(held, AdaptationClient)
    return held.open_round(1, 4, 3, problem.statistics), problem.start


def normalised() -> tuple[nn.Module, ...]:
    return (nn.BatchNorm1d(4), *features())  # type: ignore[arg-type, misc]


def test_it_is_of_the_same_rows_and_the_same_dropout() -> None:
    local, z = opened(mixed_client())
    first = local.field(z, 0)
    assert torch.equal(local.field(z, 0), first)
    other, _ = opened(mixed_client())
    elsewhere = local.field(z + 0.1, 0)
    assert torch.equal(elsewhere, other.field(z + 0.1, 0))
    assert not torch.equal(local.field(z, 1), first)


def test_running_statistics_and_what_is_reported_are_those_of_the_first() -> None:
    once, z = opened(mixed_client(), *normalised())
    twice, _ = opened(mixed_client(), *normalised())
    for step in range(3):
        torch.testing.assert_close(twice.field(z, step), once.field(z, step), rtol=0, atol=0)
        twice.field(z + 1.0, step)
    expected, report = once.close(), twice.close()
    assert report.metrics == expected.metrics
    assert expected.statistics.keys() == report.statistics.keys() != set()
    for name, value in expected.statistics.items():
        assert torch.equal(report.statistics[name], value), name


def test_rows_of_a_dataset_are_read_once_a_step() -> None:
    class Drawing(torch.utils.data.Dataset[Any]):
        """Rows that differ each time they are read, as augmented ones do."""

        def __init__(self) -> None:
            self.read = 0

        def __len__(self) -> int:
            return 24

        def __getitem__(self, place: int) -> Any:
            self.read += 1
            return rows(1)[place] + self.read, int(labels(1)[place])

    data = Drawing()
    local, z = opened(fedmm.Client(source=data, target=rows(2), name="a"))
    before = data.read
    first = local.field(z, 0)
    after = data.read
    assert after > before
    assert torch.equal(local.field(z, 0), first)
    assert data.read == after


def test_take_step_looks_only_where_the_algorithm_does() -> None:
    asked = []

    @dataclasses.dataclass(frozen=True)
    class Watched:
        def field(self, z: torch.Tensor, step: int) -> torch.Tensor:
            asked.append((z.clone(), step))
            return 2.0 * z

        def close(self) -> Any:
            raise AssertionError

    z = torch.ones(2)
    c = fedmm.Coefficients(lr=torch.tensor(0.25))
    after, _ = take_step(fedmm.FedAvgGDA(), Watched(), 4, z, {"z": z}, {}, c)
    assert [(point.tolist(), step) for point, step in asked] == [([1.0, 1.0], 4)]
    assert after.tolist() == [0.5, 0.5]
    asked.clear()
    after, _ = take_step(fedmm.Extragradient(), Watched(), 4, z, {"z": z}, {}, c)
    assert [(point.tolist(), step) for point, step in asked] == [([1.0, 1.0], 4), ([0.5, 0.5], 4)]
    assert after.tolist() == [0.75, 0.75]


def test_an_algorithm_without_a_step_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Nothing(fedmm.Algorithm):
        pass

    with pytest.raises(fedmm.FedmmError, match="Nothing needs a local_step, or a step"):
        Nothing()


def test_an_algorithm_that_looks_nowhere_is_refused() -> None:
    @dataclasses.dataclass(frozen=True)
    class Staring(fedmm.FedAvgGDA):
        looks = True

    with pytest.raises(fedmm.FedmmError, match="Staring sets looks, so it must define look"):
        Staring()


def test_a_step_may_not_send_its_own_point_instead_of_z_with_noise() -> None:
    @dataclasses.dataclass(frozen=True)
    class Telling(fedmm.Extragradient):
        def finish(self, z: Any, sent: Any, client: Any, c: Any) -> Any:
            return {"z": z + 0.0}, client

    zero, terms = torch.zeros((), dtype=torch.float64), Terms(transmission=fedmm.GaussianUpdate())
    with pytest.raises(fedmm.FedmmError, match="updates cannot carry noise"):
        fedmm.solve([lambda x, y: x - y], (zero, zero), Telling(), 1, terms=terms)
