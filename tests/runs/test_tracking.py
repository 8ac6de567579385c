"""Runs shown live: what TensorBoard and MLflow read back is what the run measured, and training never depends on it."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, set_values
from fedmm.core.errors import FedmmError
from fedmm.runs import tracking
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment, run_stack
from fedmm.runs.tracking import Tracks, flat_settings, require_trackers, scalars
from fedmm.training.batched import StackSettings

MOONS = Path(__file__).parents[2] / "examples" / "moons.toml"
SMALL = [
    "run.rounds=4", "run.batch_size=8", "data.rows=40", "data.test_rows=20", "model.hidden=[8]",
    "model.adversary_hidden=[4]", "algorithm.local_steps=2",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What trackers set is forgotten after each test."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    for name in ("DISABLE_TELEMETRY", "HTTP_REQUEST_MAX_RETRIES", "HTTP_REQUEST_TIMEOUT", "ALLOW_FILE_STORE"):
        monkeypatch.setenv(f"MLFLOW_{name}", "")
        monkeypatch.delenv(f"MLFLOW_{name}")


def small(*settings: str) -> Experiment:
    return experiment(set_values(read_toml(MOONS), [*SMALL, *settings]))


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def tensorboard(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return events


def mlflow(folder: Path) -> tuple[Any, Any]:
    """MLflow's client, and the only run that it knows in a folder."""
    from mlflow.tracking import MlflowClient

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    client = MlflowClient(tracking_uri=(folder / "mlruns").resolve().as_uri())
    (run,) = client.search_runs([client.get_experiment_by_name("fedmm").experiment_id])
    return client, run


def interrupted(each: Experiment, folder: Path, after: int) -> None:
    def stop(row: Any) -> None:
        if row["round"] == after:
            raise KeyboardInterrupt

    run_experiment(each, folder, progress=False, on_round=stop)


def test_both_read_back_what_the_run_measured(tmp_path: Path) -> None:
    summary = run_experiment(small('run.track=["tensorboard", "mlflow"]'), tmp_path, progress=False)
    measured = rounds_of(tmp_path)
    events = tensorboard(tmp_path)
    accuracy = events.Scalars("target_accuracy")
    assert [each.step for each in accuracy] == [1, 2, 3, 4]
    assert [each.value for each in accuracy] == pytest.approx([row["target_accuracy"] for row in measured])
    assert events.Scalars("final/target_accuracy")[0].value == pytest.approx(summary["target_accuracy"])
    assert "_hparams_/session_start_info" in events.summary_metadata
    assert "experiment/text_summary" in events.Tags()["tensors"]

    client, run = mlflow(tmp_path)
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [each.step for each in losses] == [1, 2, 3, 4]
    assert [each.value for each in losses] == pytest.approx([row["loss"] for row in measured])
    assert run.data.params["algorithm.local_steps"] == "2"
    assert run.data.metrics["final/target_accuracy"] == pytest.approx(summary["target_accuracy"])
    assert run.info.status == "FINISHED"
    kept = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert kept == {"model.safetensors", "model-best.safetensors", "experiment.toml", "summary.json"}
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_resumed_run_goes_on_in_the_same_track_without_doubled_rounds(tmp_path: Path) -> None:
    """It stops after round 3 with a checkpoint of round 2, so that round 3 is run twice."""
    each = small('run.track=["tensorboard", "mlflow"]', "run.checkpoint_every=2", "run.checkpoint_seconds=0")
    interrupted(each, tmp_path, after=3)
    newest = sorted((tmp_path / "checkpoints").glob("round-*"))[-1]
    newest.unlink()
    run_experiment(each, tmp_path, progress=False, resume=True)
    assert [event.step for event in tensorboard(tmp_path).Scalars("loss")] == [1, 2, 3, 4]
    client, run = mlflow(tmp_path)
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "loss")] == [1, 2, 3, 4]
    assert run.info.status == "FINISHED"


def test_every_run_of_a_stack_is_tracked(tmp_path: Path) -> None:
    runs = [small('run.track=["tensorboard"]', f"run.seed={seed}") for seed in (0, 1)]
    folders, cache = [tmp_path / "0", tmp_path / "1"], DataCache()
    adaptations = [prepare(each, cache) for each in runs]
    run_stack(runs, adaptations, folders, cache, StackSettings())
    for folder in folders:
        assert [event.step for event in tensorboard(folder).Scalars("drift")] == [1, 2, 3, 4]


class Failing:
    """A tracker whose disk is full from some round on."""

    def __init__(self, each: Experiment, folder: Path, done: int) -> None:
        self.calls = 0

    def round(self, number: int, values: Any) -> None:
        self.calls += 1
        raise OSError(28, "No space left on device")

    def finish(self, summary: Any, folder: Path) -> None:
        raise AssertionError

    close = finish  # type: ignore[assignment]


def test_a_tracker_that_fails_is_told_of_once_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(tracking.TRACKERS, "tensorboard", ("tensorboard", Failing))
    with caplog.at_level(logging.WARNING):
        summary = run_experiment(small('run.track=["tensorboard"]'), tmp_path, progress=False)
    assert summary["status"] == "completed"
    (record,) = caplog.records
    assert "tensorboard did not accept a round, and the run continues without it" in record.message


def test_a_server_that_is_not_there_is_told_before_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(each: Experiment, folder: Path, done: int) -> Any:
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setitem(tracking.TRACKERS, "mlflow", ("mlflow", refused))
    with pytest.raises(FedmmError, match="tracking by mlflow cannot begin: nobody answers"):
        run_experiment(small('run.track=["mlflow"]'), tmp_path, progress=False)


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FedmmError, match=r"pip install 'fedmm\[track\]'"):
        require_trackers(["mlflow"])


def test_other_trackers_are_refused() -> None:
    with pytest.raises(FedmmError, match="track must be one of tensorboard, mlflow, not 'wandb'"):
        small('run.track=["wandb"]')


def test_numbers_in_tables_are_named_by_their_path() -> None:
    row = {"loss": 1, "absent": None, "bad": float("nan"), "clients": {"a/b": {"drift": 2.0}}, "on": True, "word": "x"}
    assert scalars(row) == {"loss": 1.0, "clients/a_b/drift": 2.0}


def test_settings_are_flat() -> None:
    settings = flat_settings(small())
    assert settings["model.hidden"] == "[8]"
    assert settings["run.rounds"] == 4


def test_a_run_without_trackers_opens_nothing(tmp_path: Path) -> None:
    with Tracks(small(), tmp_path) as tracks:
        tracks.after_round(None, {"round": 1})
    assert list(tmp_path.iterdir()) == []
