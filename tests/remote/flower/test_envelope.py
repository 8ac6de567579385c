"""Messages in one signed record: what is written is read, and whatever else arrives is refused by a reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedmm.remote.flower import envelope
from fedmm.remote.flower.envelope import Sealer, plain, read, seal, unseal
from fedmm.remote.packed import Malformed, Packed

PACKED = Packed(
    {"min.omega": np.arange(6, dtype=np.float32), "codes": np.array([[1, -2]], np.int8), "none": np.zeros((0, 3))},
    {"round": 3, "client": "a", "lost": False},
    {"loss": 0.5},
)


def assert_alike(one: Packed, other: Packed) -> None:
    assert (one.about, one.metrics, list(one.arrays)) == (other.about, other.metrics, list(other.arrays))
    for name, array in one.arrays.items():
        assert array.dtype == other.arrays[name].dtype
        np.testing.assert_array_equal(array, other.arrays[name])


def test_a_message_is_read_as_it_was_written_sealed_or_as_flowers_records() -> None:
    assert_alike(read(seal(PACKED)), PACKED)
    assert_alike(read(plain("train", 1, PACKED)), PACKED)


def test_a_large_body_travels_in_parts_that_all_sites_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "_INLINE", 16)
    monkeypatch.setattr(envelope, "_PART_BYTES", 10)
    write = Sealer(5, sign=bytes)
    one, other = write("train", 1, PACKED), write("train", 2, PACKED)
    assert len(one.config_records) > 2
    assert_alike(read(one), PACKED)
    for name, part in one.config_records.items():
        assert (part.object_id == other.config_records[name].object_id) == (name != "fedmm")
    with pytest.raises(Malformed, match="but at most 20 are accepted"):
        read(one, 20)
    del one["fedmm.part.000001"]
    with pytest.raises(Malformed, match="its arrays do not match"):
        read(one)


def test_a_signature_holds_for_one_question_of_one_node_in_one_run() -> None:
    def verify(signature: bytes, text: bytes) -> bool:
        return signature == text[::-1]

    found = unseal(Sealer(7, sign=lambda text: text[::-1])("train", 11, PACKED))
    found.require_signed("train", 11, 7, verify)
    for kind, node, run in (("measure", 11, 7), ("train", 12, 7), ("train", 11, 8)):
        with pytest.raises(Malformed, match="for another site, run or question"):
            found.require_signed(kind, node, run, verify)
    with pytest.raises(Malformed, match="not signed by the federation's coordinator"):
        unseal(seal(PACKED, "train", 11, 7)).require_signed("train", 11, 7, verify)


def changed(**fields: Any) -> RecordDict:
    """A sealed message whose description says something else."""
    values = seal(PACKED)["fedmm"]
    head = json.dumps({**json.loads(values["head"]), **fields}).encode()
    return RecordDict({"fedmm": ConfigRecord({**values, "head": head})})


def raw(**values: Any) -> RecordDict:
    return RecordDict({"fedmm": ConfigRecord({**seal(PACKED)["fedmm"], **values})})


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (changed(arrays=[["a", "<f4", [200_000, 200_000]]]), "fewer bytes than its arrays have"),
        (changed(arrays=[["a", "<f4", [2**62, 2**62]]]), "fewer bytes"),
        (changed(arrays=[["a", "|O", [1]]]), "cannot be read"),
        (changed(arrays=[["a", "V8", [1]]]), "cannot be read"),
        (changed(arrays=[["a", "M8[s]", [1]]]), "cannot be read"),
        (changed(arrays=[["a", "<f4", [-1]]]), "cannot be read"),
        (changed(arrays=[["a", "<f4", [1] * 40]]), "cannot be read"),
        (changed(arrays=[["a", "<f4", [1]]]), "more bytes than its arrays have"),
        (changed(arrays=[["a"]] * 3), "its description cannot be read"),
        (changed(arrays=7), "its description cannot be read"),
        (changed(about={"round": None}), "'round' is neither a number nor text"),
        (changed(about={"deep": [1]}), "'deep' is neither a number nor text"),
        (changed(about=[]), "its description cannot be read"),
        (changed(metrics={"loss": "low"}), "'loss' is not a number"),
        (changed(metrics={"loss": True}), "'loss' is not a number"),
        (changed(sha256="0" * 64), "its arrays do not match"),
        (changed(node="x"), "its description cannot be read"),
        (raw(head=b"[" * 30_000), "its description cannot be read"),
        (raw(head=b'{"about":' + b"[" * 30_000 + b"]" * 30_000 + b"}"), "its description cannot be read"),
        (raw(head=b"\xff\xfe"), "its description cannot be read"),
        (raw(head=b" " * (5 << 20)), "but at most"),
        (raw(head="text"), "not a message of fedmm"),
        (raw(body=b"other"), "its arrays do not match"),
        (RecordDict({"fedmm": ConfigRecord({})}), "not a message of fedmm"),
    ],
)
def test_whatever_else_arrives_is_refused(records: RecordDict, words: str) -> None:
    with pytest.raises(Malformed, match=words):
        read(records)


def test_what_is_no_envelope_is_refused_where_one_must_be() -> None:
    with pytest.raises(Malformed, match="not a message of fedmm"):
        unseal(plain("train", 1, PACKED))
