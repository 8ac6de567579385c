"""How far a candidate's predictions on the clients' target rows agree with those of the rows nearest to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from fedmm.config.schema import Experiment
from fedmm.core.signals.agreement import count_pairs, find_neighbours, kappa
from fedmm.models.network import Network
from fedmm.runs.build import DataCache
from fedmm.runs.run_folder import MODEL
from fedmm.training.predictor import rebuild_model

NEIGHBOURS = "neighbour_agreement"
"""Cohen's kappa; higher is better."""
_NEAREST = 5
_MOST_ROWS = 1000
"""Of the target's training rows, over all clients."""

Agreement = dict[str, dict[str, float]]
"""By candidate, by name."""


def measure_agreement(
    folder: Path, names: Mapping[str, Sequence[str]], candidates: Mapping[str, Experiment], cache: DataCache
) -> Agreement:
    """Of all candidates whose runs left models.

    ``neighbour_agreement``: of a row's prediction and those of the five nearest rows of the same client, the mean over
    seeds. It is a function of classes x classes counts that a client could send.

    names: the folders of each candidate's runs, one a seed. No label of the target is looked at. Where the rows are
    elsewhere, nothing is measured.
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
    """Evenly spread target rows of every client that has two, and the nearest rows of each, by number."""
    pair = experiment.partition.seen(cache.pair(experiment, torch.device("cpu")))
    shares = [share.target for share in experiment.partition.split(pair, experiment.run.seed) if len(share.target) > 1]
    most = max(2, _MOST_ROWS // max(1, len(shares)))
    held = [pair.target.x[rows[_spread(len(rows), most)]] for rows in shares]
    return held, [find_neighbours(x, _NEAREST) for x in held]


def _spread(count: int, most: int) -> Tensor:
    return torch.linspace(0, count - 1, min(count, most), dtype=torch.float64).round().long()


def _predict(path: Path, candidate: Experiment, held: Sequence[Tensor]) -> tuple[list[Tensor], int]:
    """The predicted classes of every client's rows, and how many classes there are."""
    model = candidate.model.untrained()

    def build(shape: tuple[int, ...], classes: int) -> Network:
        return model.build(shape, classes, candidate.run.seed)

    predictor = rebuild_model(path, build)
    with torch.no_grad():
        return [predictor.predict_proba(x).argmax(dim=-1) for x in held], predictor.classes


def agreement_of(seeds: Sequence[Sequence[Tensor]], neighbours: Sequence[Tensor], classes: int) -> dict[str, float]:
    """The agreement of one candidate. seeds: of each, the predicted classes of every client's rows."""

    def near(predicted: Sequence[Tensor]) -> float:
        counts = [
            count_pairs(y.repeat_interleave(index.shape[1]), y[index].flatten(), classes)
            for y, index in zip(predicted, neighbours, strict=True)
        ]
        return kappa(torch.stack(counts).sum(0)) if counts else 0.0

    return {NEIGHBOURS: fmean(near(predicted) for predicted in seeds)}
