"""NumPy archives as data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.arrays import Arrays
from fedmm.data.domains import DomainPair
from fedmm.data.labels import UNLABELLED

X, Y, T = np.arange(40.0).reshape(20, 2), np.arange(20) % 2, -np.arange(12.0).reshape(6, 2)
GIVEN: dict[str, Any] = {"source_x": X, "source_y": Y, "target_x": T}


def load(folder: Path, options: dict[str, Any] | None = None, **changed: Any) -> DomainPair:
    given = {name: array for name, array in (GIVEN | changed).items() if array is not None}
    np.savez(folder / "data.npz", **given)
    return Arrays(**{"file": str(folder / "data.npz"), "standardise": False, **(options or {})}).load()


def refusal(folder: Path, options: dict[str, Any] | None = None, **changed: Any) -> str:
    with pytest.raises(FedmmError) as refused:
        load(folder, options, **changed)
    return str(refused.value)


def test_an_archive_without_labels_of_the_target(tmp_path: Path) -> None:
    pair = load(tmp_path)
    assert pair.class_names == ("0", "1")
    assert pair.source.x.dtype == torch.float32
    assert len(pair.source.y) == 18
    assert pair.source_validation is pair.source_test
    assert sorted(torch.cat([pair.source.x, pair.source_test.x]).tolist()) == X.tolist()
    assert pair.target.x.tolist() == T.tolist()
    assert pair.target.y.tolist() == [UNLABELLED] * 6
    assert pair.target_test is None
    assert pair.sites is None


def test_numbers_are_standardised_by_the_training_rows(tmp_path: Path) -> None:
    given = {"source_x": np.c_[X, np.full(20, 7.0)], "target_x": np.c_[1e6 * T, np.full(6, 7.0)]}
    pair = load(tmp_path, {"standardise": True}, **given)
    train = torch.cat([pair.source.x, pair.target.x]).double()
    assert train.mean(dim=0).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    assert train.std(dim=0, correction=0).tolist() == pytest.approx([1.0, 1.0, 0.0], rel=1e-6)
    assert pair.input is not None
    assert torch.equal(pair.input.read(tmp_path / "data.npz").x, pair.target.x)


def test_labels_of_the_target_are_tested_by(tmp_path: Path) -> None:
    y = np.array([0, 1, -1, 1, 0, -1])
    pair = load(tmp_path, target_y=y)
    assert pair.target.y.tolist() == y.tolist()
    assert pair.target_test is not None
    assert pair.target_test.y.tolist() == [0, 1, 1, 0]
    assert pair.target_test.x.tolist() == T[y >= 0].tolist()


def test_some_of_them_may_be_for_testing_alone(tmp_path: Path) -> None:
    pair = load(tmp_path, {"target_held_out": 0.5}, target_y=np.array([0, 1, 0, 1, 0, 1]))
    assert pair.target_test is not None
    assert pair.target_test.y.tolist() == [0, 1, 0, 1]
    both = torch.cat([pair.target.x, pair.target_test.x]).tolist()
    assert sorted(both) == sorted(T.tolist())


def test_rows_to_test_on_stand_instead(tmp_path: Path) -> None:
    given = {"target_test_x": T[:2], "target_test_y": np.array([1, 1]), "target_y": np.zeros(6)}
    pair = load(tmp_path, {"target_held_out": 0.5}, **given)
    assert len(pair.target.y) == 6
    assert pair.target_test is not None
    assert (pair.target_test.x.tolist(), pair.target_test.y.tolist()) == (T[:2].tolist(), [1, 1])


def test_an_archive_for_each_domain(tmp_path: Path) -> None:
    np.savez(tmp_path / "here.npz", x=X, y=np.where(Y, "yes", "no"))
    np.save(tmp_path / "there.npy", T)
    np.savez(tmp_path / "test.npz", x=T[:1], y=np.array(["yes"]))
    names = {"source": "here.npz", "target": "there.npy", "target_test": "test.npz"}
    pair = Arrays(**{option: str(tmp_path / name) for option, name in names.items()}, standardise=False).load()  # type: ignore[arg-type]
    assert pair.class_names == ("no", "yes")
    assert pair.target_test is not None
    assert pair.target_test.y.tolist() == [1]


def test_classes_may_be_named_and_need_not_all_occur(tmp_path: Path) -> None:
    pair = load(tmp_path, class_names=np.array(["b", "a", "c"]))
    assert pair.class_names == ("b", "a", "c")
    assert set(pair.source.y.tolist()) == {0, 1}


def test_classes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    pair = load(tmp_path, source_y=np.where(Y, 9, 10))
    assert pair.class_names == ("9", "10")


@pytest.mark.parametrize("shape", [(6, 3, 8, 8), (6, 8, 8, 3), (6, 8, 8, 1), (6, 8, 8)])
def test_pictures_get_their_channels_first(tmp_path: Path, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    pair = load(tmp_path, source_x=x, source_y=np.arange(6) % 2, target_x=x)
    channels = 3 if 3 in shape else 1
    assert pair.target.x.shape == (6, channels, 8, 8)
    assert pair.target.x.dtype == torch.uint8
    first = x[:, None] if x.ndim == 3 else x if shape[1] == 3 else x.transpose(0, 3, 1, 2)
    assert np.array_equal(pair.target.x.numpy(), first)
    assert pair.input is not None
    assert torch.equal(pair.input.read(tmp_path / "data.npz").x, pair.target.x)


def test_channels_that_could_be_anywhere_must_be_told(tmp_path: Path) -> None:
    for shape, words in (((6, 3, 8, 3), "may be first or last"), ((6, 8, 8, 8), "of which no side is")):
        x = np.zeros(shape, np.uint8)
        given = {"source_x": x, "source_y": np.arange(6) % 2, "target_x": x}
        assert words in refusal(tmp_path, **given)
        assert load(tmp_path, {"layout": "channels_last"}, **given).source.x.shape[1:] == (shape[3], *shape[1:3])


def test_sites_are_kept_for_the_rows_that_are_trained_on(tmp_path: Path) -> None:
    pair = load(tmp_path, source_site=np.array(["A"] * 19 + ["only"]), target_site=np.array([1, 2, 1, 2, 1, 2]))
    assert pair.sites is not None
    assert pair.sites.names == ("1", "2", "A", "only")
    assert pair.sites.source.tolist() == [2] * (len(pair.source.y) - 1) + [3]
    assert pair.sites.target.tolist() == [0, 1, 0, 1, 0, 1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"source_y": None}, "must hold an array 'source_y'"),
        ({"sourcex": X}, "holds an array 'sourcex'; known are source_x"),
        ({"source_y": Y[:5]}, "source_y has shape [5], but there are 20 rows"),
        ({"source_x": np.full((20, 2), np.inf)}, "source_x has a value that is NaN or infinite in row 0"),
        ({"target_x": np.array([[0.0, np.nan]])}, "target_x has a value that is NaN or infinite in row 0"),
        ({"target_x": T[:, :1]}, "target_x has rows of shape [1]; the model was trained on [2]"),
        ({"target_x": np.zeros((6, 2), np.uint8)}, "target_x holds uint8 values"),
        ({"source_y": np.full(20, 2.0**63)}, "source_y holds float64 values; use whole numbers or text"),
        ({"source_y": np.full(20, np.inf)}, "source_y holds float64 values; use whole numbers or text"),
        ({"source_y": np.zeros(20, int)}, "must have at least two classes"),
        ({"source_y": np.where(Y, -1, 1)}, "must have at least two classes"),
        ({"source_y": np.r_[[-1, 2], Y[2:]]}, "source_y has no label in row 0"),
        ({"target_y": np.arange(6)}, "target_y has a label '2', which is not one of the classes 0, 1"),
        ({"target_test_x": T}, "target_test_x and target_test_y go together"),
        ({"source_site": np.arange(20)}, "source_site and target_site go together"),
        ({"source_site": np.arange(3), "target_site": np.arange(6)}, "has 3 values, but there are 20 rows"),
        ({"source_site": np.array([""] * 20), "target_site": np.arange(6)}, "needs the name of its site"),
        ({"class_names": np.array(["a", "a"])}, "names a class twice"),
        ({"class_names": np.array(["a", "b"]), "source_y": Y + 1}, "label '2', which is not one of the classes a, b"),
        ({"source_x": X[:2], "source_y": Y[:2]}, "no row of the source can be held out"),
        ({"source_x": np.array([[1j, 0]] * 20)}, "must hold numbers"),
    ],
)
def test_archives_that_cannot_be_used_are_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    assert words in refusal(tmp_path, **changed)


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    for options in ({}, {"file": "a.npz", "source": "b.npz"}, {"source": str(tmp_path / "gone.npz")}):
        with pytest.raises(FedmmError):
            Arrays(**options).load()
    for options in ({"layout": "sideways"}, {"held_out": 0.0}, {"target_held_out": 1.0}, {"seed": -1}):
        with pytest.raises(FedmmError):
            Arrays(**options)  # type: ignore[arg-type]
