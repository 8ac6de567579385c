"""Small files that look like the real ones, and sources that know their checksums."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
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
    """A picture of coarse noise, different for each seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 4 + 1, width // 4 + 1, 3), np.uint8)
    pixels = coarse.repeat(4, axis=0).repeat(4, axis=1)[:height, :width]
    stream = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(stream, kind)
    return stream.getvalue()


def idx(array: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return gzip.compress(header + array.tobytes(), 1, mtime=0)


def mnist_files(train: int = 5040, test: int = 30) -> dict[str, bytes]:
    """MNIST's four files with digits of random strokes; each has its number in its first pixels."""
    random = np.random.default_rng(0)
    files = {}
    for prefix, count in (("train", train), ("t10k", test)):
        images = random.integers(1, 256, (count, 28, 28), np.uint8) * (random.random((count, 28, 28)) < 0.2)
        labels = np.arange(count) % 10
        files[f"{prefix}-images-idx3-ubyte.gz"] = idx(images.astype(np.uint8))
        files[f"{prefix}-labels-idx1-ubyte.gz"] = idx(labels.astype(np.uint8))
    return files


def office_files(domains: Iterable[str] = ("amazon", "dslr", "webcam"), side: int = 24) -> dict[str, bytes]:
    """Three classes in each domain, with 10, 5 and 2 pictures."""
    return {
        f"{domain}/{name}/frame_{number:04d}.jpg": picture(100 * place + 10 * size + number, side + 8, side, "JPEG")
        for place, domain in enumerate(domains)
        for name, size in (("bike", 10), ("mug", 5), ("pen", 2))
        for number in range(1, size + 1)
    }


def stored(files: Mapping[str, bytes], address: str = "") -> tuple[StoredFile, ...]:
    """Files with their real checksums, to be had below an address."""
    return tuple(
        StoredFile(path, len(content), hashlib.sha256(content).hexdigest(), (f"{address}/{path}",) if address else ())
        for path, content in files.items()
    )


def source(name: str, files: Mapping[str, bytes], address: str = "", more: tuple[Edition, ...] = ()) -> Source:
    """A source of one edition, ``main``, and more."""
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
    """The edition of the same names without checksums, in an archive for each folder."""
    folders = sorted({path.split("/")[0] for path in files})
    archives = tuple(Archive(folder, (f"{address}/{folder}.tgz",)) for folder in folders)
    return Edition("originals", tuple(StoredFile(path) for path in files), archives, "names alone")


def write(folder: Path, files: Mapping[str, bytes]) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)


def read(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()
    }


HOSPITALS = {"cleveland": 60, "hungarian": 50, "switzerland": 40, "va": 45}
"""Rows of each."""


def like_the_hospitals(folder: Path) -> None:
    """Files like those of UCI: ``?`` for missing, cholesterol of 0 at one site, a column that one never filled."""
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
