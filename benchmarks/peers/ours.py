"""fedmm's methods on the MNIST AUC problem: the search for their options, and the reported runs.

All candidates of a method train as one stack of the batched engine, and so do its reported runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import fmean
from typing import Any

import torch
from auc import AucProblem, BinaryRows
from federated_minimax import BATCH, CLIENTS, ROUNDS
from torch import Tensor

from fedmm import ALGORITHMS, Terms
from fedmm.core.algorithm import Algorithm
from fedmm.core.compression import Encoding
from fedmm.engines.batched.clients import Replica
from fedmm.engines.batched.engine import Batched, Capture
from fedmm.engines.batched.tensors import METRICS

STEPS, EVALUATED = 12, 10
SEARCH_SEEDS, SEEDS = (1, 2), (11, 12, 13, 14, 15)

SCHEDULES = ("constant", "cosine_decay")
RATES = {"lr_min": (0.1, 0.3162, 1.0), "lr_max": (0.1, 0.3162), "lr_schedule": SCHEDULES}
PENALTIES = {"lr": (0.1, 0.3162, 1.0), "penalty": (0.03, 0.1, 0.3, 1.0)}
"""The grids that are searched, of twelve candidates each."""


@dataclass(frozen=True)
class Entry:
    """A method of fedmm and its search grid. clients: how many take part in a round."""

    algorithm: str
    clients: int = 6
    uploads: Encoding = "exact"
    fixed: dict[str, Any] = field(default_factory=lambda: {"local_steps": STEPS})
    grid: dict[str, tuple[Any, ...]] = field(default_factory=lambda: RATES)

    def candidates(self) -> list[dict[str, Any]]:
        return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]

    def make(self, options: dict[str, Any]) -> Algorithm:
        given = {**self.fixed, **options}
        for both in ("lr", "penalty"):
            if both in given:
                given[f"{both}_min"] = given[f"{both}_max"] = given.pop(both)
        return ALGORITHMS[self.algorithm](**given)


_STAGES = {"local_steps": STEPS, "stage_rounds": 333, "smoothing_min": 0.0}
"""As in the program's script: no pull, and stages of 4,000 steps."""
_COSINE = {"local_steps": STEPS, "lr_schedule": "cosine_decay"}
OURS = {
    entry.algorithm: entry
    for entry in (
        Entry("fedavg_gda"),
        Entry("fedmm", fixed=_COSINE, grid=PENALTIES),
        Entry("codasca", fixed=_STAGES),
        Entry("coda_plus", fixed=_STAGES),
        Entry("scaffold_gda"),
        Entry("sgda_plus"),
        Entry("momentum_gda"),
        Entry("fedsgda_m"),
        Entry("fedmm_ascent", fixed=_COSINE, grid=PENALTIES),
        Entry("fedmm_smoothed", fixed=_COSINE, grid=PENALTIES),
        Entry("proxskip_sgda", fixed={"mean_steps": STEPS}),
        Entry("extragradient"),
        Entry("fedgda_gt"),
    )
}


@dataclass(frozen=True)
class Setting:
    """The setting of all runs. capture: what the batched engine replays as CUDA graphs."""

    train: BinaryRows
    test: BinaryRows
    clients: int = CLIENTS
    rounds: int = ROUNDS
    capture: Capture = "none"

    @property
    def watched(self) -> BinaryRows:
        """Every tenth training row; candidates are judged on these."""
        return BinaryRows(self.train.x[::10], self.train.y[::10])

    def stack(self, entry: Entry, algorithms: Sequence[Algorithm], seeds: Sequence[int]) -> tuple[AucProblem, Batched]:
        """Return the first run's problem, and a stack of one run for each algorithm with its seed."""
        problems = {seed: AucProblem(self.train, self.clients, BATCH, seed) for seed in dict.fromkeys(seeds)}
        terms = Terms(participation=min(1.0, entry.clients / self.clients), uploads=entry.uploads)
        replicas = [
            Replica(problems[seed].federated, algorithm, self.rounds, terms)
            for algorithm, seed in zip(algorithms, seeds, strict=True)
        ]
        first = problems[seeds[0]]
        return first, Batched(replicas, first.network, capture=self.capture)


