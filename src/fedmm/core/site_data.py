"""What the files of experiments and of sites say in the same words: domains, and how tables are written.

Needs no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DOMAINS = ("source", "target", "both")
"""What a site may hold."""


def domain_of(source: bool, target: bool) -> str:
    """What a site holds, as its file says it."""
    return "both" if source and target else "source" if source else "target"


Decimal = Literal[".", ","]


@dataclass(frozen=True)
class TableKeys:
    """The keys of ``[data]`` that say how a table is written; columns: their names, where the file has none.

    ``TableFormat.of`` in ``fedmm.data.readers`` says what each is for.
    """

    separator: str = ","
    decimal: Decimal = "."
    encoding: str = "utf-8"
    header: bool = True
    columns: tuple[str, ...] = ()
    sheet: str = ""
    missing: tuple[str, ...] = ()
    zero_missing: tuple[str, ...] = ()
