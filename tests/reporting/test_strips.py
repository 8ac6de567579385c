from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedmm.core.errors import FedmmError
from fedmm.reporting import SampleBlock, draw_sheet


def pixels(path: Path) -> np.ndarray:
    with Image.open(path) as drawn:
        return np.asarray(drawn.convert("RGB"))


def test_a_sheet_shows_every_image_of_every_block(tmp_path: Path) -> None:
    # Four flat images of their own colours: each covers a visible part of the sheet, and no more than a tenth of it.
    colours = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 0, 255]], np.uint8)
    images = colours.reshape(2, 2, 3, 1, 1).repeat(4, axis=3).repeat(6, axis=4)
    wide = SampleBlock("first", images, ["a", "a long name of a class"])
    path = draw_sheet(tmp_path / "sheet.png", "title", "about", [wide, SampleBlock("second", images[:1], [])])
    shown = pixels(path)
    for place, colour in enumerate(colours):
        share = float((shown == colour).all(axis=-1).mean())
        assert 0.01 < share < 0.2
        assert place >= 2 or share > 0.02, "the first row is in both blocks"


def test_grey_images_in_bytes_or_fractions_look_the_same(tmp_path: Path) -> None:
    grey = np.tile(np.arange(8, dtype=np.uint8) * 32, (1, 6, 1, 8, 1))
    one = draw_sheet(tmp_path / "one.png", "t", "a", [SampleBlock("b", grey, [])])
    two = draw_sheet(tmp_path / "two.png", "t", "a", [SampleBlock("b", grey / 255.0, [])])
    np.testing.assert_array_equal(pixels(one), pixels(two))


def test_a_sheet_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    block = SampleBlock("b", np.zeros((1, 1, 1, 2, 2)), ["x"])
    with pytest.raises(FedmmError, match=r"sheet\.png cannot be written"):
        draw_sheet(tmp_path / "file" / "sheet.png", "t", "a", [block])
