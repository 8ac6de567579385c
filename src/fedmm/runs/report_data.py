"""Collect data for reports: features before and after training, predictions of a few rows, and scores of test rows."""

from __future__ import annotations

import json
import math

import torch
from torch import Tensor

from fedmm.core.seeding import key, permutation
from fedmm.core.signals.thresholds import Thresholds, count_groups
from fedmm.data.domains import OTHER_SITES, DomainPair, Labelled
from fedmm.data.partition import name_clients
from fedmm.training.adaptation import Adaptation, Adapted
from fedmm.training.predictor import Predictor

EXHIBITS = "exhibits.safetensors"
_MAP_ROWS, _MAP_AXES = 150, 50
"""The most rows of each domain on a map, and the most principal axes of their features."""
_SAMPLES, _SIDE, _COLUMNS, _TOP = 36, 64, 12, 3
"""The most rows shown, pixels per side of an image, numbers of any other row, and likeliest classes of each row."""
_MOST_CLASSES = 400


def exhibits(adaptation: Adaptation, adapted: Adapted, pair: DomainPair, keep_rows: bool = True) -> dict[str, Tensor]:
    """Return the data by name, without what cannot be computed; unknown labels are -1.

    client_sites: JSON as bytes, the site of each client by name, if clients are sites.
    tested_round: of the model that samples and scores are of, which is the best one if the run kept one that was
        chosen without target labels, else the last.
    map_domain (0 source, 1 target), map_label, map_predicted: ``[rows]``; map_before, map_after: ``[rows, axes]``.
    sample_x: bytes ``[k, C, H, W]`` or numbers ``[k, columns]`` of target rows, or source rows if there is no target;
    sample_label: ``[k]``; sample_class, sample_probability: the likeliest classes, ``[k, 3]``.

    For labelled test rows and that model, names end in _source or _target:
    confusion: rows by class and predicted class, ``[classes, classes]``.
    ranking: for two classes, the rows of the first and of the second, AUROC and average precision, ``[4]``.
    roc: false and true positive rate; precision_recall: recall and precision, ``[points, 2]``.
    sites: per site, its rows, correct predictions, rows of the second class, and AUROC or NaN, ``[sites, 4]``.
    site_names: JSON as bytes.

    Without ``keep_rows`` there are no maps, no samples, and no curves, since a step of a curve is a single row.
    """
    best = adapted.best if adapted.best and not adapted.best.by.oracle else None
    tested = best or adapted
    tensors = {"tested_round": torch.tensor(best.round if best else adapted.state.round)}
    tensors |= _sites_of_clients(adaptation, pair)
    if keep_rows:
        source, target = _choose_rows(pair.source_test, pair.source), _choose_rows(pair.target_test, pair.target)
        tensors |= _maps(adaptation, adapted, source, target)
        tensors |= _sample_rows(tested, target if len(target.x) else source)
    held = (None, None) if pair.sites is None else (pair.sites.source_test, pair.sites.target_test)
    for name, rows, sites in (("source", pair.source_test, held[0]), ("target", pair.target_test, held[1])):
        if rows is not None and len(rows.x):
            scores = _score_test_rows(tested, rows, sites, pair, keep_rows)
            tensors |= {f"{what}_{name}": tensor for what, tensor in scores.items()}
    return tensors


def _sites_of_clients(adaptation: Adaptation, pair: DomainPair) -> dict[str, Tensor]:
    """Return the real site name of each client, whose own name is plain ASCII; empty if clients are not sites."""
    names = () if pair.sites is None else pair.sites.names
    sites = dict(zip(name_clients(names), names, strict=True))
    named = {client.name: sites.get(client.name, "") for client in adaptation.client_data}
    return {"client_sites": _as_bytes(named)} if all(named.values()) else {}


def _as_bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _score_test_rows(
    model: Predictor, rows: Labelled, sites: Tensor | None, pair: DomainPair, keep_rows: bool
) -> dict[str, Tensor]:
    """Count and score labelled rows. sites: int64 ``[rows]``, the number of the site that holds each, if known."""
    logits, y = model.logits(rows.x).cpu().double(), rows.y.cpu()
    known = (y >= 0) & (y < pair.classes)
    y, logits, predicted = y[known], logits[known], logits.argmax(dim=1)[known]
    s = logits[:, 1] - logits[:, 0] if pair.classes == 2 else None
    tensors = {}
    if pair.classes <= _MOST_CLASSES:
        tensors["confusion"] = _confusion(y, predicted, pair.classes)
    if s is not None and 0 < int((y == 1).sum()) < len(y) and not bool(s.isnan().any()):
        tensors |= _rank_scores(y, s, keep_rows)
    if sites is not None and pair.sites is not None and len(y):
        names = [*pair.sites.names, OTHER_SITES]
        places = sites.cpu()[known]
        groups = count_groups(names, torch.where(places < 0, len(names) - 1, places), y, predicted, s)
        counts = [
            [group.rows, group.hits, group.positive, math.nan if group.auc is None else group.auc] for group in groups
        ]
        tensors["sites"] = torch.tensor(counts, dtype=torch.float64)
        tensors["site_names"] = _as_bytes([group.name for group in groups])
    return tensors


