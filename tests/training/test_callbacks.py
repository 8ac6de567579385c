"""Callbacks, the best model and early stopping among them: the same on both engines and after a crash."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from problems import adapt, labels, rows
from runs.saved import model_in
from runs.test_resume import rows_of, run_until, small

import fedmm
from fedmm import Callback, EarlyStopping, FedmmError
from fedmm.config.schema import Experiment
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment, run_stack
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.callbacks import BestModel, OnRound, Training
from fedmm.training.checkpoints import Checkpoints, newest_common
from fedmm.training.history import History

each_engine = pytest.mark.parametrize("engine", ["in_process", "batched"])


def told(values: list[float | None], **options: Any) -> EarlyStopping:
    history = [{"round": number, "source_risk": value} for number, value in enumerate(values, start=1)]
    stopping = EarlyStopping("source_risk", **options)
    stopping.begin(None, history)
    return stopping


@pytest.mark.parametrize(
    ("values", "options", "round_"),
    [
        ([5.0, 4.0, 3.0, 2.0, 1.0], {"patience": 1}, None),
        ([5.0, 4.0, 4.0, 4.0, 4.0], {"patience": 2}, 4),
        ([5.0, 4.0, 4.0, 4.0, 3.0], {"patience": 3}, None),
        ([5.0, 4.0, 4.0, 4.0, 4.0], {"patience": 2, "min_rounds": 5}, 5),
        ([5.0, 4.9, 4.8, 4.7, 4.6], {"patience": 2, "min_delta": 0.5}, 3),
        ([5.0, None, None, 5.0, 5.0], {"patience": 2}, 4),
        ([math.nan, math.nan, math.nan], {"patience": 3}, 3),
        ([math.nan, 1.0, math.nan], {"patience": 2}, None),
    ],
)
def test_patience_ends_so_many_rounds_after_the_best(
    values: list[float | None], options: dict[str, Any], round_: int | None
) -> None:
    stopped = told(values, **options).stopped
    assert (stopped and stopped["round"]) == round_


def test_the_reason_is_told_in_words() -> None:
    stopped = told([5.0, 4.0, 4.0, 4.5], patience=2).stopped
    assert stopped == {
        "round": 4,
        "by": "source_risk",
        "reason": "source_risk was 4 in round 2 and has not improved in the 2 rounds since",
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"best_by": "target_accuracy"}, "best_by = 'target_accuracy' would choose with target labels"),
        ({"stop_by": "target_accuracy"}, "stop_by = 'target_accuracy' would choose with target labels"),
        ({"best_by": "loss"}, "unknown best_by 'loss'"),
        ({"stop_by": "target_information", "patience": 0}, "patience must be at least 1"),
        ({"min_rounds": -1}, "min_rounds must be at least 0"),
        ({"min_delta": -0.1}, "min_delta must be 0 or more"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        small(run=options)


@pytest.mark.parametrize("option", ["best_by", "stop_by"])
def test_a_validator_that_the_run_does_not_measure_is_refused(option: str) -> None:
    with pytest.raises(
        FedmmError, match=f"{option} = 'dev_risk' is not measured in this run: it needs labelled source"
    ):
        prepare(small(run={option: "dev_risk"}), DataCache())
    prepare(small(run={"probe_rows": 0}), DataCache())  # the default is then none


@each_engine
def test_the_best_model_lies_beside_the_last_and_is_that_of_its_round(tmp_path: Path, engine: str) -> None:
    each = small(run={"engine": engine, "best_by": "target_entropy", "rounds": 8, "evaluate_every": 2})
    summary = run_experiment(each, tmp_path / "run", progress=False)
    found = {row["round"]: row["target_entropy"] for row in rows_of(tmp_path / "run") if row["round"] % 2 == 0}
    best = summary["best"]
    assert best["value"] == best["target_entropy"] == min(found.values()) == found[best["round"]]
    assert best["by"] == "target_entropy"
    state, _ = until(each, best["round"])
    saved = tmp_path / "until.safetensors"
    state.save(saved)
    assert model_in(tmp_path / "run" / best["model"]) == model_in(saved)
    assert summary["stopped_early"] is None


def until(each: Experiment, round_: int) -> Any:
    """The model after a round, by the same engine."""
    adaptation = prepare(each, DataCache())
    if each.run.engine == "in_process":
        return adaptation.run([OnRound(stop_after(round_))])
    stack = StackRun([adaptation], "fp32", StackSettings())
    stack.run(round_, 1)
    return stack.adapted(0, "completed")


def stop_after(round_: int) -> Any:
    def after(row: dict[str, Any]) -> None:
        if row["round"] == round_:
            raise KeyboardInterrupt

    return after


@each_engine
def test_what_target_labels_chose_is_called_oracle_in_every_place(tmp_path: Path, engine: str) -> None:
    each = small(run={"engine": engine, "best_by": "oracle_target_accuracy", "rounds": 3})
    summary = run_experiment(each, tmp_path / "run", progress=False)
    assert "best" not in summary
    assert summary["oracle_best"]["by"] == "oracle_target_accuracy"
    files = {path.name for path in (tmp_path / "run").rglob("*best*")}
    assert files == {"oracle-best.safetensors", "model-oracle-best.safetensors"}


def impatient(engine: str, **changes: Any) -> Experiment:
    options = {"stop_by": "source_accuracy", "patience": 2, "min_delta": 0.2, "min_rounds": 4}
    return small(run={"engine": engine, "rounds": 40, "best_by": "source_accuracy", **options, **changes})


@each_engine
def test_a_run_that_stops_early_is_completed_and_says_why(tmp_path: Path, engine: str) -> None:
    said: list[str] = []
    summary = run_experiment(impatient(engine), tmp_path / "run", progress=False, say=said.append)
    stopped = summary["stopped_early"]
    assert summary["status"] == "completed"
    assert 4 <= stopped["round"] == summary["rounds"] == len(rows_of(tmp_path / "run")) < 40
    assert f"stopped early in round {stopped['round']}: {stopped['reason']}" in said
    again: list[Any] = []
    same = run_experiment(impatient(engine), tmp_path / "run", progress=False, resume=True, on_round=again.append)
    assert (again, same["stopped_early"], same["status"]) == ([], stopped, "completed")


@each_engine
def test_an_early_end_is_the_same_after_a_crash(tmp_path: Path, engine: str) -> None:
    run_experiment(impatient(engine), tmp_path / "whole", progress=False)
    for last in (2, 4):
        run_until(impatient(engine), tmp_path / "broken", last, resume=True)
    run_experiment(impatient(engine), tmp_path / "broken", progress=False, resume=True)
    assert rows_of(tmp_path / "broken") == rows_of(tmp_path / "whole")
    for file in ("model.safetensors", "model-best.safetensors"):
        assert model_in(tmp_path / "broken" / file) == model_in(tmp_path / "whole" / file)
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("whole", "broken"))
    assert [one[key] for key in ("best", "stopped_early")] == [other[key] for key in ("best", "stopped_early")]


def test_a_replica_that_stops_early_stays_as_it_was_while_others_go_on(tmp_path: Path) -> None:
    """Patience 1, 3 and no end: each of the stack ends where it does alone, and a crash changes nothing."""
    chosen = [impatient("batched", patience=1), impatient("batched", patience=3), small(run={"rounds": 40})]
    cache = DataCache()

    def run(folder: Path, experiments: list[Experiment], last: int = 0, resume: bool = False) -> list[dict[str, Any]]:
        def end(row: dict[str, Any]) -> None:
            if last and row["round"] == last:
                raise StackEnded

        folders = [folder / str(number) for number in range(len(experiments))]
        for each in folders:
            each.mkdir(parents=True, exist_ok=True)
        prepared = [prepare(each, cache) for each in experiments]
        outcomes = run_stack(
            experiments, prepared, folders, cache, StackSettings(), [[OnRound(end)] for _ in experiments], resume=resume
        )
        assert all(error is None for _, error in outcomes)
        return [summary for summary, _ in outcomes]

    class StackEnded(Exception):  # noqa: N818 - what happens to the stack
        pass

    together = run(tmp_path / "together", chosen)
    assert [summary["status"] for summary in together] == ["completed"] * 3
    ends = [summary["rounds"] for summary in together]
    assert ends[0] < ends[1] < ends[2] == 40
    for crash in (ends[0] + 1, ends[1] + 1):
        with pytest.raises(StackEnded):
            run(tmp_path / "broken", chosen, crash, resume=True)
    run(tmp_path / "broken", chosen, resume=True)
    for number in range(3):
        whole, broken = tmp_path / "together" / str(number), tmp_path / "broken" / str(number)
        assert rows_of(broken) == rows_of(whole)
        assert model_in(broken) == model_in(whole)
        assert model_in(broken / "model-best.safetensors") == model_in(whole / "model-best.safetensors")
    alone = run(tmp_path / "alone", chosen[:2])
    assert [summary["rounds"] for summary in alone] == ends[:2]  # and the stack ends with its last replica


def test_adapt_stops_early_and_has_the_best_model(tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "source_validation": (rows(8), labels(8)),
        "best_by": "source_risk",
        "stopping": EarlyStopping("source_risk", patience=2, min_delta=10.0),
        "rounds": 30,
    }
    model = adapt(**given)
    assert model.status == "completed"
    assert model.stopped is not None
    assert model.stopped["round"] == len(model.history) == 3
    risks = model.history["source_risk"]
    assert model.best is not None
    assert (model.best.round, model.best.value) == (risks.index(min(risks)) + 1, min(risks))  # type: ignore[type-var]
    kept = adapt(**given, resume=tmp_path / "kept")
    again = adapt(**given, resume=tmp_path / "kept")
    for other in (kept, again):
        assert torch.equal(other.state.z, model.state.z)
        assert other.stopped == model.stopped
        assert other.best is not None
        assert torch.equal(other.best.predict_proba(rows(8)), model.best.predict_proba(rows(8)))
    with pytest.raises(FedmmError, match=r"stopping\.patience was 2, now 5"):
        adapt(
            **given | {"stopping": EarlyStopping("source_risk", patience=5, min_delta=10.0)}, resume=tmp_path / "kept"
        )


def test_of_equally_good_rounds_the_first_is_kept() -> None:
    model = BestModel("source_risk")
    for number, value in enumerate((3.0, 2.0, 2.0, math.nan), start=1):
        row = {"round": number, "source_risk": value}
        if model.wants(row):
            model.take(row, torch.zeros(1), {})
    assert model.best is not None
    assert model.best.round == 2


class Watching(Callback):
    """Notes what it is told, and ends the run after a round."""

    def __init__(self, last: int = 0) -> None:
        self.last = last
        self.told: list[tuple[str, Any]] = []

    def begin(self, state: Any, history: Any) -> None:
        self.told.append(("begin", len(history)))

    def columns(self, record: Any) -> dict[str, float]:
        return {"twice": 2.0 * record.round}

    def after_round(self, state: Any, row: Any) -> None:
        self.told.append(("round", row["round"]))
        assert state.round == row["round"]
        assert row["twice"] == 2 * row["round"]
        if row["round"] == self.last:
            self.stop(row["round"], "enough")

    def close(self, training: Any) -> None:
        self.told.append(("close", training and (training.status, training.state.round, training.stopped)))


@each_engine
def test_a_callback_is_told_of_every_round_and_may_end_the_run(tmp_path: Path, engine: str) -> None:
    watching = Watching(last=3)
    each = small(run={"engine": engine})
    summary = run_experiment(each, tmp_path / "run", progress=False, callbacks=[watching])
    stopped = {"round": 3, "by": "Watching", "reason": "enough"}
    rounds = [("round", number) for number in (1, 2, 3)]
    assert watching.told == [("begin", 0), *rounds, ("close", ("completed", 3, stopped))]
    assert (summary["rounds"], summary["stopped_early"]) == (3, stopped)
    assert [row["twice"] for row in rows_of(tmp_path / "run")] == [2, 4, 6]


@each_engine
def test_a_callback_is_closed_without_a_training_where_an_error_ends_the_run(tmp_path: Path, engine: str) -> None:
    watching = Watching()

    def fail(row: Any) -> None:
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run_experiment(
            small(run={"engine": engine}), tmp_path / "run", progress=False, callbacks=[watching, OnRound(fail)]
        )
    assert watching.told == [("begin", 0), ("round", 1), ("close", None)]


def test_adapt_takes_callbacks() -> None:
    watching = Watching(last=2)
    model = adapt(rounds=5, callbacks=[watching])
    assert model.stopped == {"round": 2, "by": "Watching", "reason": "enough"}
    assert model.history["twice"] == [2.0, 4.0]
    with pytest.raises(FedmmError, match=r"a callback must be a fedmm\.Callback, not"):
        adapt(rounds=1, callbacks=[print])


def test_a_callback_can_be_used_again() -> None:
    watching, stopping = Watching(last=2), EarlyStopping("source_risk", patience=1, min_delta=10.0)
    given: dict[str, Any] = {"rounds": 5, "source_validation": (rows(8), labels(8))}
    for callback, rounds in ((watching, 2), (stopping, 2)):
        for _ in range(2):
            assert len(adapt(**given, callbacks=[callback]).history) == rounds


def test_the_old_name_of_early_stopping_still_works() -> None:
    with pytest.warns(DeprecationWarning, match=r"fedmm\.Stopping is now fedmm\.EarlyStopping"):
        assert fedmm.Stopping("source_risk") == EarlyStopping("source_risk")  # type: ignore[attr-defined]


def test_checkpoints_of_one_program_are_tidied_together(tmp_path: Path) -> None:
    """A run that ends early keeps what the others may have to go back to, until they have newer ones."""
    state = adapt(rounds=1).state
    both = [Checkpoints(tmp_path / name, every=5, seconds=0.0, keep=1) for name in ("one", "other")]
    for each in both:
        each.together = both
        each.begin(state, History())
    for each in both:
        each.after_round(replace(state, round=5), {})
    both[1].close(Training(replace(state, round=7, offender="site"), History(), "diverged"))
    assert [each.rounds() for each in both] == [[5], [7, 5]]
    both[0].after_round(replace(state, round=10), {})
    assert [each.rounds() for each in both] == [[10], [7]]
    assert [state.round for state, _ in newest_common(both, torch.device("cpu"), print)] == [10, 7]
