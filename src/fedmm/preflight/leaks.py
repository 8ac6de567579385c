"""Find columns that leak what the model is to predict: the class of a row, or its domain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedmm.data.domains import DomainPair
from fedmm.data.labels import UNLABELLED
from fedmm.preflight.table_checks import list_some

_MOST_COLUMNS = 500
_TELLS_DOMAIN = 0.9
_MOSTLY_MISSING = 0.5
_ENOUGH_ROWS = 20
_ROWS_TRIED, _FEWEST_OF_CLASS = 4000, 10
TELLING = 0.95
"""The balanced accuracy from which on a column counts as predicting the class alone."""
_TELLS_MUCH, _OF_ONE_CLASS = 0.85, 0.9


class Telling(NamedTuple):
    """Warnings of columns that alone predict a class, and notes on those that predict much of it."""

    warnings: tuple[str, ...]
    notes: tuple[str, ...]


def telling_classes(pair: DomainPair) -> Telling:
    """Report what single columns, or their gaps, predict of the classes of the source's rows."""
    columns = dict(list(columns_of(pair).items())[:_MOST_COLUMNS])
    known = pair.source.y != UNLABELLED
    if not columns or not bool(known.any()):
        return Telling((), ())
    x, y = pair.source.x[known], pair.source.y[known]
    tell = telling_columns(x, y, columns, _TELLS_MUCH)
    warnings = [
        f"column {name!r} alone predicts the class of {share:.0%} of the source's rows (classes weighted equally): a "
        "copy of the label, or made from it? leave it out if it is not known for new rows"
        for name, share in tell.items()
        if share >= TELLING
    ]
    gaps = {
        column.name: x[:, columns[column.name].stop - 1] > 0.5
        for column in (pair.input.table_columns if pair.input is not None else ())
        if column.name in columns and tell.get(column.name, 0.0) < TELLING and (column.levels or column.indicator)
    }
    one = filled_for_a_class(y, gaps)
    for counts in dict.fromkeys(one.values()):
        alike, (label, of, filled) = [name for name in one if one[name] == counts], counts
        warnings.append(
            f"{list_some(alike)} {'is' if len(alike) == 1 else 'are'} filled in {of} rows of class "
            f"{pair.class_names[label]!r} and in {filled - of} others: written down after the class was known? leave "
            "out what is not known for new rows"
        )
    much = [f"{name} ({share:.0%})" for name, share in tell.items() if share < TELLING and name not in one]
    alone, are = ("alone predicts", "is it") if len(much) == 1 else ("each predict", "are they")
    note = f"{list_some(much)} {alone} much of the class (classes weighted equally); {are} known for new rows?"
    return Telling(tuple(warnings), (note,) if much else ())


def filled_for_a_class(y: Tensor, gaps: Mapping[str, Tensor]) -> dict[str, tuple[int, int, int]]:
    """Return columns filled almost only in rows of one class: by name, the class, its filled rows, and all filled rows.

    y: ``[rows]``; gaps: by column, the empty rows, bool ``[rows]``. Classes count equally, however rare.
    """
    held, found = torch.bincount(y), {}
    for name, empty in gaps.items():
        filled = torch.bincount(y[~empty], minlength=len(held))
        shares = filled / held.clamp(min=1)
        label = int(shares.argmax())
        enough = min(int(filled[label]), int(empty.sum())) >= _ENOUGH_ROWS
        if enough and shares[label] >= _OF_ONE_CLASS * shares.sum():
            found[name] = (label, int(filled[label]), int(filled.sum()))
    return found


def telling_columns(x: Tensor, y: Tensor, columns: Mapping[str, slice], at_least: float = TELLING) -> dict[str, float]:
    """Return columns that alone predict the class of held-out rows, with their balanced accuracy.

    x: ``[rows, numbers]``; columns: the numbers of each. A decision tree per column is fitted to a random half of each
    class's rows and scored on the other half. Classes count equally, so always predicting the commonest one scores
    low; classes with few rows are left out.
    """
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415 - slow to import

    spread = torch.linspace(0, len(y) - 1, min(len(y), _ROWS_TRIED)).round().long()
    values, labels = x[spread].float().numpy(), y[spread].numpy()
    counts = np.bincount(labels)
    common = np.flatnonzero(counts >= _FEWEST_OF_CLASS)
    if len(labels) < _ENOUGH_ROWS or len(common) < 2 or len(columns) < 2:
        return {}
    order = np.random.default_rng(0).permutation(len(labels))
    by_class = [order[labels[order] == label] for label in common]
    seen = np.concatenate([rows[::2] for rows in by_class])
    kept = [rows[1::2] for rows in by_class]
    found = {}
    for name, which in columns.items():
        tree = DecisionTreeClassifier(
            min_samples_leaf=2, max_leaf_nodes=max(64, 4 * len(counts)), class_weight="balanced", random_state=0
        )
        tree.fit(values[seen, which], labels[seen])
        share = float(np.mean([tree.score(values[rows, which], labels[rows]) for rows in kept]))
        if share >= at_least:
            found[name] = share
    return found


def telling_domain(pair: DomainPair) -> Iterator[str]:
    """Warn of a table's columns that alone separate source from target: features that use them cannot be aligned."""
    kinds = {column.name: column for column in pair.input.table_columns} if pair.input is not None else {}
    if not kinds or not len(pair.source.x) or not len(pair.target.x):
        return
    columns = dict(list(columns_of(pair).items())[:_MOST_COLUMNS])
    x = torch.cat([pair.source.x, pair.target.x])
    domain = torch.cat([torch.zeros(len(pair.source.x)), torch.ones(len(pair.target.x))]).long()
    for name, share in telling_columns(x, domain, columns, _TELLS_DOMAIN).items():
        gaps = ""
        if kinds[name].levels or kinds[name].indicator:
            last = columns[name].stop - 1
            in_source, in_target = (float(rows.x[:, last].mean()) for rows in (pair.source, pair.target))
            if abs(in_source - in_target) > _MOSTLY_MISSING:
                gaps = f" (it is missing in {in_source:.0%} of the source's rows and {in_target:.0%} of the target's)"
        yield (
            f"column {name!r} alone separates source from target for {share:.0%} of the rows (domains weighted equally)"
            f"{gaps}; consider naming it in data.drop"
        )


def columns_of(pair: DomainPair) -> Mapping[str, slice]:
    """Return the numbers of each column in a row, by column name; empty if rows are not vectors."""
    if pair.source.x.dim() != 2:
        return {}
    columns = pair.input.table_columns if pair.input is not None else ()
    if not columns:
        return {str(number): slice(number, number + 1) for number in range(pair.source.x.shape[1])}
    found, start = {}, 0
    for column in columns:
        found[column.name] = slice(start, start + column.width)
        start += column.width
    return found
