"""Read arrays from classic HDF5 files: plain numbers in groups, contiguous or in deflate-compressed chunks."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fedmm.core.errors import FedmmError, require

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_DATASPACE, _DATATYPE, _LAYOUT, _FILTERS, _CONTINUATION, _SYMBOLS = 0x01, 0x03, 0x08, 0x0B, 0x10, 0x11
"""Message types in an object header; other types do not affect the values."""
_CONTIGUOUS, _CHUNKED = 1, 2
_DEFLATE = 1
_MOST_BYTES = 1 << 30
"""Limit for one array: a damaged file may claim any size."""
_CODES = {(0, 0): "u", (0, 1): "i", (1, 0): "f"}
"""NumPy's type codes by class (fixed or floating point) and sign."""


def read_hdf5(content: bytes, what: str) -> dict[str, npt.NDArray[Any]]:
    """Return every array of an HDF5 file by its path, ``group/name``; raise FedmmError if the file cannot be read.

    Supported is superblock 0, h5py's default, with little-endian integers and floats and no filter but deflate;
    compound types, strings and external links are not.
    """
    try:
        return _File(content).arrays()
    except FedmmError as problem:
        reason = str(problem)
    except struct.error:
        reason = "it ends too early"
    except (zlib.error, ValueError, RecursionError) as problem:
        reason = str(problem)
    raise FedmmError(f"{what} cannot be read as an HDF5 file: {reason}")


class _Chunk(NamedTuple):
    """``size`` stored bytes at ``address``; the chunk's first number belongs at ``offsets`` of the array."""

    size: int
    skipped_filters: int
    offsets: tuple[int, ...]
    address: int


