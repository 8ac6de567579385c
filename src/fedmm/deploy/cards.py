"""What a site says of what it holds: which domains, and the shape of a row. How many rows, and of which classes, stays.

A network that is centred at the mean of all inputs needs a sum and a count from each site; they are sent for it alone.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from fedmm.engines.flower.kinds import NAME
from fedmm.engines.packed import Malformed, Packed

_CARD = "card"


@dataclass(frozen=True)
class Card:
    """source, target: whether it holds labelled source rows, unlabelled target rows. shape, bytes: of a stored row.

    validation: whether it keeps labelled source rows from training, to measure models on.
    batch: how many rows of its batches are source and target, where it holds both and models are measured by domain
        classifiers; else 0 and 0.
    input_sum, input_count: of all its inputs, where the network is centred at the mean over all sites; else 0.
    """

    source: bool
    target: bool
    shape: tuple[int, ...]
    bytes: bool
    input_sum: float = 0.0
    input_count: int = 0
    validation: bool = False
    batch: tuple[int, int] = (0, 0)

    def packed(self, name: str) -> Packed:
        """As it travels."""
        return Packed({}, {NAME: name, _CARD: json.dumps(asdict(self))}, {})


def read_card(packed: Packed) -> Card:
    """The card that travelled so."""
    try:
        return card_from(json.loads(str(packed.about[_CARD])))
    except (KeyError, ValueError, TypeError, OverflowError) as problem:
        raise Malformed(f"it does not describe what it holds: {problem}") from problem


def card_from(table: dict[str, Any]) -> Card:
    """A card from plain values, each of the right kind."""
    total, count = float(table["input_sum"]), int(table["input_count"])
    if not math.isfinite(total) or count < 0:
        raise ValueError(f"its {count} inputs have the sum {total}")
    return Card(
        bool(table["source"]),
        bool(table["target"]),
        tuple(int(side) for side in table["shape"]),
        bool(table["bytes"]),
        total,
        count,
        bool(table.get("validation", False)),
        _batch(table.get("batch", (0, 0))),
    )


def _batch(given: Any) -> tuple[int, int]:
    source, target = (int(rows) for rows in given)
    if source < 0 or target < 0:
        raise ValueError(f"its batches hold {source} and {target} rows")
    return source, target
