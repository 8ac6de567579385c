"""Show runs live in TensorBoard or MLflow, through their own libraries. Training never depends on them."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from fedmm.config.schema import Experiment
from fedmm.config.toml import write_toml
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import write_json
from fedmm.runs.run_folder import EXPERIMENT, MODEL, SUMMARY
from fedmm.training.callbacks import Callback
from fedmm.training.history import Row

_LOG = logging.getLogger(__name__)
_ARTIFACTS = (
    MODEL, "model-best.safetensors", "model-oracle-best.safetensors", EXPERIMENT, SUMMARY,
    "report.html", "report.pdf", "report.png",
)  # fmt: skip
_ENDED = {"completed": "FINISHED", "interrupted": "KILLED", "diverged": "FAILED"}


class Tracker(Protocol):
    """Shows a run while it trains."""

    def round(self, number: int, values: Mapping[str, float]) -> None:
        """Show a finished round."""

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        """Show the summary and the files of the finished run."""

    def close(self) -> None:
        """Send what is left; nothing follows."""


class TensorBoardTracker:
    """Event files in ``RUN/tensorboard``."""

    def __init__(self, experiment: Experiment, folder: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 - an extra, and slow to import

        self._settings = flat_settings(experiment)
        self._writer: Any = SummaryWriter(log_dir=str(folder / "tensorboard"), purge_step=done + 1, flush_secs=5)
        if not done:
            words = "".join(f"    {line}\n" for line in write_toml(experiment.tables()).splitlines())
            self._writer.add_text("experiment", words, 0)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, number)

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        from torch.utils.tensorboard.summary import hparams  # noqa: PLC0415 - as above

        final = {f"final/{name}": value for name, value in scalars(summary).items()}
        for part in hparams(self._settings, final):  # type: ignore[no-untyped-call]
            self._writer.file_writer.add_summary(part)
        for name, value in final.items():
            self._writer.add_scalar(name, value, int(summary["rounds"]))

    def close(self) -> None:
        self._writer.close()


class MLflowTracker:
    """A run at MLFLOW_TRACKING_URI or, if not set, in ``RUN/mlruns``; ``RUN/mlflow.json`` identifies it on resuming."""

    _PARAMETERS_AT_ONCE, _METRICS_AT_ONCE, _SECONDS, _MARK = 100, 900, 1.0, "round"

    def __init__(self, experiment: Experiment, folder: Path, done: int) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "10")
        given = os.environ.get("MLFLOW_TRACKING_URI")
        if not given:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        from mlflow.entities import Metric, Param  # noqa: PLC0415 - an extra, and slow to import
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - as above

        self._metric = Metric
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        address = given or (folder / "mlruns").resolve().as_uri()
        self._client = MlflowClient(tracking_uri=address)
        known = _find_run(folder / "mlflow.json", address)
        self._run = known or self._new_run(experiment)
        self._last = self._last_round() if known else 0
        if known:
            self._client.update_run(self._run, status="RUNNING")
            return
        settings = [Param(name, str(value)[:500]) for name, value in flat_settings(experiment).items()]
        for at in range(0, len(settings), self._PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run, params=settings[at : at + self._PARAMETERS_AT_ONCE])
        write_json(folder / "mlflow.json", {"address": address, "run": self._run})

    def _new_run(self, experiment: Experiment) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "fedmm"
        found = self._client.get_experiment_by_name(name)
        number = found.experiment_id if found else self._client.create_experiment(name)
        tags = {"label": experiment.label, "seed": str(experiment.run.seed)}
        run = self._client.create_run(number, run_name=f"{experiment.label} seed {experiment.run.seed}", tags=tags)
        return str(run.info.run_id)

    def _last_round(self) -> int:
        """Return the last logged round: a run that resumes from an earlier checkpoint repeats rounds bit for bit."""
        return max((metric.step for metric in self._client.get_metric_history(self._run, self._MARK)), default=0)

    def round(self, number: int, values: Mapping[str, float]) -> None:
        if number <= self._last:
            return
        now = int(time.time() * 1000)
        marked = {**values, self._MARK: float(number)}  # last, so that a logged mark means a whole round
        self._waiting += [self._metric(name, value, now, number) for name, value in marked.items()]
        if time.monotonic() - self._sent >= self._SECONDS:
            self._send()

    def _send(self) -> None:
        waiting, self._waiting = self._waiting, []
        for at in range(0, len(waiting), self._METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=waiting[at : at + self._METRICS_AT_ONCE])
        self._sent = time.monotonic()

    def finish(self, summary: Mapping[str, Any], folder: Path) -> None:
        self._send()
        for name, value in scalars(summary).items():
            self._client.log_metric(self._run, f"final/{name}", value, step=int(summary["rounds"]))
        self._client.set_tag(self._run, "status", str(summary["status"]))
        for name in _ARTIFACTS:
            if (folder / name).exists():
                self._client.log_artifact(self._run, str(folder / name))
        self._client.set_terminated(self._run, status=_ENDED.get(str(summary["status"]), "FINISHED"))

    def close(self) -> None:
        self._send()


TRACKERS: dict[str, tuple[str, Callable[[Experiment, Path, int], Tracker]]] = {
    "tensorboard": ("tensorboard", TensorBoardTracker),
    "mlflow": ("mlflow", MLflowTracker),
}
"""By name, the required library, and the tracker."""


def require_trackers(names: Sequence[str]) -> None:
    """Refuse trackers whose libraries are missing."""
    for name in names:
        library = importlib.util.find_spec(TRACKERS[name][0])
        require(library is not None, f"tracking by {name} needs its library: pip install 'fedmm[track]'")


class Tracks(Callback):
    """The trackers of one run. One that fails during training is reported, and not used again."""

    def __init__(self, experiment: Experiment, folder: Path, done: int = 0) -> None:
        """``done``: the number of rounds that a resumed run has finished."""
        require_trackers(experiment.run.track)
        self._folder = folder
        self._trackers: dict[str, Tracker] = {}
        for name in dict.fromkeys(experiment.run.track):
            try:
                self._trackers[name] = TRACKERS[name][1](experiment, folder, done)
            except Exception as problem:
                raise FedmmError(f"tracking by {name} cannot begin: {_first_line(problem)}") from problem

    def wants_state(self, round_: int) -> bool:
        return False

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        if self._trackers:
            values = scalars({name: value for name, value in row.items() if name != "round"})
            self._each("a round", lambda tracker: tracker.round(int(row["round"] or 0), values))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Tell the trackers that the run has ended and its files are written."""
        self._each("the end of the run", lambda tracker: tracker.finish(summary, self._folder))

    def _each(self, what: str, do: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                do(tracker)
            except Exception as problem:
                del self._trackers[name]
                _LOG.warning(
                    "%s did not accept %s, and the run continues without it: %s", name, what, _first_line(problem)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *problem: object) -> None:
        self._each("its last rounds", lambda tracker: tracker.close())


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
    """Return all finite numbers of a table by name, those of nested tables as ``clients/site/drift``."""
    return dict(_scalars(values, ""))


def _scalars(values: Mapping[str, Any], before: str) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        path = before + re.sub(r"[^\w .:-]", "_", str(name))
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{path}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield path, float(value)


def flat_settings(experiment: Experiment) -> dict[str, str | int | float | bool]:
    """Return the configuration as one flat table, with keys such as ``algorithm.lr_min``."""
    return {
        f"{section}.{key}": value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)
        for section, table in experiment.tables().items()
        for key, value in table.items()
    }


def _find_run(path: Path, address: str) -> str | None:
    """Return the id under which an interrupted run was tracked at the same address; None if there is none."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        return str(known["run"]) if known["address"] == address else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _first_line(problem: Exception) -> str:
    return next(iter(str(problem).splitlines()), "") or type(problem).__name__
