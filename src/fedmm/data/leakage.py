"""What lets labels into inputs: rows that stand in two parts of the data, and columns that tell the class alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Prints = NDArray[np.uint64]
_BYTES_AT_ONCE = 1 << 26
_ROWS_TRIED, _FEWEST_ROWS, _FEWEST_OF_CLASS = 4000, 20, 10
TELLING = 0.98
"""The share of rows, as a mean over classes, whose class a column must tell."""


def fingerprints(x: Tensor) -> Prints:
    """A number of 128 bits for each row, uint64 ``[rows, 2]``: rows that are the same, and hardly others, share it."""
    rows = x.contiguous().flatten(1) if x.dim() > 1 else x.contiguous().unsqueeze(1)
    if rows.is_floating_point():
        rows = rows + 0.0  # -0 and 0 are the same
    width = rows.shape[1] * rows.element_size()
    words = -(-width // 8)
    factors = np.random.default_rng(0).integers(0, 2**63, (words, 2), dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    found = np.empty((len(rows), 2), np.uint64)
    at_once = max(1, _BYTES_AT_ONCE // max(8 * words, 1))
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        padded = np.zeros((len(part), 8 * words), np.uint8)
        padded[:, :width] = part.view(torch.uint8).numpy().reshape(len(part), width)
        numbers = _mixed(padded.view(np.uint64))
        for column in range(2):
            found[start : start + at_once, column] = (numbers * factors[:, column]).sum(axis=1, dtype=np.uint64)
    return found


def _mixed(numbers: Prints) -> Prints:
    """Each number of 64 bits as another, so that a sum of multiples tells apart rows that differ in high bits alone."""
    numbers = numbers ^ (numbers >> np.uint64(32))
    numbers = numbers * np.uint64(0xD6E8FEB86659FD93)
    mixed: Prints = numbers ^ (numbers >> np.uint64(32))
    return mixed


def shared(one: Prints, other: Prints) -> int:
    """How many rows of ``other`` stand in ``one`` too."""
    known = {tuple(each) for each in one.tolist()}
    return sum(tuple(each) in known for each in other.tolist())


def distinct(one: Prints) -> float:
    """The share of rows that are left when each stands once."""
    return len({tuple(each) for each in one.tolist()}) / max(len(one), 1)


def telling_columns(x: Tensor, y: Tensor, columns: Mapping[str, slice], at_least: float = TELLING) -> dict[str, float]:
    """Columns that alone tell the class of rows that were not looked at, and of which share.

    x: ``[rows, numbers]``; columns: which numbers are theirs. A tree is grown on every other row of each class. The
    share is that of each class alike (balanced accuracy), so that to name the commonest class tells nothing; classes of
    a few rows are not looked at.
    """
    from sklearn.tree import DecisionTreeClassifier  # noqa: PLC0415 - slow to import

    spread = torch.linspace(0, len(y) - 1, min(len(y), _ROWS_TRIED)).round().long()
    values, labels = x[spread].float().numpy(), y[spread].numpy()
    counts = np.bincount(labels)
    common = np.flatnonzero(counts >= _FEWEST_OF_CLASS)
    if len(labels) < _FEWEST_ROWS or len(common) < 2 or len(columns) < 2:
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
