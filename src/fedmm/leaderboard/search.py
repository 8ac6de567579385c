"""Choosing a method's options: equally many candidates for all, and successive halving on the training signal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch

from fedmm.core.seeding import key, uniform
from fedmm.leaderboard.trials import SEARCH_SEED, Problem, Trace, Trial
from fedmm.runs.tuning.halving import plan_rungs

Options = dict[str, Any]
_ETA, _HALVINGS = 3, 2
"""Three rungs: each keeps the best third of the one before, and runs three times as long."""
_PLASTIC = (0.7548776662466927, 0.5698402909980532)
"""Steps of a low-discrepancy sequence in the unit square (Roberts's R2)."""
_RATIOS = (0.5, 5.0)
"""The smallest and largest lr_max / lr_min: the adversary is usually the faster one."""
_PENALTIES = (0.1, 0.3, 1.0, 3.0)
_SERVER_RATES = (0.5, 1.0, 1.5)
_STAGES = {"stage_decay": (1.5, 3.0), "stage_share": (0.15, 0.3)}
SPACE: dict[str, dict[str, tuple[Any, ...]]] = {
    "fedavg_gda": {"server_lr": _SERVER_RATES, "server_optimizer": ("none", "momentum")},
    "fedprox_gda": {"penalty": _PENALTIES, "server_lr": _SERVER_RATES},
    "fedmm": {"penalty": _PENALTIES},
    "fedmm_restrained": {"penalty": _PENALTIES},
    "fedmm_ascent": {"penalty": _PENALTIES, "server_lr_max": (0.5, 1.0, 1.75)},
    "fedmm_adaptive": {"penalty": _PENALTIES, "server_lr_max": (0.5, 1.75, 4.0)},
    "fedmm_smoothed": {"penalty": _PENALTIES, "smoothing_max": (0.1, 0.3, 1.0)},
    "fedmm_optimistic": {"penalty": _PENALTIES, "server_lr": (0.5, 1.0)},
    "scaffold_gda": {"server_lr": _SERVER_RATES},
    "fedgda_gt": {"server_lr": _SERVER_RATES},
    "extragradient": {"server_lr": _SERVER_RATES},
    "proximal_point": {"inner_steps": (2, 3, 5), "server_lr": _SERVER_RATES},
    "sgda_plus": {"snapshot_every": (1, 2, 5), "server_lr": _SERVER_RATES},
    "momentum_gda": {"momentum": (0.5, 0.9), "server_lr": _SERVER_RATES},
    "fedsgda_m": {"momentum": (0.5, 0.9, 0.99)},
    "fess_gda": {"smoothing_min": (0.1, 0.3, 1.0), "centre_rate": (0.1, 0.5)},
    "coda_plus": _STAGES,
    "codasca": _STAGES,
}
"""Values to try for each method, beside step sizes. ``penalty`` sets both sides; ``stage_share`` is of the rounds."""


def draw_candidates(problem: Problem, method: str, count: int, rounds: int) -> list[Options]:
    """Return the options to try; step sizes are the same for all methods. rounds: for options that are shares of it."""
    low, high = (math.log(rate) for rate in problem.rates)
    least, most = (math.log(ratio) for ratio in _RATIOS)
    found = []
    for number in range(count):
        first, second = ((0.5 + number * step) % 1.0 for step in _PLASTIC)
        lr_min = math.exp(low + first * (high - low))
        lr_max = lr_min * math.exp(least + second * (most - least))
        chosen = {name: _pick(values, method, name, number) for name, values in SPACE.get(method, {}).items()}
        if "penalty" in chosen:
            chosen["penalty_min"] = chosen["penalty_max"] = chosen.pop("penalty")
        if "stage_share" in chosen:
            chosen["stage_rounds"] = max(1, round(chosen.pop("stage_share") * rounds))
        found.append({"lr_min": float(f"{lr_min:.3g}"), "lr_max": float(f"{lr_max:.3g}"), **chosen})
    return found


def _pick(values: Sequence[Any], method: str, name: str, number: int) -> Any:
    """Pick a value so that every len(values) candidates have each value once, in random order."""
    lap, place = divmod(number, len(values))
    order = torch.argsort(uniform(key("leaderboard", method, name, lap), torch.arange(len(values))))
    return values[int(order[place])]


@dataclass(frozen=True)
class SearchResult:
    """The options that a search chose, their training signal, and the total rounds of all candidates.

    signal: None if every candidate of the last rung diverged.
    """

    options: Mapping[str, Any]
    signal: float | None
    rounds: int


def search(problem: Problem, method: str, candidates: Sequence[Options], rounds: int) -> SearchResult:
    """Run successive halving on the training signal, with a seed that no reported run uses."""
    left, best, spent = list(candidates), math.inf, 0
    for rung in plan_rungs(len(candidates), rounds, _HALVINGS, _ETA, seeds=1):
        trials = [Trial(method, options, SEARCH_SEED, rounds, rung.rounds) for options in left[: rung.candidates]]
        judged = [judge(trace) for trace in problem.search(trials)]
        order = sorted(range(len(trials)), key=lambda number: judged[number])
        left, best = [left[number] for number in order], judged[order[0]]
        spent += rung.rounds * len(trials)
    return SearchResult(left[0], best if math.isfinite(best) else None, spent)


def judge(trace: Trace) -> float:
    """Return the mean training signal of a run; infinite if it diverged."""
    mean = fmean(trace.signals) if trace.signals and not trace.diverged else math.inf
    return mean if math.isfinite(mean) else math.inf
