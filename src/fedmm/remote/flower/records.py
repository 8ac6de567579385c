"""Messages as Flower's records: one ArrayRecord, one ConfigRecord and one MetricRecord, so that Flower's mods apply."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedmm.remote.packed import Malformed, Packed

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"


def to_records(packed: Packed) -> RecordDict:
    """A message's content."""
    return RecordDict(
        {
            ARRAYS: ArrayRecord({name: Array(array) for name, array in packed.arrays.items()}),
            CONFIG: ConfigRecord(dict(packed.about)),
            METRICS: MetricRecord(dict(packed.metrics)),
        }
    )


def from_records(records: RecordDict, most_bytes: int | None = None) -> Packed:
    """What a message holds; more than one record of a kind, or more than ``most_bytes``, is refused."""
    arrays, about, metrics = (
        _only(kind, found)
        for kind, found in (
            ("ArrayRecord", records.array_records),
            ("ConfigRecord", records.config_records),
            ("MetricRecord", records.metric_records),
        )
    )
    size = sum(len(array.data) for array in arrays.values())
    if most_bytes is not None and size > most_bytes:
        raise Malformed(f"it sent {size} bytes of arrays, where at most {most_bytes} are taken")
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Malformed(f"its metric {name!r} is not a number")
    try:
        return Packed({name: array.numpy() for name, array in arrays.items()}, dict(about), dict(metrics))
    except Exception as problem:  # whatever is in the bytes, it must not stop the others
        raise Malformed(f"it sent an array that cannot be read: {problem}") from problem


def _only(kind: str, found: Any) -> Any:
    if len(found) > 1:
        raise Malformed(f"it sent {len(found)} records of kind {kind}, where one is taken")
    return next(iter(found.values()), {})