def search(entry: Entry, setting: Setting) -> list[dict[str, Any]]:
    """Run all candidates; return them, lowest training objective over the last quarter of the rounds first.

    A candidate's ``objective`` is the mean over the search seeds, or None if one of them diverged.
    """
    candidates = entry.candidates()
    pairs = [(options, seed) for options in candidates for seed in SEARCH_SEEDS]
    problem, engine = setting.stack(entry, [entry.make(options) for options, _ in pairs], [seed for _, seed in pairs])
    watched, seen = setting.watched, []

    def watch() -> None:
        if engine.round > 0.75 * setting.rounds:
            seen.append(torch.where(engine.alive, problem.objective(engine.models, watched), torch.inf))

    _play(engine, setting.rounds, watch)
    each = torch.stack(seen).mean(dim=0).nan_to_num(torch.inf).view(len(candidates), -1).mean(dim=1).tolist()
    found = [
        {"options": options, "objective": value if value < float("inf") else None}
        for options, value in zip(candidates, each, strict=True)
    ]
    return sorted(found, key=lambda candidate: or_worst(candidate["objective"]))


def or_worst(objective: float | None) -> float:
    """Return the objective, or infinity if the candidate diverged."""
    return float("inf") if objective is None else objective


def run_seeds(entry: Entry, options: dict[str, Any], setting: Setting, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Run every seed; return AUC every ten rounds, and the floats (four bytes each) that clients sent."""
    algorithm = entry.make(options)
    problem, engine = setting.stack(entry, [algorithm] * len(seeds), seeds)
    curves: list[tuple[int, list[float]]] = [(0, problem.auc(engine.models, setting.test))]
    measured = _play(
        engine, setting.rounds, lambda: curves.append((engine.round, problem.auc(engine.models, setting.test)))
    )
    counted = METRICS.index("in_step")
    done, runs = engine.rounds_done.tolist(), []
    for place, seed in enumerate(seeds):
        sent = [0.0]
        for t, measures in enumerate(measured):
            alive = t < done[place]
            sent.append(sent[-1] + alive * engine.traffic(place, t, int(measures[place][counted]))[0] / 4)
        auc = [(t, values[place]) for t, values in curves]
        so_far = [sent[t] for t, _ in auc]
        run = {"seed": seed, "rounds": int(done[place]), "floats": sent[-1], "auc": auc, "floats_so_far": so_far}
        runs.append(run)
    return runs


def _play(engine: Batched, rounds: int, look: Callable[[], None]) -> list[list[list[float]]]:
    """Run all rounds, calling ``look`` after every tenth and the last; return each round's metrics of each run."""
    measures: list[Tensor] = []
    for _ in range(rounds):
        measures.append(engine.advance())
        if engine.round % EVALUATED == 0 or engine.round == rounds:
            look()
    found: list[list[list[float]]] = torch.stack(measures).nan_to_num().tolist()
    return found


def seconds_a_round(entry: Entry, setting: Setting, rounds: int, repeats: int) -> list[float]:
    """Return seconds per round of one run without its first ten rounds, for each repeat."""
    found = []
    for repeat in range(repeats):
        _, engine = setting.stack(entry, [entry.make({"lr_min": 0.3162, "lr_max": 0.1})], [repeat])
        for _ in range(10):
            engine.advance().tolist()
        began = time.perf_counter()
        for _ in range(rounds):
            engine.advance()
        engine.models.tolist()
        found.append((time.perf_counter() - began) / rounds)
    return found


def mean_last_auc(runs: Sequence[dict[str, Any]]) -> float:
    return fmean(run["auc"][-1][1] for run in runs)
