"""Rows on which the server's model is measured while it trains: test rows, source rows to choose by, target inputs."""

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
"""For the nuclear norm, of which a client sends classes x classes sums."""
_WORST = "validation_worst_accuracy"


def accuracy_evaluators(
    validation: Any,
    classes: int,
    show: RowsShown,
    device: torch.device,
    form: RowFormat,
    held_at: Mapping[str, Tensor] | None = None,
) -> list[Evaluator]:
    """``<name>_accuracy`` on each set of labelled rows: (x, y) of the target, or a dict of such pairs by name.

    With two classes also ``<name>_auroc`` and its like (:class:`~fedmm.core.signals.ranking.Ranking`).
    held_at: by name, int64 ``[rows]``, the number of the site that holds each row, below 0 for none; of these sets also
    ``<name>_worst_accuracy``, that of the worst-off site.
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
    """``source_risk`` on labelled source rows that are neither trained on nor tested.

    With a domain classifier also ``dev_risk``, and half of what ``domain_accuracy`` needs; with two classes also
    ``validation_auroc`` and its like. accuracy: also ``validation_accuracy`` and, with ``held_at`` as in
    :func:`accuracy_evaluators`, ``validation_worst_accuracy``.
    """
    measures = _risks(odds, classes, accuracy=accuracy)
    labelled = _build_labelled(source_validation, "source_validation", classes, show, device, measures, form)
    labelled = _add_worst_site(labelled, held_at if accuracy else None, _WORST)
    return replace(labelled, odds=odds)


def _add_worst_site(evaluator: Evaluator, sites: Tensor | None, column: str) -> Evaluator:
    """The evaluator with the accuracy of the worst-off site, where it is known which site holds each row."""
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
    """The same on labelled source rows that clients hold back from training, at most so many; None without any.

    accuracy: also ``validation_accuracy`` and ``validation_worst_accuracy``.
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
    """The source's half of ``domain_accuracy`` on the clients' own source inputs, where no others are set aside."""
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
    """What needs no labels, on the clients' own target rows, at most so many: ``target_information`` and its like.

    Each client's share is in proportion to what it holds, chosen by the seed and its name; None if there are none.
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
    """At most so many of the clients' rows: in order of names, each client's and which of them; empty for none."""
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
    """Who holds each of the rows, int64 ``[rows]``."""
    return torch.repeat_interleave(torch.tensor([len(index) for _, index in chosen], dtype=torch.int64)).to(device)


def _join_rows(chosen: Sequence[tuple[Rows, Tensor]], device: torch.device) -> TensorRows:
    """Rows of several clients in one: by number where they share a tensor on the device, else copied."""
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
