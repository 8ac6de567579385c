from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from fedmm.data.tensor_files import load_cached, read_tensors


class Making:
    """Tensors that count how often they were made."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> dict[str, Tensor]:
        self.times += 1
        return {"x": torch.arange(1000, dtype=torch.uint8).view(10, 100), "y": torch.tensor([1.5, -2.0])}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "deep" / "cache"
    monkeypatch.setenv("FEDMM_CACHE", str(folder))
    return folder


def asked(making: Making, made_of: tuple[int | str, ...] = (1, "a")) -> int:
    """How often it was made after it was asked for once more; what is returned is right either way."""
    found = load_cached("thing", made_of, making)
    assert {name: tensor.tolist() for name, tensor in found.items()} == {
        name: tensor.tolist() for name, tensor in Making()().items()
    }
    assert found["x"].dtype == torch.uint8
    return making.times


def test_what_was_made_is_not_made_again(folder: Path) -> None:
    making = Making()
    assert [asked(making), asked(making)] == [1, 1]
    (path,) = folder.iterdir()
    assert path.name.startswith("thing-")


def test_other_options_are_another_thing(folder: Path) -> None:
    making = Making()
    assert [asked(making, made_of) for made_of in [(1, "a"), (2, "a"), (1, "b"), (1, "a", 0), (1, "a")]] == [
        1,
        2,
        3,
        4,
        4,
    ]


@pytest.mark.parametrize("damage", ["cut short", "one bit", "empty", "words"])
def test_a_damaged_cache_is_made_again(folder: Path, damage: str) -> None:
    making = Making()
    asked(making)
    (path,) = folder.iterdir()
    content, (mapped, about_before) = path.read_bytes(), read_tensors(path)
    before = {name: tensor.clone() for name, tensor in mapped.items()}  # the file is written over
    del mapped
    path.write_bytes(
        {
            "cut short": content[:-10],
            "one bit": content[:-500] + bytes([content[-500] ^ 4]) + content[-499:],
            "empty": b"",
            "words": b"this is no cache",
        }[damage]
    )
    assert [asked(making), asked(making)] == [2, 2]
    tensors, about = read_tensors(path)
    assert about == about_before
    assert tensors.keys() == before.keys()
    assert all(torch.equal(tensors[name], before[name]) for name in before)
    assert path.stat().st_size == len(content)
    assert list(folder.iterdir()) == [path]


def test_a_cache_that_another_process_is_writing_is_left_to_it(folder: Path) -> None:
    making = Making()
    asked(making)
    (path,) = folder.iterdir()
    path.rename(path.with_name(f"{path.name}.partial"))  # what a writer by the file's own name would write over
    assert [asked(making), asked(making)] == [2, 2]
    assert sorted(folder.iterdir()) == [path, path.with_name(f"{path.name}.partial")]


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("FEDMM_CACHE", str(tmp_path / "file"))
    making = Making()
    assert [asked(making), asked(making)] == [1, 2]
