from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from fabricated import needs_data, office_files, originals, source, write

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.office31 import Office31
from fedmm.data.domains import DomainPair
from fedmm.data.sources import sources
from fedmm.data.transforms import CropAndFlip

FILES = office_files()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three domains of three classes, with 10, 5 and 2 pictures, 32 by 24 pixels."""
    office = source("office31", FILES, more=(originals(FILES, "http://nowhere.invalid"),))
    monkeypatch.setitem(sources(), "office31", office)
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path))
    write(tmp_path / "office31", FILES)
    return tmp_path / "office31"


def load(**options: Any) -> DomainPair:
    return Office31(**{"image_size": 20, "stored_size": 24} | options).load()


def test_the_transductive_protocol(folder: Path) -> None:
    pair = load(held_out=0.2)
    assert pair.class_names == ("bike", "mug", "pen")
    assert pair.source.y.tolist() == [0] * 8 + [1] * 4 + [2]
    assert pair.source_test.y.tolist() == [0] * 2 + [1] + [2]
    assert pair.target.y.tolist() == [0] * 10 + [1] * 5 + [2] * 2
    assert pair.target_test is pair.target
    assert pair.source_validation is pair.source_test
    for part in (pair.source, pair.target, pair.source_test):
        assert part.x.dtype == torch.uint8
        assert part.x.shape[1:] == (3, 24, 24)
    assert pair.view == CropAndFlip(20)
    assert pair.view.shape((3, 24, 24)) == (3, 20, 20)


def test_held_out_pictures_are_the_source_s_and_none_is_trained_on(folder: Path) -> None:
    pair, everything = load(), load(source="webcam", target="amazon").target

    def pictures(x: torch.Tensor) -> list[bytes]:
        return [row.numpy().tobytes() for row in x]

    together = pictures(pair.source.x) + pictures(pair.source_test.x)
    assert sorted(together) == sorted(pictures(everything.x))
    assert len(set(together)) == 17


def test_the_seed_decides_what_is_held_out(folder: Path) -> None:
    def held(seed: int) -> bytes:
        return load(seed=seed).source_test.x.numpy().tobytes()

    assert held(0) == held(0)
    assert len({held(seed) for seed in range(4)}) > 1


def test_every_pair_of_domains_can_be_had(folder: Path) -> None:
    assert not torch.equal(load(source="dslr").source.x, load(source="amazon").source.x)
    assert torch.equal(load(target="dslr").target.x, load(source="webcam", target="dslr").target.x)


def test_pictures_of_another_size_are_brought_to_it(folder: Path) -> None:
    assert load(stored_size=40).target.x.shape == (17, 3, 40, 40)
    write(folder, office_files(("webcam",), side=60))
    pair = load()
    assert pair.target.x.shape == (17, 3, 24, 24)


@pytest.mark.parametrize("damage", ["missing", "truncated", "corrupt"])
def test_a_bad_file_is_refused_by_name_with_its_checksum(folder: Path, damage: str) -> None:
    name = "webcam/mug/frame_0003.jpg"
    if damage == "missing":
        (folder / name).unlink()
    else:
        write(folder, {name: FILES[name][:-9] + (b"" if damage == "truncated" else b"123456789")})
    checksum = hashlib.sha256(FILES[name]).hexdigest()
    with pytest.raises(FedmmError, match=f"{re.escape(str(folder / name))} .*; its sha256 must be {checksum}"):
        load()


def test_originals_need_no_checksum_but_must_be_pictures(folder: Path) -> None:
    larger = office_files(("webcam",), side=60)
    write(folder, larger | {"webcam/mug/frame_0003.jpg": b"no picture"})
    with pytest.raises(FedmmError, match=r"webcam/mug/frame_0003\.jpg cannot be read as a picture"):
        load()


def test_without_files_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path))
    message = f"there is no folder {tmp_path}/office31; get it with 'fedmm data fetch office31', or name the folder"
    with pytest.raises(FedmmError, match=re.escape(message)):
        Office31().load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"source": "caltech"}, "source must be one of amazon, dslr, webcam, not 'caltech'"),
        ({"target": "Webcam"}, "target must be one of amazon, dslr, webcam"),
        ({"source": "webcam"}, "source and target must differ, but both are 'webcam'"),
        ({"image_size": 0}, "image_size must be at least 1"),
        ({"image_size": 257}, "stored_size must be between image_size = 257 and 4096, not 256"),
        ({"stored_size": 5000}, "stored_size must be between image_size = 224 and 4096"),
        ({"held_out": 0.0}, "held_out must be above 0 and below 1, not 0"),
        ({"held_out": 1.0}, "held_out must be above 0 and below 1, not 1"),
        ({"held_out": 1.5}, "held_out must be between 0 and 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        Office31(**options)


@needs_data
def test_office31_as_it_is() -> None:
    pair = Office31(source="dslr", target="webcam").load()
    assert (len(pair.source.y), len(pair.source_test.y), len(pair.target.y)) == (448, 50, 795)
    assert pair.classes == 31
    assert pair.class_names[0] == "back_pack"
    assert pair.source.y.unique().tolist() == pair.source_test.y.unique().tolist() == list(range(31))
    assert pair.target.x.shape == (795, 3, 256, 256)
