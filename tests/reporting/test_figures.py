"""Figures are PNGs of a sane size for every kind of run, and show what the files hold."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fedmm.reporting
from fedmm.core.errors import FedmmError
from fedmm.reporting import draw_comparison, draw_run, read_comparison, style
from fedmm.reporting.curves import column_curve
from fedmm.reporting.strips import pixels
from fedmm.reporting.style import spread_apart, strokes


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the usual resolution, for speed."""
    monkeypatch.setattr(style, "DPI", 50)


def _check_png(paths: Sequence[Path], expected: Path) -> float:
    """The drawn file is the expected one, a PNG ten inches wide on white that holds more than white; its height."""
    assert list(paths) == [expected]
    with Image.open(expected) as image:
        assert image.format == "PNG"
        colours = np.asarray(image.convert("RGB"))
    height, width, _ = colours.shape
    assert width == 10 * style.DPI
    assert (colours[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()
    assert colours.std() > 5
    inches = float(height / style.DPI)
    assert 4 < inches < 30
    return inches


def test_a_figure_has_twice_the_width_of_a_readme(folders: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (path,) = draw_run(folders.run())
    with Image.open(path) as image:
        assert image.width == 2000


@pytest.mark.parametrize(
    "accuracies", [(0.5, None, 0.75), (0.5,), (None, None), ()], ids=["usual", "one round", "no accuracy", "no round"]
)
def test_a_run_is_drawn(folders: Any, accuracies: Sequence[float | None]) -> None:
    folder = folders.run(accuracies=accuracies)
    _check_png(draw_run(folder), folder / "rounds.png")


def test_a_run_that_stopped_is_drawn(folders: Any) -> None:
    folder = folders.run(status="diverged", objective="source_only")
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 4, "drift": Infinity, "consensus_gap": 3e38, "dual_norm": NaN}\n{"rou')
    _check_png(draw_run(folder), folder / "rounds.png")


@pytest.mark.parametrize("seeds", [1, 3])
def test_a_comparison_without_samples_is_its_curves(folders: Any, seeds: int) -> None:
    series = [[0.3, None, 0.5 + 0.1 * seed] for seed in range(seeds)]
    folder = folders.comparison({"FedMM": series, "FedAvgGDA": series, "source only": series})
    assert _check_png(draw_comparison(folder), folder / "comparison.png") < 6


@pytest.mark.parametrize("channels", [1, 3])
def test_a_comparison_shows_images(folders: Any, add_images: Callable[..., None], channels: int) -> None:
    folder = folders.comparison({"FedMM": [[0.3, 0.9]], "source only": [[0.3, 0.5]]})
    add_images(folder / "runs/1", channels=channels)
    assert _check_png(draw_comparison(folder), folder / "comparison.png") > 7


@pytest.mark.parametrize("count", [1, 40])
def test_any_number_of_images_fits(folders: Any, add_images: Callable[..., None], count: int) -> None:
    folder = folders.comparison({"FedMM": [[0.3, 0.9]]})
    add_images(folder / "runs/0", count=count)
    _check_png(draw_comparison(folder), folder / "comparison.png")


@pytest.mark.parametrize("flat", [None, 1.0, float("nan")], ids=["line", "all 1", "not finite"])
def test_a_comparison_shows_boundaries(folders: Any, add_plane: Callable[..., None], flat: float | None) -> None:
    folder = folders.comparison({"FedMM": [[0.3, 0.9], [0.3, 0.8]], "source only": [[0.3, 0.5]]})
    for run in range(3):
        add_plane(folder / f"runs/{run}", flat=flat)
    assert _check_png(draw_comparison(folder), folder / "comparison.png") > 8


def test_many_long_names_make_the_figure_taller(folders: Any, add_plane: Callable[..., None]) -> None:
    labels = [f"method {i} with a name that is much longer than a name should be, $and_ an odd one" for i in range(12)]
    folder = folders.comparison({label: [[0.3, 0.9]] for label in labels})
    add_plane(folder / "runs/0")
    lines, inches_a_line = 12 * 4, 0.2
    assert _check_png(draw_comparison(folder), folder / "comparison.png") > lines * inches_a_line


def test_labels_that_were_never_measured_are_drawn(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.3, 0.9], [None, None]], "FedAvgGDA": [[None, None]]})
    _check_png(draw_comparison(folder), folder / "comparison.png")


