"""The rows on which the server's model is evaluated during training: test rows, held-out source rows, target inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.metrics import (
    Accuracy,
    DomainHits,
    EmbeddedRisk,
    Entropy,
    Information,
    Metric,
    NeighbourhoodDensity,
    NuclearNorm,
    Risk,
    WorstAccuracy,
)
from fedmm.core.objective import SOURCE, TARGET
from fedmm.core.seeding import key, permutation
from fedmm.core.signals.ranking import Ranking
from fedmm.data.row_format import RowFormat
from fedmm.data.rows import Rows, TensorRows
from fedmm.training.evaluators import HITS, Evaluator
from fedmm.training.predictor import RowsShown

_MOST_SOURCE_ROWS = 250
_MOST_CLASSES = 256
"""Limit for the nuclear norm, for which a client sends classes x classes sums."""
_WORST = "validation_worst_accuracy"


def accuracy_evaluators(
    validation: Any,
    classes: int,
    show: RowsShown,
    device: torch.device,
    form: RowFormat,
    held_at: Mapping[str, Tensor] | None = None,
) -> list[Evaluator]:
    """Return evaluators of ``<name>_accuracy`` on sets of labelled rows.

    With two classes they also measure ``<name>_auroc`` and the like (:class:`~fedmm.core.signals.ranking.Ranking`).
    validation: (x, y) of the target, or a dict of such pairs by name. held_at: by name, int64 ``[rows]``, the number of
    the site that holds each row, below 0 for none; such sets also get ``<name>_worst_accuracy``, of the worst site.
    """
    if validation is None:
        return []
    named = validation if isinstance(validation, Mapping) else {"target": validation}
    for name in named:
        if not isinstance(name, str):
            raise FedmmError(f"validation sets are named by words such as 'target', not {name!r}")
    at = held_at or {}
    return [
        _add_worst_site(
            _build_labelled(
                data,
                f"validation {name!r}",
                classes,
                show,
                device,
                {f"{name}_accuracy": Accuracy(), **_ranking(name, classes)},
                form,
            ),
            at.get(name),
            f"{name}_worst_accuracy",
        )
        for name, data in named.items()
    ]


def risk_evaluator(
    source_validation: Any,
    classes: int,
    show: RowsShown,
    device: torch.device,
    odds: float | None,
    form: RowFormat,
    *,
    accuracy: bool = False,
    held_at: Tensor | None = None,
) -> Evaluator:
    """Return the evaluator of ``source_risk`` on labelled source rows that are used neither to train nor to test.

    With a domain classifier it also measures ``dev_risk`` and the source's half of ``domain_accuracy``; with two
    classes, ``validation_auroc`` and the like. accuracy: add ``validation_accuracy`` and, with ``held_at`` as in
    :func:`accuracy_evaluators`, ``validation_worst_accuracy``.
    """
    measures = _risks(odds, classes, accuracy=accuracy)
    labelled = _build_labelled(source_validation, "source_validation", classes, show, device, measures, form)
    labelled = _add_worst_site(labelled, held_at if accuracy else None, _WORST)
    return replace(labelled, odds=odds)


def _add_worst_site(evaluator: Evaluator, sites: Tensor | None, column: str) -> Evaluator:
    """Add the accuracy of the worst-off site to an evaluator, if the sites that hold its rows are known."""
    if sites is None or not len(sites) or int(sites.max()) < 0:
        return evaluator
    measures = {**evaluator.measures, column: WorstAccuracy(int(sites.max()) + 1)}
    return replace(evaluator, client=sites.to(evaluator.y.device), measures=measures)


def _ranking(rows: str, classes: int) -> dict[str, Metric]:
    return {f"{rows}_ranking": Ranking()} if classes == 2 else {}


def _risks(odds: float | None, classes: int, *, accuracy: bool) -> dict[str, Metric]:
    risk: dict[str, Metric] = {"source_risk": Risk(), **_ranking("validation", classes)}
    if accuracy:
        risk["validation_accuracy"] = Accuracy()
    return risk if odds is None else {**risk, "dev_risk": EmbeddedRisk(), HITS[SOURCE]: DomainHits(SOURCE)}


def held_back_evaluator(
    held: Mapping[str, Rows],
    most: int,
    seed: int,
    show: RowsShown,
    device: torch.device,
    classes: int,
    odds: float | None = None,
    *,
    accuracy: bool = False,
) -> Evaluator | None:
    """Return a risk evaluator on at most ``most`` labelled source rows that clients hold back from training.

    None if there are none. accuracy: add ``validation_accuracy`` and ``validation_worst_accuracy``.
    """
    chosen = _dealt(held, most, seed, "held back")
    if not chosen:
        return None
    y = torch.cat([rows.labels(index).to(device) for rows, index in chosen])
    measures, client = _risks(odds, classes, accuracy=accuracy), _numbers(chosen, device)
    if accuracy:
        measures[_WORST] = WorstAccuracy(len(held))
    return Evaluator(_join_rows(chosen, device), y, show, measures, odds, client, {}, _names(held))


def source_evaluator(
    held: Mapping[str, Rows], most: int, seed: int, show: RowsShown, device: torch.device, odds: float
) -> Evaluator | None:
    """Return the evaluator of the source's half of ``domain_accuracy``, on the clients' own training inputs."""
    chosen = _dealt(held, min(most, _MOST_SOURCE_ROWS), seed, "source probe")
    if not chosen:
        return None
    client = _numbers(chosen, device)
    hits = {HITS[SOURCE]: DomainHits(SOURCE)}
    return Evaluator(_join_rows(chosen, device), torch.zeros_like(client), show, hits, odds, client, {}, _names(held))


def _build_labelled(
    data: Any,
    what: str,
    classes: int,
    show: RowsShown,
    device: torch.device,
    measures: Mapping[str, Metric],
    form: RowFormat,
) -> Evaluator:
    held = form.rows(data, what, labelled=True)
    index = torch.arange(len(held))
    x, labels = held.take(index), held.labels(index)
    require(int(labels.max()) < classes, f"{what} holds label {int(labels.max())} of {classes} classes")
    require(
        tuple(x.shape[1:]) in show.shapes,
        f"{what} holds rows of shape {tuple(x.shape[1:])}, the clients of shape {show.stored}; they must agree",
    )
    return Evaluator(TensorRows(x.to(device)), labels.to(device), show, measures)


def target_evaluator(
    held: Mapping[str, Rows],
    most: int,
    seed: int,
    show: RowsShown,
    device: torch.device,
    classes: int,
    odds: float | None = None,
) -> Evaluator | None:
    """Return the evaluator of metrics without labels, such as ``target_information``, on the clients' own target rows.

    It uses at most ``most`` rows, in proportion to what each client holds, chosen by seed and name; None without rows.
    """
    chosen = _dealt(held, most, seed, "probe")
    if not chosen:
        return None
    rows, client = _join_rows(chosen, device), _numbers(chosen, device)
    measures: dict[str, Metric] = {"target_information": Information(), "target_entropy": Entropy()}
    if classes <= _MOST_CLASSES:
        measures["target_bnm"] = NuclearNorm()
    if odds is not None:
        measures[HITS[TARGET]] = DomainHits(TARGET)
    paired: dict[str, Metric] = {"target_snd": NeighbourhoodDensity()}
    return Evaluator(rows, torch.zeros_like(client), show, measures, odds, client, paired, _names(held))


def _dealt(held: Mapping[str, Rows], most: int, seed: int, purpose: str) -> list[tuple[Rows, Tensor]]:
    """Choose at most ``most`` of the clients' rows; return each client's rows and chosen indices, in order of name."""
    total = sum(map(len, held.values()))
    count = min(most, total)
    chosen, before = [], 0
    for name in _names(held):
        after = before + len(held[name])
        share = count * after // total - count * before // total
        index = permutation(key(seed, purpose, name), len(held[name]))[:share].sort().values
        chosen.append((held[name], index))
        before = after
    return chosen if count else []


def _names(held: Mapping[str, Rows]) -> tuple[str, ...]:
    return tuple(sorted(held))


def _numbers(chosen: Sequence[tuple[Rows, Tensor]], device: torch.device) -> Tensor:
    """Return the number of the client that holds each row, int64 ``[rows]``."""
    return torch.repeat_interleave(torch.tensor([len(index) for _, index in chosen], dtype=torch.int64)).to(device)


def _join_rows(chosen: Sequence[tuple[Rows, Tensor]], device: torch.device) -> TensorRows:
    """Join several clients' rows: by index if they share a tensor on the device, otherwise by copying."""
    first = chosen[0][0]
    if isinstance(first, TensorRows) and first.x.device == device:
        numbers = []
        for rows, index in chosen:
            if not isinstance(rows, TensorRows) or not _same(rows.x, first.x):
                break
            here = index.to(device)
            numbers.append(here if rows.index is None else rows.index.to(device)[here])
        else:
            return TensorRows(first.x, index=torch.cat(numbers))
    return TensorRows(torch.cat([rows.take(index).to(device) for rows, index in chosen]))


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())
