from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import torch
from scipy.ndimage import rotate
from torch import Tensor

from fedmm.core.errors import FedmmError
from fedmm.data.datasets import digits
from fedmm.data.datasets.digits import DIGITS, Digits, patches, pose_images, scans
from fedmm.data.domains import DomainPair


@pytest.fixture(scope="module")
def turned() -> DomainPair:
    return Digits().load()


@pytest.fixture(scope="module")
def blended() -> DomainPair:
    return Digits(kind="blended", copies=2).load()


def tensors(pair: DomainPair) -> list[Tensor]:
    return [*pair.source, *pair.target, *pair.source_test, *pair.target_test]


def equal(one: DomainPair, other: DomainPair) -> bool:
    return all(torch.equal(a, b) for a, b in zip(tensors(one), tensors(other), strict=True))


def test_turned_shapes_and_range(turned: DomainPair) -> None:
    for part, rows in (
        (turned.source, 1397),
        (turned.target, 1397),
        (turned.source_test, 400),
        (turned.target_test, 400),
    ):
        assert part.x.shape == (rows, 1, 8, 8)
        assert part.x.dtype == torch.float32
        assert part.y.shape == (rows,)
        assert part.y.dtype == torch.int64
        assert part.x.min() == 0.0
        assert part.x.max() <= 1.0
    assert turned.classes == 10
    assert set(turned.source.y.tolist()) == set(range(10))


def test_training_and_test_are_all_the_digits_once(turned: DomainPair) -> None:
    together = torch.cat([turned.source.x, turned.source_test.x]).flatten(1)
    everything = scans()[0].flatten(1)
    assert sorted(together.tolist()) == sorted(everything.tolist())


def test_the_target_is_each_source_digit_turned(turned: DomainPair) -> None:
    assert torch.equal(turned.source.y, turned.target.y)
    one = rotate(turned.source.x[7, 0].numpy(), 30.0, reshape=False, order=1).clip(0.0, 1.0)
    torch.testing.assert_close(turned.target.x[7, 0], torch.from_numpy(one))


def test_a_quarter_turn_is_exact_and_anticlockwise() -> None:
    pair = Digits(angle=90.0).load()
    torch.testing.assert_close(pair.target.x, pair.source.x.rot90(1, dims=(2, 3)))


def test_blended_shapes_and_range(blended: DomainPair) -> None:
    for part, rows in (
        (blended.source, 2794),
        (blended.target, 2794),
        (blended.source_test, 400),
        (blended.target_test, 400),
    ):
        assert part.x.shape == (rows, 3, 28, 28)
        assert part.x.dtype == torch.float32
        assert part.x.min() >= 0.0
        assert part.x.max() <= 1.0
        assert part.y.shape == (rows,)
    grey = blended.source.x
    assert torch.equal(grey[:, 0], grey[:, 1])
    assert torch.equal(grey[:, 0], grey[:, 2])


def test_copies_of_a_digit_differ_and_add_to_the_first(blended: DomainPair) -> None:
    first, second = blended.source.x.tensor_split(2)
    assert torch.equal(blended.source.y[:1397], blended.source.y[1397:])
    assert not torch.equal(first, second)
    single = Digits(kind="blended", copies=1).load()
    assert torch.equal(single.source.x, first)
    assert torch.equal(single.target.x, blended.target.x[:1397])


def test_the_target_is_the_difference_with_a_patch(blended: DomainPair) -> None:
    blank = blended.source.x == 0.0
    patch = blended.target.x[blank][:100_000]
    assert len(set(patch.tolist())) > 100, "where there is no digit, the photograph shows"
    assert (blended.target.x - blended.source.x).abs().mean() > 0.1


@pytest.mark.parametrize("kind", ["turned", "blended"])
def test_no_test_digit_is_in_the_training_rows(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Each digit is a flat grey of its own, which the middle of any copy still shows.
    grey = torch.arange(1, DIGITS + 1) / 2000.0
    monkeypatch.setattr(digits, "scans", lambda: (grey.reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8), scans()[1]))
    pair = Digits(kind=kind).load()
    middle = slice(pair.source.x.shape[-1] // 2, pair.source.x.shape[-1] // 2 + 1)

    def shown(x: Tensor) -> set[int]:
        return set((x[:, 0, middle, middle].flatten() * 2000.0).round().long().tolist())

    training, test = shown(pair.source.x), shown(pair.source_test.x)
    assert (len(training), len(test)) == (1397, 400)
    assert not training & test


@pytest.mark.parametrize("kind", ["turned", "blended"])
def test_same_options_same_pixels_and_the_seed_matters(kind: Any) -> None:
    options: dict[str, Any] = {"kind": kind, "test_rows": 1500}
    assert equal(Digits(**options).load(), Digits(**options).load())
    assert not equal(Digits(**options).load(), Digits(**options, seed=1).load())


def test_other_sizes() -> None:
    pair = Digits(kind="blended", size=16, copies=1, test_rows=1700).load()
    assert pair.source.x.shape == (97, 3, 16, 16)
    assert pair.target_test.x.shape == (1700, 3, 16, 16)


def test_poses_and_patches_belong_to_their_position() -> None:
    images = torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    position = torch.tensor([3, 1, 4, 1, 5])
    both = pose_images(images, position, size=20, seed=2)
    torch.testing.assert_close(both[2:3], pose_images(images[2:3], position[2:3], size=20, seed=2))
    photographs = torch.arange(2 * 30 * 40 * 3).remainder(256).to(torch.uint8).reshape(2, 30, 40, 3)
    cut = patches(photographs, position, size=30, seed=2)
    assert torch.equal(cut[1], cut[3])
    windows = photographs.unfold(2, 30, 1).permute(0, 2, 3, 1, 4).reshape(-1, 3, 30, 30) / 255.0
    assert all(any(torch.equal(patch, window) for window in windows) for patch in cut)


def test_posing_keeps_the_digit_in_the_picture() -> None:
    images, _ = scans()
    whole = pose_images(images, torch.arange(DIGITS), size=28, seed=0).mean(dim=(1, 2, 3))
    share = whole / images.mean(dim=(1, 2, 3))
    assert share.min() > 0.8**2 - 0.05
    assert share.max() < 1.05


def test_without_pillow_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FedmmError, match="need Pillow"):
        Digits(kind="blended", copies=1, test_rows=1700).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "tilted"}, "kind must be one of turned, blended, not 'tilted'"),
        ({"angle": 400.0}, "angle must be between -360 and 360"),
        ({"angle": "30"}, "angle must be a number"),
        ({"test_rows": 0}, "test_rows must be at least 1"),
        ({"test_rows": 1797}, "test_rows must be below 1797"),
        ({"test_rows": 400.0}, "test_rows must be a whole number"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"kind": "blended", "size": 7}, "size must be at least 8"),
        ({"kind": "blended", "size": 428}, "size must be at most 427"),
        ({"kind": "blended", "copies": 0}, "copies must be at least 1"),
        # 1,797 digits x 3 x 28 x 28 values make 946 copies before 4,000,000,000
        ({"kind": "blended", "copies": 947}, "copies must be at most 946 at size 28, not 947"),
        ({"kind": "blended", "angle": 45.0}, "angle is an option of kind 'turned'; leave it out with kind 'blended'"),
        ({"copies": 2}, "copies is an option of kind 'blended'; leave it out with kind 'turned'"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=re.escape(message)):
        Digits(**options)
