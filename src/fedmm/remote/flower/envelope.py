"""A message in one record, signed by whoever runs the federation.

Flower takes a few requests for every object of a message, so everything small travels in one ConfigRecord: ``head``, a
JSON text that describes the message and holds the body's digest; ``signature`` of the head; and ``body``, the arrays'
bytes one after the other. A large body travels in parts of their own, which sites that are sent the same point share.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedmm.remote.flower.records import from_records, to_records
from fedmm.remote.packed import Arrays, Malformed, Packed

_ENVELOPE, _PART = "fedmm", "fedmm.part"
_INLINE, _PART_BYTES, _HEAD_BYTES = 1 << 20, 8 << 20, 4 << 20
_MOST_ARRAYS, _MOST_AXES = 10_000, 16
_NUMBERS = "fiub"

Sign = Callable[[bytes], bytes]
"""The signature of a text."""
Verify = Callable[[bytes, bytes], bool]
"""Whether a signature is of a text."""


@dataclass(frozen=True)
class Envelope:
    """What arrived. kind, node, run: what is asked, of which of Flower's nodes, in which of its runs."""

    packed: Packed
    kind: str
    node: int
    run: int
    head: bytes
    signature: bytes

    def require_signed(self, kind: str, node: int, run: int, verify: Verify) -> None:
        """Refuse what the federation's coordinator did not write for this question, node and run."""
        if not verify(self.signature, self.head):
            raise Malformed("it is not signed by the federation's coordinator")
        if (self.kind, self.node, self.run) != (kind, node, run):
            raise Malformed("it was written for another site, run or question")


@dataclass(frozen=True)
class Sealer:
    """Writes the server's messages. run: Flower's number of the run. sign: None where sites have no key to check it."""

    run: int = 0
    sign: Sign | None = None

    def __call__(self, kind: str, node: int, packed: Packed) -> RecordDict:
        """A message that asks something of a node."""
        return seal(packed, kind, node, self.run, self.sign)


def plain(kind: str, node: int, packed: Packed) -> RecordDict:
    """A message as Flower's own apps and mods read it: see :mod:`fedmm.remote.flower.records`."""
    return to_records(packed)


def seal(packed: Packed, kind: str = "", node: int = 0, run: int = 0, sign: Sign | None = None) -> RecordDict:
    """A message's content."""
    body = b"".join(np.ascontiguousarray(array).tobytes() for array in packed.arrays.values())
    head = json.dumps(
        {
            "kind": kind,
            "node": node,
            "run": run,
            "about": packed.about,
            "metrics": packed.metrics,
            "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in packed.arrays.items()],
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
    """What a message holds, sealed or as Flower's records."""
    if _ENVELOPE in records.config_records:
        return unseal(records, most_bytes).packed
    return from_records(records, most_bytes)


def unseal(records: RecordDict, most_bytes: int | None = None) -> Envelope:
    """The envelope in a message, its signature not looked at; what cannot be read is ``Malformed``, whatever it is."""
    found = records.config_records
    values: Mapping[str, Any] = found.get(_ENVELOPE, {})
    head, signature, body = (values.get(name) for name in ("head", "signature", "body"))
    if not (isinstance(head, bytes) and isinstance(signature, bytes) and isinstance(body, bytes)):
        raise Malformed("it is no message of this program's")
    if len(head) > _HEAD_BYTES:
        raise Malformed(f"its description has {len(head)} bytes, where at most {_HEAD_BYTES} are taken")
    parts = [body, *(_bytes(found[name]) for name in sorted(found) if name.startswith(_PART))]
    size = sum(map(len, parts))
    if most_bytes is not None and size > most_bytes:
        raise Malformed(f"it sent {size} bytes of arrays, where at most {most_bytes} are taken")
    content = b"".join(parts)
    try:
        table = json.loads(head)
        if table["sha256"] != hashlib.sha256(content).hexdigest():
            raise Malformed("its arrays are not those that its description is of")
        packed = Packed(_arrays(table["arrays"], content), _about(table["about"]), _metrics(table["metrics"]))
        return Envelope(packed, str(table["kind"]), int(table["node"]), int(table["run"]), head, signature)
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise Malformed(f"its description cannot be read: {type(problem).__name__}") from problem


def _bytes(record: Mapping[str, Any]) -> bytes:
    part = record.get("body")
    if not isinstance(part, bytes):
        raise Malformed("a part of it is missing")
    return part


def _arrays(described: list[Any], content: bytes) -> Arrays:
    if len(described) > _MOST_ARRAYS:
        raise Malformed(f"it sent {len(described)} arrays")
    arrays, place = Arrays(), 0
    for name, kind, shape in described:
        dtype = np.dtype(str(kind))
        sides = [int(side) for side in shape]
        if dtype.kind not in _NUMBERS or len(sides) > _MOST_AXES or min(sides, default=0) < 0:
            raise Malformed(f"it sent an array of {str(kind)[:20]} that cannot be read")
        count = math.prod(sides)
        if count * dtype.itemsize > len(content) - place:
            raise Malformed("it sent fewer bytes than its arrays have")
        arrays[str(name)] = np.frombuffer(content, dtype, count, place).reshape(sides)
        place += count * dtype.itemsize
    if place != len(content):
        raise Malformed("it sent more bytes than its arrays have")
    return arrays


def _about(table: Mapping[str, Any]) -> dict[str, Any]:
    for name, value in table.items():
        if not isinstance(value, int | float | str | bool):
            raise Malformed(f"its value {str(name)[:40]!r} is neither a number nor a text")
    return dict(table)


def _metrics(table: Mapping[str, Any]) -> dict[str, float]:
    for name, value in table.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Malformed(f"its metric {str(name)[:40]!r} is not a number")
    return dict(table)