def _rank_scores(y: Tensor, s: Tensor, keep_rows: bool) -> dict[str, Tensor]:
    """Return how the scores of class 1 rank rows of both classes, and the curves over all thresholds."""
    ranked = Thresholds.count(y, s)
    numbers = [ranked.negatives, ranked.positives, ranked.auroc, ranked.average_precision]
    tensors = {"ranking": torch.tensor(numbers, dtype=torch.float64)}
    if keep_rows:
        curves = ranked.curves()
        tensors |= {"roc": torch.tensor(curves.roc), "precision_recall": torch.tensor(curves.precision_recall)}
    return tensors


def _choose_rows(test: Labelled | None, train: Labelled) -> Labelled:
    """Return the same few rows in every run: test rows if there are any, else training rows."""
    rows = test if test is not None and len(test.x) else train
    index = permutation(key(0, "exhibits"), len(rows.x))[:_MAP_ROWS]
    known = rows.y is not None and len(rows.y) == len(rows.x)
    return Labelled(rows.x[index], rows.y[index] if known else torch.full((len(index),), -1))


def _maps(adaptation: Adaptation, adapted: Adapted, source: Labelled, target: Labelled) -> dict[str, Tensor]:
    if not len(source.x) or not len(target.x):
        return {}
    x = torch.cat([source.x, target.x])
    features = {"map_before": adaptation.before().features(x), "map_after": adapted.features(x)}
    if not all(bool(torch.isfinite(values).all()) for values in features.values()):
        return {}
    return {
        "map_domain": torch.cat([torch.zeros(len(source.x)), torch.ones(len(target.x))]).to(torch.uint8),
        "map_label": torch.cat([source.y, target.y]).to(torch.int16),
        "map_predicted": adapted.predict(x).cpu().to(torch.int16),
        **{name: _principal(values.cpu()) for name, values in features.items()},
    }


def _principal(features: Tensor) -> Tensor:
    """Project features ``[rows, width]`` onto their first principal axes, ``[rows, axes]``."""
    centred = features.double() - features.double().mean(dim=0)
    variances, directions = torch.linalg.eigh(centred @ centred.T)
    axes = min(_MAP_AXES, features.shape[1])
    largest = torch.arange(len(variances) - 1, -1, -1)[:axes]
    scores: Tensor = directions[:, largest] * variances[largest].clamp_min(0).sqrt()
    signs = scores.gather(0, scores.abs().argmax(dim=0, keepdim=True)).sign()
    return scores.mul(torch.where(signs == 0, 1.0, signs)).float()


def _sample_rows(model: Predictor, rows: Labelled) -> dict[str, Tensor]:
    x = rows.x[:_SAMPLES]
    if not len(x):
        return {}
    probability = model.predict_proba(x).cpu()
    top = probability.topk(min(_TOP, probability.shape[1]), dim=1)
    return {
        "sample_x": _small(x),
        "sample_label": rows.y[:_SAMPLES].to(torch.int16),
        "sample_class": top.indices.to(torch.int16),
        "sample_probability": top.values.float(),
    }


def _small(x: Tensor) -> Tensor:
    """Return images as bytes with sides of at most 64 pixels, and the first numbers of other rows."""
    if x.dim() != 4:
        return x.flatten(1)[:, :_COLUMNS].float()
    scaled = x.float() / 255 if x.dtype == torch.uint8 else x.float()
    low, high = float(scaled.min()), float(scaled.max())
    if low < 0 or high > 1:
        scaled = (scaled - low) / ((high - low) or 1.0)
    if scaled.shape[1] not in (1, 3):
        scaled = scaled.mean(dim=1, keepdim=True)
    height, width = scaled.shape[-2:]
    if max(height, width) > _SIDE:
        shrunk = [max(1, round(side * _SIDE / max(height, width))) for side in (height, width)]
        scaled = torch.nn.functional.interpolate(scaled, size=shrunk, mode="area")
    return (scaled * 255).round().clamp(0, 255).to(torch.uint8)


def _confusion(y: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count rows by class (first axis) and predicted class, ``[classes, classes]``."""
    known = (y >= 0) & (y < classes)
    cells = y[known] * classes + predicted[known]
    return torch.bincount(cells, minlength=classes * classes).view(classes, classes).to(torch.int32)
