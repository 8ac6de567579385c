"""What a site reports of its rows: their domains and the shape of a row, but not their number or their classes.

Only a network centred at the mean of all inputs needs a sum and a count from each site, and only an objective that
weights classes a count of each; they are sent for these alone.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedmm.core.files import domain_of
from fedmm.remote.packed import NAME, Malformed, Packed, read_json

_INFO = "card"
_MOST_DIMENSIONS, _LONGEST_SIDE = 8, 1 << 31
_MOST_INPUTS = 1 << 53
_MOST_CLASSES = 1 << 16
_LARGEST_INPUT = 3.5e38  # just above the largest float32
_ROUNDING = 1e-6


@dataclass(frozen=True)
class SiteInfo:
    """source, target: whether it has labelled source rows, unlabelled target rows. shape, bytes: of a stored row.

    validation: whether it keeps labelled source rows from training, to evaluate models on.
    batch: source and target rows in its batches, if it has both and an adversary tells domains; otherwise 0 and 0.
    input_sum, input_count: of all its inputs, if the network is centred at the mean over all sites; otherwise 0.
    class_counts: its training rows of each class, if the objective needs class shares; otherwise empty.
    """

    source: bool
    target: bool
    shape: tuple[int, ...]
    bytes: bool
    input_sum: float = 0.0
    input_count: int = 0
    validation: bool = False
    batch: tuple[int, int] = (0, 0)
    class_counts: tuple[int, ...] = ()

    @property
    def domain(self) -> str:
        """``source``, ``target`` or ``both``, as in a site's file."""
        return domain_of(self.source, self.target)

    def packed(self, name: str) -> Packed:
        """Pack the info for transport."""
        return Packed({}, {NAME: name, _INFO: json.dumps(asdict(self))}, {})


@dataclass(frozen=True)
class Expected:
    """What the server's experiment expects of a site's info, which is compared with it before it is used.

    shape, bytes: of a stored row. batch_size: of the experiment. centred: whether sums of inputs are asked for.
    domains: each site's domain, if the experiment says so. classes: their number if class counts are asked for, or 0.
    """

    shape: tuple[int, ...]
    bytes: bool
    batch_size: int
    centred: bool = False
    domains: Mapping[str, str] = field(default_factory=dict)
    classes: int = 0

    def flaw(self, name: str, info: SiteInfo) -> str:
        """Return why a site's info does not fit this experiment, worded to follow its name; empty if it does."""
        if info.shape != self.shape or info.bytes != self.bytes:
            return f"it holds {_rows(info.bytes, info.shape)}; the experiment has {_rows(self.bytes, self.shape)}"
        wanted = self.domains.get(name, info.domain)
        if info.domain != wanted:
            return f"it holds {_domains(info.domain)}; the experiment expects {_domains(wanted)} there"
        if info.validation and not info.source:
            return "it reports validation rows but has no labelled rows"
        split = info.domain == "both" and min(info.batch) >= 1 and sum(info.batch) == self.batch_size
        if info.batch != (0, 0) and not split:
            return f"its batches hold {info.batch[0]} and {info.batch[1]} rows; the experiment's have {self.batch_size}"
        return self._implausible_counts(info) or self._implausible_sum(info)

    def _implausible_counts(self, info: SiteInfo) -> str:
        if not info.class_counts:
            return ""
        if not self.classes:
            return "it sends counts of its classes, which the experiment does not ask for"
        if len(info.class_counts) != self.classes or not info.source or not sum(info.class_counts):
            return (
                f"its class counts {list(info.class_counts)} cannot be those of labelled rows of {self.classes} classes"
            )
        return ""

    def _implausible_sum(self, info: SiteInfo) -> str:
        total, count = info.input_sum, info.input_count
        if not self.centred:
            return "it sends a sum of its inputs, which the experiment does not ask for" if count or total else ""
        low, high = (0.0, 1.0 + _ROUNDING) if self.bytes else (-_LARGEST_INPUT, _LARGEST_INPUT)
        whole_rows = 0 <= count <= _MOST_INPUTS and count % math.prod(self.shape) == 0
        if not whole_rows or not low * count <= total <= high * count:
            return f"its sum {total:g} cannot be that of {count} inputs in {_rows(self.bytes, self.shape)}"
        return ""


def read_site_info(packed: Packed) -> SiteInfo:
    """Read a site's info; raise Malformed if it is none."""
    return site_info_from(read_json(packed.about.get(_INFO), "what it says of its rows"))


def keeps_rows(packed: Packed) -> bool:
    """Return whether a site says that it keeps labelled rows from training, even if its row shape is not known yet."""
    table = read_json(packed.about.get(_INFO), "what it says of its rows")
    return isinstance(table, dict) and _flag(table, "validation", False)


def site_info_from(table: Any) -> SiteInfo:
    """Build an info from plain values; raise Malformed if one is of the wrong kind."""
    if not isinstance(table, dict):
        raise Malformed("it does not describe what it holds")
    source, target, as_bytes = (_flag(table, name) for name in ("source", "target", "bytes"))
    if not source and not target:
        raise Malformed("it holds neither source nor target rows")
    shape = _whole_numbers(table, "shape", (), _MOST_DIMENSIONS)
    if not shape or min(shape) < 1 or max(shape) > _LONGEST_SIDE:
        raise Malformed(
            f"its rows have shape {list(shape)}, which must be 1 to {_MOST_DIMENSIONS} sizes from 1 to {_LONGEST_SIDE}"
        )
    total = table.get("input_sum", 0.0)
    if isinstance(total, bool) or not isinstance(total, int | float) or not _is_finite(total):
        raise Malformed("the sum of its inputs is not a finite number")
    (count,) = _whole_numbers({"input_count": [table.get("input_count", 0)]}, "input_count", (), 1)
    batch = _whole_numbers(table, "batch", (0, 0), 2)
    if len(batch) != 2 or min(batch) < 0:
        raise Malformed(f"its batches hold {list(batch)} rows, which must be two numbers of at least 0")
    counts = _whole_numbers(table, "class_counts", (), _MOST_CLASSES)
    if any(not 0 <= held <= _MOST_INPUTS for held in counts):
        raise Malformed("the counts of its classes are not numbers of rows")
    validation = _flag(table, "validation", False)
    return SiteInfo(source, target, shape, as_bytes, float(total), count, validation, (*batch,), counts)


def _flag(table: Mapping[str, Any], name: str, default: bool | None = None) -> bool:
    value = table.get(name, default)
    if not isinstance(value, bool):
        raise Malformed(f"it does not say whether {name!r} is true or false")
    return value


def _whole_numbers(table: Mapping[str, Any], name: str, default: tuple[int, ...], most: int) -> tuple[int, ...]:
    value = table.get(name, default)
    right = isinstance(value, list | tuple) and len(value) <= most and all(type(number) is int for number in value)
    if not right:
        raise Malformed(f"its {name!r} is not a list of at most {most} whole numbers")
    return tuple(value)


def _is_finite(number: float) -> bool:
    try:
        return math.isfinite(number)
    except OverflowError:  # an integer beyond all floats
        return False


def _rows(as_bytes: bool, shape: tuple[int, ...]) -> str:
    return f"rows of {'bytes' if as_bytes else 'numbers'} of shape {list(shape)}"


def _domains(domain: str) -> str:
    return "source and target rows" if domain == "both" else f"only {domain} rows"
