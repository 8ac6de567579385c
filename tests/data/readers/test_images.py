from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import picture, write
from PIL import Image

from fedmm.core.errors import FedmmError
from fedmm.data.readers import images
from fedmm.data.readers.images import read_picture, square_of, squares
from fedmm.data.sources import StoredFile


def saved(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def colours(content: bytes) -> list[Any]:
    found = read_picture(content, "x")
    assert found.mode == "RGB"
    return np.asarray(found).tolist()


RED = (200, 10, 20)


def test_grey_palette_and_other_kinds_become_red_green_and_blue() -> None:
    plain = Image.new("RGB", (2, 1), RED)
    assert colours(saved(plain)) == [[list(RED)] * 2]
    assert colours(saved(plain.quantize(4))) == [[list(RED)] * 2]
    assert colours(saved(Image.new("L", (2, 1), 77))) == [[[77] * 3] * 2]
    assert colours(saved(Image.new("1", (2, 1), 1))) == [[[255] * 3] * 2]
    assert np.allclose(colours(saved(plain.convert("CMYK"), "JPEG", quality=100)), [[RED] * 2], atol=6)
    assert colours(saved(plain, "GIF")) == [[list(RED)] * 2]


def test_sixteen_bits_of_grey_keep_the_upper_eight() -> None:
    grey = Image.fromarray(np.array([[0, 256 * 7 + 255, 65535]], np.uint16))
    assert colours(saved(grey)) == [[[0] * 3, [7] * 3, [255] * 3]]


def test_what_is_clear_becomes_white() -> None:
    clear = Image.new("RGBA", (3, 1), (*RED, 255))
    clear.putpixel((1, 0), (0, 0, 0, 0))
    clear.putpixel((2, 0), (0, 0, 0, 51))  # a fifth of black on white is 204
    assert colours(saved(clear)) == [[list(RED), [255] * 3, [204] * 3]]
    assert colours(saved(Image.new("LA", (1, 1), (9, 0)))) == [[[255] * 3]]
    palette = Image.new("P", (2, 1), 0)
    palette.putpalette([*RED, 1, 2, 3])
    palette.putpixel((1, 0), 1)
    assert colours(saved(palette, transparency=bytes([255, 0]))) == [[list(RED), [255] * 3]]


def test_a_picture_on_its_side_is_set_upright() -> None:
    lying = Image.new("RGB", (3, 2))
    turned = Image.Exif()
    turned[0x0112] = 6  # to be turned clockwise by a quarter
    assert read_picture(saved(lying, "JPEG", exif=turned), "x").size == (2, 3)


def test_the_square_is_the_middle_of_a_picture_brought_to_size() -> None:
    wide = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(2, 10)).convert("RGB")
    assert np.asarray(square_of(wide, 2))[..., 0].tolist() == [[4, 5], [14, 15]], "no pixel changes at the right size"
    for size in ((90, 60), (60, 90), (40, 27), (301, 301), (20, 20)):
        assert square_of(Image.new("RGB", size), 60).size == (60, 60)
    halves = Image.new("RGB", (200, 100), RED)
    halves.paste("black", (100, 0, 200, 100))
    square = np.asarray(square_of(halves, 50))
    assert square[:, :23].tolist() == [[list(RED)] * 23] * 50
    assert not square[:, 28:].any()


def test_squares_come_in_the_order_of_the_files(tmp_path: Path) -> None:
    files = {f"{number}.png": picture(number, 30 + number, 30) for number in range(20)}
    write(tmp_path, files)
    found = squares(tmp_path, [StoredFile(path) for path in files], 16)
    assert found.shape == (20, 3, 16, 16)
    assert found.dtype == torch.uint8
    for row, content in zip(found, files.values(), strict=True):
        assert torch.equal(row, torch.from_numpy(np.array(square_of(read_picture(content, "x"), 16))).permute(2, 0, 1))


def test_files_are_decoded_once_unless_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"a.png": picture(1), "b.png": picture(2)})
    files = [StoredFile("a.png"), StoredFile("b.png")]
    first = squares(tmp_path, files, 16)
    with monkeypatch.context() as nothing:
        nothing.setattr(images, "read_picture", None)
        assert squares(tmp_path, files, 16) is first
    write(tmp_path, {"b.png": picture(3)})
    os.utime(tmp_path / "b.png", ns=(1, 1))
    second = squares(tmp_path, files, 16)
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])


@pytest.mark.parametrize("content", [b"", b"no picture", picture(0)[:200], picture(0, kind="JPEG")[:-60]])
def test_what_is_no_picture_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, {"good.png": picture(0), "bad.png": content})
    with pytest.raises(FedmmError, match=re.escape(f"{tmp_path}/bad.png cannot be read as a picture: ")):
        squares(tmp_path, [StoredFile("good.png"), StoredFile("bad.png")], 16)


def test_a_picture_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(FedmmError, match=r"x cannot be read as a picture: .*decompression bomb"):
        read_picture(picture(0), "x")
