"""What a site says of what it holds: counts, a shape, which labels, and a sum where the network needs a mean."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from fedmm.engines.flower.kinds import NAME
from fedmm.engines.packed import Malformed, Packed

_CARD = "card"


@dataclass(frozen=True)
class Card:
    """source_rows, target_rows: how many. shape, bytes: of a stored row. labels: the classes it holds labelled rows of.

    input_sum, input_count: of all its inputs, where the network is centred at the mean over all sites; else 0.
    """

    source_rows: int
    target_rows: int
    shape: tuple[int, ...]
    bytes: bool
    labels: tuple[int, ...]
    input_sum: float = 0.0
    input_count: int = 0

    def packed(self, name: str) -> Packed:
        """As it travels."""
        return Packed({}, {NAME: name, _CARD: json.dumps(asdict(self))}, {})


def read_card(packed: Packed) -> Card:
    """The card that travelled so."""
    try:
        return card_from(json.loads(str(packed.about[_CARD])))
    except (KeyError, ValueError, TypeError) as problem:
        raise Malformed(f"it sent no description of what it holds: {problem}") from problem


def card_from(table: dict[str, Any]) -> Card:
    """A card from plain values, each of the right kind."""
    return Card(
        int(table["source_rows"]),
        int(table["target_rows"]),
        tuple(int(side) for side in table["shape"]),
        bool(table["bytes"]),
        tuple(int(label) for label in table["labels"]),
        float(table["input_sum"]),
        int(table["input_count"]),
    )
