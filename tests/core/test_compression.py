"""Codes and what they say: the same on both sides, never far off, and what they leave out is not lost."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FLOAT64, generator
from torch import Tensor

from fedmm import ClippedUpdate, FedmmError, Terms
from fedmm.core.compression import (
    BLOCK,
    CODECS,
    ENCODINGS,
    RESIDUAL,
    Codec,
    algorithms_part,
    broadcast,
    decode_broadcast,
    decode_upload,
    first_memory,
    known_point,
    readable,
    remember,
    transmit,
    travelling,
    vector_bytes,
)
from fedmm.core.mechanisms import ExactUpdate
from fedmm.engines.messages import size_in_bytes

each_codec = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
each_coded = pytest.mark.parametrize("encoding", CODECS)


def vector(seed: int, *shape: int, dtype: torch.dtype = FLOAT64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=FLOAT64).to(dtype)


# Codes ----------------------------------------------------------------------------------------------------------------


@each_codec
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 3 * BLOCK),
    magnitude=st.floats(-30, 30),
    dtype=st.sampled_from([torch.float32, FLOAT64]),
)
def test_what_codes_say_is_near_relative_to_the_largest_of_the_block(
    codec: Codec, seed: int, size: int, magnitude: float, dtype: torch.dtype
) -> None:
    given = (vector(seed, size) * 10.0**magnitude).to(dtype)
    said = codec.rounded(given)
    assert said.dtype == dtype
    for part, its in zip(given.split(BLOCK), said.split(BLOCK), strict=True):
        largest = float(part.abs().max())
        # int8: half a step of 1/127; fp16: 11 bits, or half a step of 2^-24 below 2^-14, of 32768 = the largest
        allowed = largest * 0.5001 / 127 if codec.dtype == torch.int8 else part.abs() * 2.0**-11 + largest * 2.0**-39
        assert bool(((part - its).abs() <= allowed + 1e-6 * largest / 127).all())


@each_codec
def test_a_block_has_its_own_scale(codec: Codec) -> None:
    given = torch.cat([vector(1, BLOCK), 1e-9 * vector(2, BLOCK)])
    assert float((codec.rounded(given)[BLOCK:] - given[BLOCK:]).abs().max()) < 1e-10


@each_codec
def test_nothing_is_said_of_nothing(codec: Codec) -> None:
    assert not codec.rounded(torch.zeros(BLOCK + 3)).any()
    tiny = torch.full((5,), 1e-320, dtype=FLOAT64)  # below what a scale can be
    assert not codec.rounded(tiny).any()


@each_codec
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_stays_so(codec: Codec, bad: float) -> None:
    given = vector(3, 2 * BLOCK)
    given[5] = bad
    said = codec.rounded(given)
    assert not bool(said[:BLOCK].isfinite().any())
    assert bool(said[BLOCK:].isfinite().all())


@each_codec
def test_a_stack_is_coded_as_each_would_be(codec: Codec) -> None:
    given = vector(4, 2, 3, BLOCK + 7)
    codes, scales = codec.encode(given)
    assert codes.shape == given.shape
    assert scales.shape == (2, 3, 2)
    for r in range(2):
        for i in range(3):
            assert torch.equal(codes[r, i], codec.encode(given[r, i])[0])
            assert torch.equal(codec.rounded(given)[r, i], codec.rounded(given[r, i]))


@each_coded
@pytest.mark.parametrize("size", [1, BLOCK, BLOCK + 1, 522_792])
def test_bytes_are_those_of_the_tensors_that_travel(encoding: str, size: int) -> None:
    codes, scales = CODECS[encoding].encode(torch.zeros(size))
    assert vector_bytes(encoding, size, torch.float32) == size_in_bytes({"codes": codes, "scales": scales})
    assert vector_bytes("exact", size, FLOAT64) == 8 * size


def test_int8_takes_about_a_quarter_and_fp16_half_of_float32() -> None:
    whole = vector_bytes("exact", 522_792, torch.float32)
    assert vector_bytes("int8", 522_792, torch.float32) / whole == pytest.approx(0.25, abs=0.005)
    assert vector_bytes("fp16", 522_792, torch.float32) / whole == pytest.approx(0.5, abs=0.005)


# Uploads --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, FLOAT64])
@each_coded
def test_the_server_has_the_clients_point_to_the_bit(encoding: str, dtype: torch.dtype) -> None:
    z_0, memory = vector(0, 300, dtype=dtype), {}
    for step in range(5):
        z = z_0 + 10.0**-step * vector(step + 1, 300, dtype=dtype)
        came = transmit(ClippedUpdate(2.0), encoding, z, z_0, memory)
        memory = came.memory
        coded = {name: tensor.clone() for name, tensor in came.coded.items()}
        assert torch.equal(decode_upload(encoding, {**coded, "control_change": z}, {"z": z_0})["z"], came.z)
        like = travelling(encoding, {"z": z, "control_change": z})
        assert {name: (t.shape, t.dtype) for name, t in like.items() if name != "control_change"} == {
            name: (t.shape, t.dtype) for name, t in coded.items()
        }
        z_0 = came.z


@each_coded
def test_what_codes_leave_out_is_sent_later(encoding: str) -> None:
    z_0 = torch.zeros(400, dtype=FLOAT64)
    memory, arrived = first_memory(encoding, "exact", {"z": z_0}), z_0
    for step in range(20):
        came = transmit(ExactUpdate(), encoding, vector(step, 400), z_0, memory)
        memory, arrived = came.memory, arrived + came.z
    wanted = torch.stack([vector(step, 400) for step in range(20)]).sum(0)
    torch.testing.assert_close(arrived + memory[RESIDUAL], wanted, rtol=0, atol=1e-12)
    assert float(memory[RESIDUAL].abs().max()) < 0.02  # one code's worth, however many rounds


def test_exact_uploads_travel_as_they_are() -> None:
    z, z_0 = vector(1, 5), vector(2, 5)
    came = transmit(ExactUpdate(), "exact", z, z_0, {})
    assert came.z is z
    assert came.memory == {}
    assert decode_upload("exact", came.coded, {"z": z_0})["z"] is z
    assert travelling("exact", came.coded) is came.coded


# Broadcasts -----------------------------------------------------------------------------------------------------------


@each_coded
def test_clients_that_know_the_last_point_have_the_next_to_the_bit_and_the_server_is_followed(encoding: str) -> None:
    at = {"z": vector(0, 700, dtype=torch.float32), "control": vector(1, 700, dtype=torch.float32)}
    server, client = dict(at), dict(at)
    for step in range(8):
        now = {name: vector(9, 700, dtype=torch.float32) * (step > 0) + first for name, first in at.items()}
        sent, codes = broadcast(encoding, now, server)
        client = decode_broadcast(encoding, {name: tensor.clone() for name, tensor in codes.items()}, client)
        for name in at:
            assert torch.equal(client[name], sent[name])
        server = sent
    for name, vector_ in now.items():  # it stood still, and each time less was left out
        torch.testing.assert_close(server[name], vector_, rtol=1e-6, atol=1e-6)


@each_coded
def test_a_client_that_does_not_know_the_last_point_is_sent_the_whole_one(encoding: str) -> None:
    whole = {"z": vector(0, 9)}
    assert decode_broadcast(encoding, whole, {}) is whole
    _, codes = broadcast(encoding, whole, {"z": vector(1, 9)})
    with pytest.raises(FedmmError, match="the client received codes of 'z' but does not know"):
        decode_broadcast(encoding, codes, {})
    assert readable(whole, {})
    assert not readable(codes, {"dual": whole["z"]})
    assert readable(codes, remember(encoding, whole))


def test_what_is_remembered_is_kept_apart() -> None:
    sent = {"z": vector(0, 4), "control": vector(1, 4)}
    state = {"dual": vector(2, 4), **first_memory("int8", "fp16", sent)}
    assert algorithms_part(state).keys() == {"dual"}
    assert known_point(state).keys() == {"z", "control"}
    assert not state[RESIDUAL].any()
    assert first_memory("exact", "exact", sent) == remember("exact", sent) == {}


@pytest.mark.parametrize("what", ["uploads", "broadcasts"])
def test_an_unknown_encoding_is_refused(what: str) -> None:
    for encoding in ENCODINGS:
        Terms(**{what: encoding})
    with pytest.raises(FedmmError, match=f"{what} must be one of exact, fp16, int8, not 'int4'"):
        Terms(**{what: "int4"})
