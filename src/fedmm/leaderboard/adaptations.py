"""The leaderboard's domain adaptation problems: experiments, run as stacks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import torch

from fedmm.config.demos import DEMOS
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import groups
from fedmm.core.errors import require
from fedmm.core.options import DEFAULT_VALIDATOR
from fedmm.data.sources import NEEDED, sources
from fedmm.leaderboard.trials import Goal, Trace, Trial, count_gradients
from fedmm.models.devices import Precision
from fedmm.runs.build import DataCache, prepare
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.callbacks import Training
from fedmm.training.stack_settings import choose_settings

_TABLES: dict[str, dict[str, Any]] = {
    "turned_digits": {**DEMOS["digits"]["tables"], "objective": DEMOS["digits"]["objective"]},
    "mnist_m": {
        "run": {"batch_size": 64},
        "data": {"name": "mnist_m"},
        "partition": {"name": "source_target", "source_clients": 1, "target_clients": 1},
        "model": {"name": "paper_cnn", "centre": "batch_mean"},
        "objective": {"name": "dann", "nu": 1.0},
    },
}
_TITLES = {"turned_digits": "DANN on turned digits", "mnist_m": "DANN on MNIST-M"}
_TARGETS = {"turned_digits": 0.7, "mnist_m": 0.6}


@dataclass(frozen=True)
class AdaptationProblem:
    """An experiment with a source and a target client, scored by target accuracy; on a GPU in tf32.

    The search uses ``target_information`` on unlabelled target rows (higher is better), not the norm of the field,
    which is also small for a network that has stopped learning. name: a key of ``_TABLES``.
    """

    stacked: ClassVar[bool] = True

    name: str
    rounds: int
    device: str = "cpu"
    evaluate_every: int = 10

    @property
    def title(self) -> str:
        return _TITLES[self.name]

    @property
    def goal(self) -> Goal:
        return Goal("target accuracy on test rows", _TARGETS[self.name], higher=True)

    @property
    def rates(self) -> tuple[float, float]:
        return 0.003, 0.1

    def require_ready(self) -> None:
        if self.name in NEEDED:
            require(self.device != "cpu", f"{self.name} is for a GPU; pass --device cuda")
            for source in NEEDED[self.name]:
                sources()[source].folder(self.name)

    def search(self, trials: Sequence[Trial]) -> list[Trace]:
        every = max(trial.length for trial in trials)
        return [replace(_trace(*run), values=()) for run in self._train(trials, every)]

    def run(self, trials: Sequence[Trial]) -> list[Trace]:
        return [_trace(*run) for run in self._train(trials, self.evaluate_every)]

    def experiment(self, trial: Trial, every: int) -> Experiment:
        """Return the experiment of a trial, evaluated every ``every`` rounds."""
        tables: Mapping[str, Any] = _TABLES[self.name]
        run = {
            **tables["run"], "rounds": trial.rounds, "seed": trial.seed, "device": self.device, "evaluate_every": every,
        }  # fmt: skip
        return replace(experiment({**tables, "run": run}), algorithm=trial.algorithm)

    def _train(self, trials: Sequence[Trial], every: int) -> list[tuple[Trial, Training, int]]:
        experiments = [self.experiment(trial, every) for trial in trials]
        adaptations = [prepare(experiment, _data()) for experiment in experiments]
        on_gpu = torch.device(self.device).type == "cuda"
        precision: Precision = "tf32" if on_gpu else "fp32"
        found: dict[int, tuple[Trial, Training, int]] = {}
        for group in groups(experiments, adaptations):
            members = [adaptations[number] for number in group.members]
            settings = choose_settings(members, precision).settings if on_gpu else StackSettings()
            stacked = StackRun(members, precision, settings)
            status = stacked.run(trials[group.members[0]].length, every)
            if status == "interrupted":
                raise KeyboardInterrupt
            for replica, number in enumerate(group.members):
                clients = len(members[replica].problem.clients)
                found[number] = trials[number], stacked.training(replica, status), clients
        return [found[number] for number in range(len(trials))]


@cache
def _data() -> DataCache:
    return DataCache()


def _trace(trial: Trial, training: Training, clients: int) -> Trace:
    history = training.history
    signal = history.last(DEFAULT_VALIDATOR)
    return Trace(
        signals=[] if signal is None else [-signal],
        values=[math.nan if value is None else float(value) for value in history["target_accuracy"]],
        bytes_up=[int(value or 0) for value in history["bytes_up"]],
        gradients=count_gradients(trial.algorithm, clients, trial.seed, len(history)),
        diverged=training.error is not None,
    )
