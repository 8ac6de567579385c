"""Small files in the formats of the real data sets, and sources with their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fedmm.data.sources import Archive, Edition, Source, StoredFile

needs_data = pytest.mark.skipif(
    not os.environ.get("FEDMM_DATA"), reason="FEDMM_DATA names no folder with the real data sets"
)


def picture(seed: int, width: int = 40, height: int = 30, kind: str = "PNG", mode: str = "RGB") -> bytes:
    """Return an encoded picture of coarse noise, different for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    pixels = coarse.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind)
    return stream.getvalue()


def idx(array: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), 1, mtime=0)


def mnist_files(train: int = 5040, test: int = 30) -> dict[str, bytes]:
    """Return MNIST's four files with sparse random pixels as digits, and labels 0 to 9 over and over."""
    random = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = random.integers(1, 256, (count, 28, 28), np.uint8) * (random.random((count, 28, 28)) < 0.2)
        labels = np.arange(count) % 10
        files[f"{prefix}-images-idx3-ubyte.gz"] = idx(images.astype(np.uint8))
        files[f"{prefix}-labels-idx1-ubyte.gz"] = idx(labels.astype(np.uint8))
    return files


def hdf5(groups: Mapping[str, Mapping[str, NDArray[np.generic]]], *, chunk: int = 100, packed: bool = True) -> bytes:
    """Return an HDF5 file of superblock version 0, with arrays in groups.

    chunk: a chunk's size along every axis; 0 leaves arrays contiguous. packed: compress chunks with deflate.
    """
    none, content = (1 << 64) - 1, bytearray(96)

    def put(data: bytes) -> int:
        content.extend(data)
        return len(content) - len(data)

    def header(*messages: tuple[int, bytes]) -> int:
        padded = [(kind, body + bytes(-len(body) % 8)) for kind, body in messages]
        body = b"".join(struct.pack("<HHB3x", kind, len(body), 0) + body for kind, body in padded)
        return put(struct.pack("<BxHII4x", 1, len(messages), 1, len(body)) + body)

    def tree(kind: int, keys: list[bytes], children: list[int], last: bytes) -> int:
        pairs = b"".join(key + struct.pack("<Q", child) for key, child in zip(keys, children, strict=True))
        return put(b"TREE" + struct.pack("<BBHQQ", kind, 0, len(keys), none, none) + pairs + last)

    def group(members: Mapping[str, int]) -> int:
        names, entries = bytearray(8), b""
        for name, child in sorted(members.items()):
            entries += struct.pack("<QQI4x16x", len(names), child, 0)
            names += name.encode() + bytes(8 - len(name) % 8)
        heap = put(b"HEAP" + struct.pack("<4xQQQ", len(names), 1, len(content) + 32) + names)
        node = put(b"SNOD" + struct.pack("<BxH", 1, len(members)) + entries)
        return header((0x11, struct.pack("<QQ", tree(0, [bytes(8)], [node], bytes(8)), heap)))

    def array(values: NDArray[np.generic]) -> int:
        rank, size = values.ndim, values.dtype.itemsize
        kind = struct.pack("<BBxxI8x", 0x11, 0x20, size) if values.dtype.kind == "f" else b""
        kind = kind or struct.pack("<BBxxI4x", 0x10, 8 * (values.dtype.kind == "i"), size)
        space = struct.pack(f"<BBB5x{rank}Q", 1, rank, 0, *values.shape)
        if not chunk:
            layout = struct.pack("<BBQQ", 3, 1, put(values.tobytes()), values.nbytes)
            return header((1, space), (3, kind), (8, layout))
        keys, children = [], []
        for place in np.ndindex(*(-(-length // chunk) for length in values.shape)):
            part = values[tuple(slice(chunk * at, chunk * (at + 1)) for at in place)]
            whole = np.zeros((chunk,) * rank, values.dtype)
            whole[tuple(map(slice, part.shape))] = part
            data = zlib.compress(whole.tobytes()) if packed else whole.tobytes()
            keys.append(struct.pack(f"<II{rank}QQ", len(data), 0, *(chunk * at for at in place), 0))
            children.append(put(data))
        root = tree(1, keys, children, bytes(16 + 8 * rank))
        layout = struct.pack(f"<BBBQ{rank}II", 3, 2, rank + 1, root, *(chunk,) * rank, size)
        filters = struct.pack("<BB6xHHHH", 1, 1, 1, 0, 1, 1) + struct.pack("<I4x", 4)
        return header((1, space), (3, kind), (8, layout), *([(0x0B, filters)] if packed else []))

    root = group({name: group({key: array(value) for key, value in held.items()}) for name, held in groups.items()})
    start = b"\x89HDF\r\n\x1a\n" + struct.pack("<8BHHI", 0, 0, 0, 0, 0, 8, 8, 0, 4, 16, 0)
    content[:96] = start + struct.pack("<QQQQQQI4x16x", 0, none, len(content), none, 0, root, 0)
    return bytes(content)


def usps_file(train: int = 769, test: int = 20) -> bytes:
    """Return USPS's file with sparse random pixels as digits, and labels 9 to 0 over and over."""
    random = np.random.default_rng(1)
    return hdf5(
        {
            part: {
                "data": (random.random((rows, 256)) * (random.random((rows, 256)) < 0.3)).astype("<f4"),
                "target": (9 - np.arange(rows) % 10).astype("<i4"),
            }
            for part, rows in (("train", train), ("test", test))
        }
    )


def office_files(domains: Iterable[str] = ("amazon", "dslr", "webcam"), side: int = 24) -> dict[str, bytes]:
    """Return three classes in each domain, with 10, 5 and 2 pictures."""
    return {
        f"{domain}/{name}/frame_{number:04d}.jpg": picture(100 * place + 10 * size + number, side + 8, side, "JPEG")
        for place, domain in enumerate(domains)
        for name, size in (("bike", 10), ("mug", 5), ("pen", 2))
        for number in range(1, size + 1)
    }


def stored(files: Mapping[str, bytes], address: str = "") -> tuple[StoredFile, ...]:
    """Return files with their real checksums, to be downloaded below an address."""
    return tuple(
        StoredFile(path, len(content), hashlib.sha256(content).hexdigest(), (f"{address}/{path}",) if address else ())
        for path, content in files.items()
    )


def source(name: str, files: Mapping[str, bytes], address: str = "", more: tuple[Edition, ...] = ()) -> Source:
    """Return a source with the edition ``main``, and ``more``."""
    folders = {path.split("/")[0] for path in files if "/" in path} if more else set()
    return Source(
        name,
        f"small {name}",
        "none",
        "nobody",
        (Edition("main", stored(files, address)), *more),
        tuple(sorted(folders)),
    )


def originals(files: Mapping[str, bytes], address: str) -> Edition:
    """Return an edition with the same file names but no checksums, in an archive for each folder."""
    folders = sorted({path.split("/")[0] for path in files})
    archives = tuple(Archive(folder, (f"{address}/{folder}.tgz",)) for folder in folders)
    return Edition("originals", tuple(StoredFile(path) for path in files), archives, "names alone")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder, including hidden ones."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


HOSPITALS = {"cleveland": 60, "hungarian": 50, "switzerland": 40, "va": 45}
"""The number of rows of each."""


def like_the_hospitals(folder: Path) -> None:
    """Write files like UCI's: ``?`` for missing values, cholesterol 0 at one site, a column that one never filled."""
    random = np.random.default_rng(0)
    for site, rows in HOSPITALS.items():
        lines = []
        for row in range(rows):
            num = row % 5 if site != "hungarian" else row % 2
            age, chol = 40 + row % 30 + 2 * num, 0 if site == "switzerland" else int(random.integers(180, 300))
            ca = "?" if site == "va" else row % 4
            lines.append(
                f"{age}.0,{row % 2},{1 + row % 4},{120 + row},{chol},{'?' if row % 7 == 0 else 0},{row % 3},"
                f"{150 - row % 40},{row % 2},{num + random.normal():.1f},{1 + row % 3},{ca},{3 + row % 5},{num}\n"
            )
        (folder / f"processed.{site}.data").write_text("".join(lines))
