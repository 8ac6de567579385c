"""The guard: what it notices, where it goes back to, and that a run that was guarded can go on from a checkpoint."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmm.algorithms import FedAvgGDA, FedMM
from fedmm.config.schema import Experiment, experiment
from fedmm.core.engine import FederatedState
from fedmm.core.errors import Diverged, FedmmError
from fedmm.core.federation import Terms
from fedmm.core.layout import Layout
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import DivergedRun, run_experiment
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.guard import Guard, Watch, calmer
from fedmm.training.history import History

ROUNDS = 60
ENGINES = ("in_process", "batched")
CACHE = DataCache()


def wild(engine: str = "in_process", *, lr: float = 2.0, **guard: Any) -> Experiment:
    """FedMM with steps so long that a round explodes within twenty with any seed; none does once they are calmer."""
    return experiment(
        {
            "run": {
                "rounds": ROUNDS, "seed": 1, "batch_size": 32, "probe_rows": 0, "evaluate_every": 10, "threads": 1,
                "dtype": "float64", "engine": engine,
            },
            "data": {"name": "digits"},
            "model": {"name": "mlp", "hidden": [32], "adversary_hidden": [16]},
            "algorithm": {
                "name": "fedmm", "lr_min": lr, "lr_max": lr, "penalty_min": 0.5, "penalty_max": 0.5, "local_steps": 5
            },
            "guard": {"window": 10, "look_back": 5, "calm": 0.05, **guard},
        }
    )  # fmt: skip


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_rollback_goes_to_a_good_state_with_calmer_steps_and_is_told_everywhere(engine: str, tmp_path: Path) -> None:
    said: list[str] = []
    summary = run_experiment(wild(engine, policy="rollback"), tmp_path / "run", progress=False, say=said.append)
    (event,) = summary["guard"]
    assert summary["status"] == "completed"
    assert summary["rounds"] == ROUNDS
    assert event["policy"] == "rollback"
    assert event["round"] - 2 * 5 <= event["to_round"] < event["round"]
    assert (event["lr_times"], event["penalty_times"]) == (0.05, 2.0)
    written = rows(tmp_path / "run")
    assert [row["round"] for row in written] == list(range(1, ROUNDS + 1))
    assert {row["round"]: row["rolled_back_to"] for row in written if "rolled_back_to" in row} == {
        event["round"]: event["to_round"]
    }
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["guard"] == [event]
    assert any(f"went back to round {event['to_round']}" in line for line in said)


def test_both_engines_notice_the_same_and_end_at_the_same_model(tmp_path: Path) -> None:
    each = wild(policy="rollback")
    adapted, _ = prepare(each, CACHE).run()
    stack = StackRun([prepare(each, CACHE)], "fp32", StackSettings())
    stack.run(ROUNDS, 10)
    together, error = stack.adapted(0, "completed")
    assert error is None
    assert adapted.history.events
    for ours, theirs in zip(adapted.history.events, together.history.events, strict=True):
        assert {**ours, "reason": ""} == {**theirs, "reason": ""}
    torch.testing.assert_close(adapted.state.z, together.state.z, rtol=1e-6, atol=1e-8)


def test_in_a_stack_each_run_goes_back_by_itself(tmp_path: Path) -> None:
    calm, hurried = wild(policy="rollback", lr=0.02), wild(policy="rollback")
    unguarded = wild(policy="off")
    stack = StackRun([prepare(e, CACHE) for e in (calm, hurried, unguarded)], "fp32", StackSettings())
    stack.run(ROUNDS, 10)
    assert [len(history.events) for history in stack.histories] == [0, 1, 0]
    alone = StackRun([prepare(calm, CACHE)], "fp32", StackSettings())
    alone.run(ROUNDS, 10)
    torch.testing.assert_close(stack.engine.z[0], alone.engine.z[0], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
def test_to_stop_keeps_the_round_before_and_says_what_exploded(engine: str, tmp_path: Path) -> None:
    with pytest.raises(DivergedRun, match=r"is [\d.e+]+, above [\d.e+]+ in round \d+: use smaller") as stopped:
        run_experiment(wild(engine, policy="stop"), tmp_path / "run", progress=False)
    summary = stopped.value.summary
    (event,) = summary["guard"]
    assert event["policy"] == "stop"
    assert summary["rounds"] == event["round"] - 1
    assert rows(tmp_path / "run")[-1] == {"round": event["round"], "stopped": 1}


@pytest.mark.parametrize("engine", ENGINES)
def test_after_so_many_rollbacks_a_run_is_ended_after_all(engine: str, tmp_path: Path) -> None:
    with pytest.raises(DivergedRun) as stopped:
        run_experiment(wild(engine, policy="rollback", most=0), tmp_path / "run", progress=False)
    assert [event["policy"] for event in stopped.value.summary["guard"]] == ["stop"]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_that_is_not_finite_is_gone_back_from(engine: str, tmp_path: Path) -> None:
    each = wild(engine, policy="rollback", lr=1e80, calm=1e-6, most=20)
    each = replace(each, run=replace(each.run, rounds=20))
    summary = run_experiment(each, tmp_path / "run", progress=False)
    assert summary["rounds"] == 20
    assert all("non-finite" in event["reason"] for event in summary["guard"][:5])
    assert len(summary["guard"]) > 5
    first = rows(tmp_path / "run")[summary["guard"][0]["round"] - 1]
    assert first["drift"] is None or first["drift"] > 1e60


@pytest.mark.parametrize("engine", ENGINES)
def test_a_guarded_run_goes_on_from_a_checkpoint_to_the_same_bits(engine: str, tmp_path: Path) -> None:
    each = wild(engine, policy="rollback")
    each = replace(each, run=replace(each.run, checkpoint_every=1, keep_checkpoints=1000))
    run_experiment(each, tmp_path / "whole", progress=False)
    event = json.loads((tmp_path / "whole" / "summary.json").read_text())["guard"][0]
    for last in (event["to_round"] + 1, event["round"] - 1, event["round"], event["round"] + 3):
        folder = tmp_path / f"cut-{last}"
        shutil.copytree(tmp_path / "whole", folder)
        for path in (folder / "checkpoints").glob("round-*"):
            if int(path.name[6:14]) > last:
                path.unlink()
        (folder / "summary.json").unlink()
        run_experiment(each, folder, progress=False, resume=True)
        for name in ("model.safetensors",):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), last
        assert json.loads((folder / "summary.json").read_text())["guard"] == [event]


def test_skipping_clients_is_a_matter_of_terms() -> None:
    guard = Guard("skip_client", explode=7.0)
    assert guard.terms(Terms()) == Terms(on_bad_update="skip", max_update_ratio=7.0)
    assert guard.terms(Terms(max_update_ratio=3.0)).max_update_ratio == 3.0
    assert Guard("rollback").terms(Terms()) == Terms()


def test_calmer_steps_and_larger_penalties() -> None:
    rule = calmer(FedMM(lr_min={"features": 0.1, "task": 0.2}, lr_max=0.4, penalty_min=1.0, penalty_max=2.0), 0.5, 3.0)
    assert rule.lr_min == {"features": 0.05, "task": 0.1}
    assert (rule.lr_max, rule.penalty_min, rule.penalty_max) == (0.2, 3.0, 6.0)
    assert calmer(FedAvgGDA(lr_min=1.0, lr_max=1.0), 0.5, 3.0) == FedAvgGDA(lr_min=0.5, lr_max=0.5)


def test_a_client_that_lost_its_state_gets_the_same_dual_back_under_other_penalties() -> None:
    rule = FedMM(penalty_min=0.5, penalty_max=2.0)
    layout = Layout({"w": (2,)}, {"p": (2,)}, dtype=torch.float64)
    z = torch.zeros(layout.size, dtype=torch.float64)
    totals = {"a": {"z": torch.tensor([1.0, -2.0, 3.0, 0.5], dtype=torch.float64)}}
    good = FederatedState(5, rule.init_server(z), {"a": rule.init_client(z)}, totals=totals)
    history = History()
    watch = Watch(Guard("rollback", stiffen=3.0), rule, good, history)
    before = rule.restored_client({"z": z}, good.totals["a"], rule.coefficients(layout, 0, 1))
    for round_ in (6, 7):
        back = watch.back(round_, Diverged("", round_, "the test says so"))
        now = watch.algorithm.restored_client({"z": z}, back.totals["a"], watch.algorithm.coefficients(layout, 0, 1))
        torch.testing.assert_close(now["dual"], before["dual"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"policy": "pray"}, "policy must be one of"),
        ({"explode": 1.0}, "explode must be a number above 1"),
        ({"window": 1}, "window must be at least 2"),
        ({"look_back": 0}, "look_back must be at least 1"),
        ({"calm": 0.0}, "calm must"),
        ({"stiffen": 0.5}, "stiffen must"),
        ({"most": -1}, "most must be at least 0"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        wild(**options)
