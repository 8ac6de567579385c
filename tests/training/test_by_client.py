"""Drift and dual norms of single clients in the history, the same by every engine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from engines.batched.stacks import STACKS
from problems import adapt, source_client, target_client
from training.test_evaluators import probed

import fedmm
from fedmm.core.engine import RoundRecord
from fedmm.remote.messaging import Messaging
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.history import MOST_NAMED, History, client_columns


def of_clients(row: Any) -> dict[str, float]:
    return {name: value for name, value in row.items() if "." in name}


@pytest.mark.parametrize("name", ["mixed", "bounded", "half of the clients"])
def test_both_engines_tell_of_each_client_the_same(name: str) -> None:
    runs = [replace(run, rounds=3) for run in STACKS[name]]
    stack = StackRun(
        [probed(run, terms=run.terms) for run in runs],
        "fp32",
        StackSettings(),
    )
    stack.run(3, 2)
    for replica, run in enumerate(runs):
        reference, _ = probed(run, terms=run.terms).run()
        for row, other in zip(stack.histories[replica], reference.history, strict=True):
            assert of_clients(row) == pytest.approx(of_clients(other), rel=1e-9, abs=1e-9)
            assert bool(of_clients(row)) == (row["round"] > 1)


def test_the_means_are_those_of_the_clients() -> None:
    model = adapt([source_client(), target_client(), target_client("more", seed=5)], rounds=3)
    for row in model.history:
        drifts = [row[f"drift.{name}"] for name in ("more", "source", "target")]
        duals = [row[f"dual_norm.{name}"] for name in ("more", "source", "target")]
        assert row["drift"] == pytest.approx(sum(drifts) / 3)
        assert row["dual_norm"] == pytest.approx((sum(dual**2 for dual in duals) / 3) ** 0.5)
    last = {name: float(own["dual"].norm()) for name, own in model.state.clients.items()}
    assert last == pytest.approx({name: model.history[-1][f"dual_norm.{name}"] for name in last})


def test_clients_that_are_elsewhere_are_told_of_too() -> None:
    run = STACKS["mixed"][0]
    adaptation = probed(run)
    engine = Messaging(adaptation.problem, adaptation.algorithm, adaptation.rounds, adaptation.terms)
    _, record = engine.run_round(engine.start())
    _, reference = adaptation.engine.run_round(adaptation.engine.start())
    assert record.by_client == reference.by_client
    assert set(record.by_client["drift"]) == {client.name for client in adaptation.problem.clients}


def test_an_algorithm_without_duals_has_none_of_a_client() -> None:
    row = adapt(algorithm=fedmm.FedAvgGDA(local_steps=2)).history[-1]
    assert set(of_clients(row)) == {"drift.source", "drift.target"}


def test_a_client_that_was_not_counted_has_no_drift_but_a_dual() -> None:
    clients = [source_client(), target_client(), target_client("more", seed=5)]
    model = adapt(clients, terms=fedmm.Terms(participation=0.34), rounds=3)
    for row in model.history:
        assert len([name for name in of_clients(row) if name.startswith("drift.")]) == row["clients"] < 3
        assert len([name for name in of_clients(row) if name.startswith("dual_norm.")]) == 3


def test_nothing_is_told_of_a_client_whose_updates_carry_noise() -> None:
    pytest.importorskip("dp_accounting")
    noise = fedmm.GaussianUpdate()
    row = adapt(terms=fedmm.Terms(transmission=noise), probe_rows=0).history[-1]
    assert not of_clients(row)


def test_of_many_clients_the_spread_is_told() -> None:
    names = [f"c{number}" for number in range(MOST_NAMED + 1)]
    columns = client_columns({"drift": dict(zip(names, map(float, range(51)), strict=True))})
    assert columns == {"drift.min": 0, "drift.q25": 12.5, "drift.median": 25, "drift.q75": 37.5, "drift.max": 50}
    assert len(client_columns({"drift": dict.fromkeys(names[:50], 1.0)})) == MOST_NAMED


def test_the_columns_of_single_clients_are_not_listed() -> None:
    history = History()
    record = RoundRecord(1, 0.0, 0.0, 0.0, 0, 0, 0.0, by_client={"drift": {"a": 1.0}})
    assert "drift.a" in history.append(record, {}, by_client=True)
    assert "drift.a" not in repr(history)
    assert "drift.a" not in history.append(record, {})
    assert torch.tensor(history["drift.a"][:1]).tolist() == [1.0]
