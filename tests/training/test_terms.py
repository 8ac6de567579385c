"""Terms from a file to a run's folder, in both engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import adapt, random_game, source_client, target_client

import fedmm
from fedmm import CoordinateMedian, FedAvgGDA, FedMM, FedmmError, Terms, solve
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import grid, groups
from fedmm.core.mechanisms import ClippedUpdate
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import RunFolder

TABLES: dict[str, dict[str, Any]] = {
    "run": {"rounds": 4, "batch_size": 8, "dtype": "float64", "label": "run"},
    "data": {"name": "moons", "rows": 60, "test_rows": 10},
    "partition": {"name": "source_target", "source_clients": 3, "target_clients": 3},
    "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [5]},
    "algorithm": {"name": "fedmm", "lr_min": 0.1, "lr_max": 0.1, "local_steps": 3},
}


def given(**changes: dict[str, Any]) -> Experiment:
    return experiment(
        {section: {**TABLES.get(section, {}), **changes.get(section, {})} for section in {**TABLES, **changes}}
    )


def test_a_file_says_on_what_terms_clients_take_part() -> None:
    run = {"participation": 0.5, "on_bad_update": "skip", "max_update_norm": 2.0, "max_update_ratio": 4.0}
    resolved = given(run=run, aggregation={"name": "median"}, transmission={"name": "clip", "norm": 0.5})
    assert resolved.terms == Terms(0.5, "skip", 2.0, 4.0, CoordinateMedian(), ClippedUpdate(0.5))
    assert given().terms == Terms()
    assert experiment(resolved.tables()) == resolved


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"run": {"participation": 0.0}}, "run.participation must be above 0"),
        ({"run": {"participation": 1.5}}, "run.participation must be between 0 and 1"),
        ({"run": {"max_update_norm": -1.0}}, "run.max_update_norm must be 0 or more"),
        ({"run": {"max_update_ratio": 0.5}}, "run.max_update_ratio must be above 1, or 0 for no bound"),
        ({"run": {"on_bad_update": "ignore"}}, "run.on_bad_update must be one of 'stop', 'skip'"),
        ({"aggregation": {"name": "meadian"}}, "unknown aggregation.name 'meadian'; did you mean 'median'?"),
        ({"aggregation": {"name": "trimmed_mean", "trim": 0.5}}, "aggregation.trim must be below 0.5"),
        ({"transmission": {"name": "clip", "norm": 0.0}}, "transmission.norm must be above 0"),
    ],
)
def test_terms_that_cannot_be_are_refused_by_their_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError) as refused:
        given(**changes)
    assert str(refused.value).startswith(message)


@pytest.mark.parametrize("what", [{"aggregation": "median"}, {"transmission": CoordinateMedian()}, {"restore": 1}])
def test_terms_of_the_wrong_kind_are_refused(what: dict[str, Any]) -> None:
    with pytest.raises(FedmmError, match=f"{next(iter(what))} must be"):
        Terms(**what)


def refused_in(folder: Path) -> list[dict[str, Any]]:
    path = folder / "refused.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_both_engines_write_down_whose_updates_they_refused_and_why(tmp_path: Path) -> None:
    bounded = {"max_update_norm": 0.06, "participation": 0.67}
    found, said = {}, []
    for engine in ("in_process", "batched"):
        resolved = given(run={**bounded, "engine": engine})
        summary = run_experiment(resolved, tmp_path / engine, progress=False, say=said.append)
        rows = [json.loads(line) for line in (tmp_path / engine / "rounds.jsonl").read_text().splitlines()]
        lines = refused_in(tmp_path / engine)
        assert [sum(line["round"] == row["round"] for line in lines) for row in rows] == [
            row["refused"] for row in rows
        ]
        assert [row["clients"] + row["refused"] for row in rows] == [4] * 4
        assert summary["refused"] == len(lines) > 0
        assert f"{len(lines)} updates were refused: {tmp_path / engine / 'refused.jsonl'} says whose, and why" in said
        found[engine] = sorted((line["round"], line["client"]) for line in lines)
        assert all("norm" in line["reason"] for line in lines)
    assert found["in_process"] == found["batched"]


def test_a_run_that_refuses_nothing_says_nothing_of_it(tmp_path: Path) -> None:
    said: list[str] = []
    assert run_experiment(given(), tmp_path / "run", progress=False, say=said.append)["refused"] == 0
    assert not refused_in(tmp_path / "run")
    assert not any("refused" in line for line in said)


def test_a_run_that_goes_on_forgets_what_was_refused_in_the_rounds_it_runs_again(tmp_path: Path) -> None:
    tables = given().tables()
    refusal = fedmm.engines.inbox.Refusal("source-1", "its 'z' is not finite")
    with RunFolder(tmp_path, tables) as files:
        for number in (1, 2, 3):
            files.refuse(number, [refusal])
    with (tmp_path / "refused.jsonl").open("a") as file:
        file.write('{"round": 3, "cli')  # torn
    with RunFolder(tmp_path, tables, [{"round": 1}, {"round": 2}]):
        pass
    assert [line["round"] for line in refused_in(tmp_path)] == [1, 2]
    with RunFolder(tmp_path, tables):
        pass
    assert refused_in(tmp_path) == []


def test_runs_on_unlike_terms_are_not_stacked_but_for_their_shares() -> None:
    sweep = {"run.participation": [0.5, 1.0], "run.max_update_norm": [0.0, 1.0]}
    experiments = grid({**TABLES, "sweep": sweep})
    cache = DataCache()
    stacks = groups(experiments, [prepare(each, cache) for each in experiments])
    bounds = [{experiments[member].run.max_update_norm for member in stack.members} for stack in stacks]
    assert sorted(map(sorted, bounds)) == [[0.0], [1.0]]
    assert [len(stack.members) for stack in stacks] == [2, 2]


def test_adapt_takes_terms() -> None:
    clients = [source_client("s1"), source_client("s2", 5), target_client("t1"), target_client("t2", 6)]
    plain, half, robust = (
        adapt(clients, terms=terms, rounds=4)
        for terms in (Terms(), Terms(participation=0.5), Terms(aggregation=CoordinateMedian()))
    )
    assert half.history["clients"] == [2] * 4
    assert plain.history["clients"] == robust.history["clients"] == [4] * 4
    assert half.history["bytes_up"] == [value // 2 for value in plain.history["bytes_up"]]
    assert not torch.equal(plain.state.z, half.state.z)
    # the median of two is their mean, and the domains are apart
    torch.testing.assert_close(robust.state.z, plain.state.z, rtol=1e-4, atol=1e-6)


def test_solve_takes_groups_for_a_robust_aggregation() -> None:
    game = random_game(0, clients=4)
    terms = Terms(aggregation=CoordinateMedian())
    pairs, one = (
        solve(game.clients, game.start, FedMM(), 20, terms=terms, groups=each) for each in (["a", "a", "b", "b"], None)
    )
    plain = solve(game.clients, game.start, FedMM(), 20)
    torch.testing.assert_close(pairs.omega, plain.omega, rtol=1e-9, atol=1e-11)
    assert not torch.allclose(one.omega, plain.omega, atol=1e-3)
    with pytest.raises(FedmmError, match="3 groups were given for 4 clients"):
        solve(game.clients, game.start, FedMM(), 1, groups=["a", "b", "c"])


def test_refusals_come_back_with_the_history() -> None:
    zero = torch.zeros((), dtype=torch.float64)
    functions = [lambda x, y: x - y, lambda x, y: 100.0 * x - y]
    solution = solve(functions, (zero, zero), FedAvgGDA(0.1, 0.1, 1), 2, terms=Terms(max_update_norm=1.0))
    assert solution.history["refused"] == [1, 1]
    ((client, reason),) = solution.history.refusals[2]
    assert client == "client-2"
    assert reason == "its update has norm 10, above the bound 1"
