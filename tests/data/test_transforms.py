"""Rows as networks see them: whole, or cropped and flipped."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedmm import CropAndFlip, FedmmError
from fedmm.core.problem import WholeRows
from fedmm.core.seeding import key
from fedmm.data.transforms import VIEWS, view_from, view_table

SHAPE = (2, 7, 9)
CROP = CropAndFlip(5)


def pictures(*leading: int) -> Tensor:
    """Every pixel is a number of its own within its row."""
    return torch.arange(2 * 7 * 9).view(SHAPE).expand(*leading, *SHAPE)


def keys(*seeds: int) -> Tensor:
    return torch.tensor([key(seed) for seed in seeds])


def places(shown: Tensor) -> list[tuple[int, int, bool]]:
    """Where each crop of :func:`pictures` was cut, and whether it is mirrored."""
    corners = shown[..., 0, 0, :].flatten(0, -2)
    found = []
    for corner in corners.tolist():
        mirrored = corner[0] > corner[1]
        found.append((min(corner) // 9, min(corner) % 9, mirrored))
    return found


def test_a_crop_is_a_square_of_its_row_in_all_channels() -> None:
    shown = CROP.train(pictures(40), keys(1)[0])
    assert shown.shape == (40, 2, 5, 5)
    for row, (top, left, mirrored) in zip(shown, places(shown), strict=True):
        expected = pictures()[:, top : top + 5, left : left + 5]
        assert torch.equal(row, expected.flip(-1) if mirrored else expected)


def test_all_places_and_both_ways_round_are_drawn_about_equally_often() -> None:
    # 3 x 5 places and 2 ways: each expected 100 times of 3,000; 5 standard deviations are 50.
    shown = CROP.train(pictures(3000), keys(2)[0])
    found = places(shown)
    counts = [found.count((top, left, way)) for top in range(3) for left in range(5) for way in (False, True)]
    assert sum(counts) == 3000
    assert min(counts) > 50
    assert max(counts) < 150


def test_crops_depend_on_the_key_and_the_place_in_the_batch_alone() -> None:
    one = CROP.train(pictures(8), keys(3)[0])
    assert torch.equal(one, CROP.train(pictures(8), keys(3)[0]))
    assert torch.equal(one[:5], CROP.train(pictures(5), keys(3)[0]))
    assert not torch.equal(one, CROP.train(pictures(8), keys(4)[0]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_a_stack_of_batches_is_cropped_like_each_batch_alone(dtype: torch.dtype) -> None:
    x = torch.randint(0, 256, (2, 3, 4, *SHAPE), generator=torch.Generator().manual_seed(0)).to(dtype)
    each = keys(*range(6)).view(2, 3)
    shown = CROP.train(x, each)
    assert shown.dtype == dtype
    assert shown.shape == (2, 3, 4, 2, 5, 5)
    for i in range(2):
        for j in range(3):
            assert torch.equal(shown[i, j], CROP.train(x[i, j], each[i, j]))


def test_without_flip_nothing_is_mirrored_and_places_are_the_same() -> None:
    plain, flipped = (CropAndFlip(5, flip=flip).train(pictures(50), keys(5)[0]) for flip in (False, True))
    assert not any(mirrored for _, _, mirrored in places(plain))
    assert [place[:2] for place in places(plain)] == [place[:2] for place in places(flipped)]


def test_measuring_shows_the_centre() -> None:
    assert torch.equal(CROP.evaluate(pictures(3)), pictures(3)[..., 1:6, 2:7])


def test_a_crop_as_large_as_the_picture_is_the_picture() -> None:
    square = torch.rand(3, 1, 6, 6)
    whole = CropAndFlip(6, flip=False)
    assert torch.equal(whole.train(square, keys(0)[0]), square)
    assert torch.equal(whole.evaluate(square), square)


@pytest.mark.parametrize("view", [WholeRows(), CROP, CropAndFlip(3, flip=False)], ids=repr)
def test_the_shape_is_that_of_what_is_shown(view: WholeRows | CropAndFlip) -> None:
    shape = view.shape(SHAPE)
    assert view.evaluate(pictures(2)).shape == (2, *shape)
    assert view.train(pictures(2), keys(0)[0]).shape == (2, *shape)


@pytest.mark.parametrize("view", [WholeRows(), CROP, CropAndFlip(3, flip=False)], ids=repr)
def test_a_view_of_the_table_comes_back_from_its_values(view: WholeRows | CropAndFlip) -> None:
    table = view_table(view)
    assert table is not None
    assert table["name"] in VIEWS
    assert view_from(table) == view


@pytest.mark.parametrize("shape", [(12,), (2, 4, 9), (2, 9, 4)])
def test_rows_that_cannot_be_cropped_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(FedmmError):
        CROP.shape(shape)


@pytest.mark.parametrize("size", [0, -1, 2.5, True])
def test_a_size_that_is_no_number_of_pixels_is_refused(size: int) -> None:
    with pytest.raises(FedmmError, match="size"):
        CropAndFlip(size)


def test_an_unknown_view_is_refused() -> None:
    with pytest.raises(FedmmError, match="whole_rows"):
        view_from({"name": "whole_row"})