class _File:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.seen: set[int] = set()

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all arrays by path."""
        require(self.content.startswith(_SIGNATURE), "it does not start with HDF5's signature")
        version, *_, offsets, lengths = self.unpack("7B", 8)
        require((version, offsets, lengths) == (0, 8, 8), "its superblock must be of version 0 with 8-byte addresses")
        (root,) = self.unpack("Q", 64)
        return dict(self.walk(root, ""))

    def unpack(self, form: str, at: int) -> tuple[Any, ...]:
        """Unpack little-endian numbers at an address."""
        return struct.unpack_from(f"<{form}", self.content, min(at, len(self.content)))

    def enter(self, address: int, signature: bytes = b"") -> None:
        """Visit an address that only one path may lead to, and check its signature."""
        require(address not in self.seen, f"two paths lead to address {address}")
        self.seen.add(address)
        found = self.content[address : address + len(signature)]
        require(found == signature, f"there is no {signature.decode()} at address {address}")

    def walk(self, address: int, path: str) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yield the arrays of the object at an address, and of all objects below it."""
        messages = self.messages(address)
        if _SYMBOLS in messages:
            tree, heap = struct.unpack_from("<QQ", messages[_SYMBOLS])
            for name, child in self.members(tree, heap):
                yield from self.walk(child, f"{path}/{name}" if path else name)
        else:
            require(_DATASPACE in messages, f"{path or 'the root'} is neither a group nor an array")
            yield path, self.array(messages, path)

    def messages(self, address: int) -> dict[int, bytes]:
        """Return the messages of an object header by type."""
        self.enter(address)
        version, _, count, _, size = self.unpack("BBHII", address)
        require(version == 1, f"the object header at address {address} must be of version 1, not {version}")
        found: dict[int, bytes] = {}
        blocks = [(address + 16, size)]
        while blocks:
            at, size = blocks.pop(0)
            end = at + size
            while at + 8 <= end and count:
                kind, length = self.unpack("HH", at)
                body = self.content[at + 8 : at + 8 + length]
                if kind == _CONTINUATION:
                    blocks.append(struct.unpack_from("<QQ", body))
                else:
                    found.setdefault(kind, body)
                at, count = at + 8 + length, count - 1
        return found

    def members(self, tree: int, heap: int) -> Iterator[tuple[str, int]]:
        """Yield names and addresses of the objects in a group."""
        self.enter(heap, b"HEAP")
        (names,) = self.unpack("Q", heap + 24)
        for _, node in self.leaves(tree, 8):
            self.enter(node, b"SNOD")
            (count,) = self.unpack("H", node + 6)
            for place in range(count):
                name, child = self.unpack("QQ", node + 8 + 40 * place)
                end = self.content.find(b"\0", names + name)
                yield self.content[names + name : max(end, 0)].decode("utf-8"), child

    def leaves(self, address: int, key: int, level: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the address of each key of ``key`` bytes below a B-tree node, and the address of its child."""
        self.enter(address, b"TREE")
        _, found, count = self.unpack("BBH", address + 4)
        require(level in (None, found), f"the tree at address {address} is of level {found}, not {level}")
        for place in range(count):
            at = address + 24 + place * (key + 8)
            (child,) = self.unpack("Q", at + key)
            if found:
                yield from self.leaves(child, key, found - 1)
            else:
                yield at, child

    def array(self, messages: dict[int, bytes], path: str) -> npt.NDArray[Any]:
        """Return one array, as its header describes it."""
        require({_DATATYPE, _LAYOUT} <= messages.keys(), f"{path} has no type or no layout")
        shape, kind = _shape(messages[_DATASPACE], path), _kind(messages[_DATATYPE], path)
        require(math.prod(shape) * kind.itemsize <= _MOST_BYTES, f"{path} of sizes {list(shape)} is too large")
        layout = messages[_LAYOUT]
        version, form = struct.unpack_from("<BB", layout)
        require(version == 3 and form in (_CONTIGUOUS, _CHUNKED), f"{path} must be contiguous or in chunks")
        if form == _CONTIGUOUS:
            at, size = struct.unpack_from("<QQ", layout, 2)
            require(size == math.prod(shape) * kind.itemsize, f"{path} of sizes {list(shape)} has {size} bytes")
            return np.frombuffer(self.content[at : at + size], kind).reshape(shape)
        rank, tree = struct.unpack_from("<BQ", layout, 2)
        require(rank == len(shape) + 1, f"{path} and its chunks have different ranks")
        chunk = struct.unpack_from(f"<{rank - 1}I", layout, 11)
        require(
            all(chunk) and math.prod(chunk) * kind.itemsize <= _MOST_BYTES,
            f"{path} has chunks of {list(chunk)} numbers",
        )
        return self.join(self.chunks(tree, rank), shape, chunk, kind, packed=_is_packed(messages.get(_FILTERS), path))

    def chunks(self, tree: int, rank: int) -> list[_Chunk]:
        found = []
        for at, address in self.leaves(tree, 8 + 8 * rank):
            size, skipped, *offsets = self.unpack(f"II{rank - 1}Q", at)
            found.append(_Chunk(size, skipped, tuple(offsets), address))
        return found

    def join(
        self, chunks: list[_Chunk], shape: tuple[int, ...], chunk: tuple[int, ...], kind: np.dtype[Any], *, packed: bool
    ) -> npt.NDArray[Any]:
        """Assemble an array from its chunks, each of which must occur exactly once."""
        wanted = math.prod(-(-size // step) for size, step in zip(shape, chunk, strict=True))
        starts = {found.offsets for found in chunks}
        right = all(
            at < size and at % step == 0 for start in starts for at, size, step in zip(start, shape, chunk, strict=True)
        )
        require(right and len(starts) == len(chunks) == wanted, f"{len(chunks)} of {wanted} chunks are there")
        whole, size = np.empty(shape, kind), math.prod(chunk) * kind.itemsize
        for found in chunks:
            content = self.content[found.address : found.address + found.size]
            if packed and not found.skipped_filters & 1:
                content = zlib.decompressobj().decompress(content, size + 1)
            require(len(content) == size, f"the chunk at address {found.address} must hold {size} bytes")
            part = whole[tuple(slice(at, at + step) for at, step in zip(found.offsets, chunk, strict=True))]
            part[...] = np.frombuffer(content, kind).reshape(chunk)[tuple(map(slice, part.shape))]
        return whole


def _shape(dataspace: bytes, path: str) -> tuple[int, ...]:
    version, rank = struct.unpack_from("<BB", dataspace)
    require(version == 1, f"the sizes of {path} must be of version 1, not {version}")
    return struct.unpack_from(f"<{rank}Q", dataspace, 8)


def _kind(datatype: bytes, path: str) -> np.dtype[Any]:
    form, bits, size = struct.unpack_from("<BB2xI", datatype)
    number = form & 0x0F
    code = _CODES.get((number, bits >> 3 & 1 if number == 0 else 0))
    require(
        code is not None and not bits & 1 and size in ((1, 2, 4, 8) if number == 0 else (4, 8)),
        f"{path} must hold little-endian integers or floats",
    )
    return np.dtype(f"<{code}{size}")


def _is_packed(filters: bytes | None, path: str) -> bool:
    """Return whether chunks are compressed by deflate; raise FedmmError for any other filter."""
    if filters is None:
        return False
    version, count = struct.unpack_from("<BB", filters)
    names = [struct.unpack_from("<H", filters, 8)[0]] if count == 1 else []
    require(version == 1 and names == [_DEFLATE], f"{path} must be packed by deflate alone")
    return True
