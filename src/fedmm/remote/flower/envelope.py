"""A message in one Flower record, signed by the federation's coordinator.

Flower makes several requests per object of a message, so everything small travels in one ConfigRecord: ``head``, JSON
that describes the message and holds the body's digest; ``signature`` of the head; and ``body``, the arrays' bytes in
sequence. A large body travels in separate parts, which sites that receive the same point share.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedmm.remote.packed import Malformed, Packed, array_bytes, read_arrays

_ENVELOPE, _PART = "fedmm", "fedmm.part"
_INLINE, _PART_BYTES, _HEAD_BYTES = 1 << 20, 8 << 20, 4 << 20

Sign = Callable[[bytes], bytes]
"""Returns the signature of some bytes."""
Verify = Callable[[bytes, bytes], bool]
"""Returns whether a signature belongs to some bytes."""


@dataclass(frozen=True)
class Envelope:
    """A received message. kind, node, run: the kind of question, the Flower node that it is for, and Flower's run."""

    packed: Packed
    kind: str
    node: int
    run: int
    head: bytes
    signature: bytes

    def require_signed(self, kind: str, node: int, run: int, verify: Verify) -> None:
        """Raise Malformed unless the coordinator signed this message for this kind of question, node and run."""
        if not verify(self.signature, self.head):
            raise Malformed("it is not signed by the federation's coordinator")
        if (self.kind, self.node, self.run) != (kind, node, run):
            raise Malformed("it was written for another site, run or question")


@dataclass(frozen=True)
class Sealer:
    """Writes the server's messages. run: Flower's number of the run. sign: None if sites have no key to verify it."""

    run: int = 0
    sign: Sign | None = None

    def __call__(self, kind: str, node: int, packed: Packed) -> RecordDict:
        """Seal a question to a node."""
        return seal(packed, kind, node, self.run, self.sign)


def plain(kind: str, node: int, packed: Packed) -> RecordDict:
    """Write a message as records that Flower's own apps and mods can read."""
    return to_records(packed)


def seal(packed: Packed, kind: str = "", node: int = 0, run: int = 0, sign: Sign | None = None) -> RecordDict:
    """Pack a message into an envelope, signed if ``sign`` is given."""
    arrays, body = array_bytes(packed.arrays)
    head = json.dumps(
        {
            "kind": kind,
            "node": node,
            "run": run,
            "about": packed.about,
            "metrics": packed.metrics,
            "arrays": arrays,
            "sha256": hashlib.sha256(body).hexdigest(),
        }
    ).encode()
    inline = len(body) <= _INLINE
    first = {"head": head, "signature": sign(head) if sign else b"", "body": body if inline else b""}
    records = RecordDict({_ENVELOPE: ConfigRecord({**first})})
    for number, start in enumerate([] if inline else range(0, len(body), _PART_BYTES)):
        records[f"{_PART}.{number:06d}"] = ConfigRecord({"body": body[start : start + _PART_BYTES]})
    return records


def read(records: RecordDict, most_bytes: int | None = None) -> Packed:
    """Read a message, sealed or as Flower's records."""
    if _ENVELOPE in records.config_records:
        return unseal(records, most_bytes).packed
    return from_records(records, most_bytes)


def unseal(records: RecordDict, most_bytes: int | None = None) -> Envelope:
    """Open a message's envelope without verifying its signature; raise Malformed whatever makes it unreadable."""
    found = records.config_records
    values: Mapping[str, Any] = found.get(_ENVELOPE, {})
    head, signature, body = (values.get(name) for name in ("head", "signature", "body"))
    if not (isinstance(head, bytes) and isinstance(signature, bytes) and isinstance(body, bytes)):
        raise Malformed("it is not a message of fedmm")
    if len(head) > _HEAD_BYTES:
        raise Malformed(f"its description has {len(head)} bytes, but at most {_HEAD_BYTES} are accepted")
    parts = [body, *(_bytes(found[name]) for name in sorted(found) if name.startswith(_PART))]
    size = sum(map(len, parts))
    if most_bytes is not None and size > most_bytes:
        raise Malformed(f"it sent {size} bytes of arrays, but at most {most_bytes} are accepted")
    content = b"".join(parts)
    try:
        table = json.loads(head)
        if table["sha256"] != hashlib.sha256(content).hexdigest():
            raise Malformed("its arrays do not match its description")
        packed = Packed(read_arrays(table["arrays"], content), _about(table["about"]), _metrics(table["metrics"]))
        return Envelope(packed, str(table["kind"]), int(table["node"]), int(table["run"]), head, signature)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise Malformed(f"its description cannot be read: {type(problem).__name__}") from problem


def _bytes(record: Mapping[str, Any]) -> bytes:
    part = record.get("body")
    if not isinstance(part, bytes):
        raise Malformed("a part of it is missing")
    return part


def _about(table: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in table.items():
        if not isinstance(value, int | float | str | bool):
            raise Malformed(f"its value {str(name)[:40]!r} is neither a number nor text")
    return dict(table)


def _metrics(table: Mapping[str, Any]) -> dict[str, float]:
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Malformed(f"its metric {str(name)[:40]!r} is not a number")
    return dict(table)


# Messages as Flower's own records, so that its mods apply -------------------------------------------------------------

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"


def to_records(packed: Packed) -> RecordDict:
    """Convert a message to Flower's records."""
    return RecordDict(
        {
            ARRAYS: ArrayRecord({name: Array(array) for name, array in packed.arrays.items()}),
            CONFIG: ConfigRecord(dict(packed.about)),
            METRICS: MetricRecord(dict(packed.metrics)),
        }
    )


def from_records(records: RecordDict, most_bytes: int | None = None) -> Packed:
    """Read a message from Flower's records; raise Malformed for two records of a kind or more than ``most_bytes``."""
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
        raise Malformed(f"it sent {size} bytes of arrays, but at most {most_bytes} are accepted")
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Malformed(f"its metric {name!r} is not a number")
    try:
        return Packed({name: array.numpy() for name, array in arrays.items()}, dict(about), dict(metrics))
    except Exception as problem:  # whatever the bytes contain, other messages must go on
        raise Malformed(f"it sent an array that cannot be read: {problem}") from problem


def _only(kind: str, found: Any) -> Any:
    if len(found) > 1:
        raise Malformed(f"it sent {len(found)} records of kind {kind}, but only one is accepted")
    return next(iter(found.values()), {})
