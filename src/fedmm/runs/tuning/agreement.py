"""Measure how far candidates' predictions on the clients' target rows agree, between seeds and between near rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.core.signals.agreement import count_pairs, find_neighbours, kappa
from fedmm.models.network import Network
from fedmm.runs.build import DataCache
from fedmm.runs.run_folder import MODEL
from fedmm.runs.tuning.ranking import NEIGHBOURS, SEEDS
from fedmm.training.predictor import rebuild_model

_NEAREST = 5
_MOST_ROWS = 1000
"""The most target training rows that are predicted, over all clients."""

Agreement = dict[str, dict[str, float]]
"""By candidate, the agreements by name."""


def measure_agreement(
    folder: Path, names: Mapping[str, Sequence[str]], candidates: Mapping[str, Experiment], cache: DataCache
) -> Agreement:
    """Measure Cohen's kappa between predictions, for every candidate whose runs left models.

    ``seed_agreement``: between two seeds, averaged over all pairs; left out if there is only one seed.
    ``neighbour_agreement``: between a row and the five nearest rows of the same client, averaged over seeds. Both are
    functions of classes x classes counts that a client could send.

    names: the folders of each candidate's runs, one per seed. No target labels are used. If the rows are elsewhere,
    nothing is measured.
    """
    if not len(cache.pair(next(iter(candidates.values())), torch.device("cpu")).target.x):
        return {}
    held, neighbours = target_rows(next(iter(candidates.values())), cache)
    found: Agreement = {}
    for label, own in names.items():
        if all((folder / name / MODEL).exists() for name in own):
            said = [_predict(folder / name / MODEL, candidates[label], held) for name in own]
            found[label] = agreement_of([each for each, _ in said], neighbours, said[0][1])
    return found


def target_rows(experiment: Experiment, cache: DataCache) -> tuple[list[Tensor], list[Tensor]]:
    """Return evenly spread target rows of every client that has at least two, and the indices of each row's nearest."""
    pair = experiment.partition.seen(cache.pair(experiment, torch.device("cpu")))
    shares = [share.target for share in experiment.partition.split(pair, experiment.run.seed) if len(share.target) > 1]
    most = max(2, _MOST_ROWS // max(1, len(shares)))
    held = [pair.target.x[rows[_spread(len(rows), most)]] for rows in shares]
    return held, [find_neighbours(x, _NEAREST) for x in held]


def _spread(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def _predict(path: Path, candidate: Experiment, held: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """Return the predicted classes of every client's rows, and the number of classes."""
    model = candidate.model.untrained()

    def build(shape: tuple[int, ...], classes: int) -> Network:
        return model.build(shape, classes, candidate.run.seed)

    predictor = rebuild_model(path, build)
    with torch.no_grad():
        return [predictor.predict_proba(x).argmax(dim=-1) for x in held], predictor.classes


def agreement_of(seeds: Sequence[Sequence[Tensor]], neighbours: Sequence[Tensor], classes: int) -> dict[str, float]:
    """Return the agreement of one candidate. seeds: for each, the predicted classes of every client's rows."""

    def pairs(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
        counted = [count_pairs(a, b, classes) for a, b in zip(first, second, strict=True)]
        return kappa(torch.stack(counted).sum(0)) if counted else 0.0

    found = {}
    if len(seeds) > 1:
        found[SEEDS] = fmean(pairs(a, b) for a, b in combinations(seeds, 2))
    near = [[y[index].flatten() for y, index in zip(own, neighbours, strict=True)] for own in seeds]
    itself = [[y.repeat_interleave(i.shape[1]) for y, i in zip(own, neighbours, strict=True)] for own in seeds]
    return found | {NEIGHBOURS: fmean(pairs(a, b) for a, b in zip(itself, near, strict=True))}