def test_a_figure_depends_on_the_files_alone(folders: Any) -> None:
    folder = folders.run()
    (path,) = draw_run(folder)
    first = path.read_bytes()
    draw_run(folder)
    assert path.read_bytes() == first


def test_a_place_that_cannot_be_written_is_named(folders: Any) -> None:
    folder = folders.run()
    (folder / "rounds.png").mkdir()
    with pytest.raises(FedmmError, match=r"rounds\.png is a folder"):
        draw_run(folder)


def test_the_mean_covers_the_rounds_that_all_seeds_measured(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.2, None, 0.6, 0.8], [0.4, 0.5, 0.8], [None]]})
    curve = column_curve(read_comparison(folder).runs, "target_accuracy", 100.0)
    assert curve.rounds == [1, 3]
    assert curve.mean == pytest.approx([30, 70])
    assert curve.low == pytest.approx([20, 60])
    assert curve.high == pytest.approx([40, 80])
    assert [run.rounds for run in curve.runs] == [[1, 3, 4], [1, 2, 3]]
    assert curve.end == pytest.approx((4, 80))


def test_colours_are_fixed_and_labels_of_one_algorithm_stay_apart(folders: Any) -> None:
    labels = ["source only", "FedMM", "FedAvgGDA", *(f"FedMM, mu = {i}" for i in range(11))]
    found = strokes(read_comparison(folders.comparison({label: [[0.5]] for label in labels})).groups())
    assert [found[label].colour for label in labels[:3]] == ["#8C8C8C", "#D55E00", "#0072B2"]
    assert len({(stroke.colour, stroke.dash) for stroke in found.values()}) == len(labels)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ([1.0, 5.0], [1.0, 5.0]),  # far apart: where they want to be
        ([5.0, 5.0], [4.5, 5.5]),  # both want 5: half a height to each side
        ([9.8, 9.9, 0.0], [8.0, 9.0, 0.0]),  # against the lower end
        ([-3.0, 0.2], [0.0, 1.0]),  # against the upper end
    ],
)
def test_names_are_moved_apart_no_more_than_needed(wanted: list[float], expected: list[float]) -> None:
    assert spread_apart(wanted, [1.0] * len(wanted), 10.0) == pytest.approx(expected)


def test_names_never_overlap_where_they_fit() -> None:
    draws = np.random.default_rng(0)
    for _ in range(200):
        heights = draws.uniform(0.2, 1.0, size=10)
        wanted = draws.uniform(-1, 11, size=10)
        edges = np.array(spread_apart(wanted.tolist(), heights.tolist(), 10.0))
        order = np.argsort(wanted)
        assert (edges[order][1:] >= (edges + heights)[order][:-1] - 1e-9).all()
        assert edges.min() >= 0
        assert (edges + heights).max() <= 10 + 1e-9


def test_pixels_are_colours_whatever_the_scale() -> None:
    grey = pixels(np.array([[[[-2.0, 2.0]]]]))
    assert grey.tolist() == [[[[0.0] * 3, [1.0] * 3]]]
    assert pixels(np.full((1, 3, 1, 1), 51, dtype=np.uint8)).tolist() == [[[[0.2] * 3]]]
    assert pixels(np.full((1, 3, 1, 1), 0.25)).tolist() == [[[[0.25] * 3]]]
    assert pixels(np.full((2, 1, 4, 5), 7.0)).shape == (2, 4, 5, 3)


def test_the_public_face_is_sorted_and_the_room_reads_files_only() -> None:
    assert fedmm.reporting.__all__ == sorted(fedmm.reporting.__all__)
    assert all(hasattr(fedmm.reporting, name) for name in fedmm.reporting.__all__)
    (folder,) = fedmm.reporting.__path__
    imported = {
        node.module
        for path in Path(folder).glob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module is not None
    }
    ours = {name for name in imported if name.startswith("fedmm")}
    assert all(name.startswith(("fedmm.core.", "fedmm.reporting.")) for name in ours)
    assert "matplotlib.pyplot" not in imported
