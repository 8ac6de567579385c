"""Figures hold what the results hold, and say what is not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import fedmm.reproduction
from fedmm.core.errors import FedmmError
from fedmm.reporting import style
from fedmm.reporting.curves import Curve
from fedmm.reproduction import draw_item, read_item, read_results
from fedmm.reproduction.figures import draw_curves, first_reach
from fedmm.reproduction.panels import paper_strokes

ITEM = """
title = "Figure 5: FedMM beside FedAvgGDA"
form = "curves"
columns = 2
panels = ["one", "two"]
curves = ["fedmm", "fedavg_gda", "source_only"]
[panel.one]
title = "DANN, 1 source / 1 target client"
"""
RATES = ITEM.replace('"curves"', '"rates"\nx = "log"')


@pytest.fixture(autouse=True)
def _coarse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the usual resolution, for speed."""
    monkeypatch.setattr(style, "DPI", 50)


def _texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text)]


def _figure(paper: Any, toml: str = ITEM) -> Figure:
    return draw_curves(read_item(paper.item(toml)), read_results(paper.results))


def test_a_figure_is_written_in_three_forms_that_depend_on_the_results_alone(paper: Any, line: Any) -> None:
    paper.write(line("one", "fedmm", [0.5, 0.9], label="FedMM"))
    folder = paper.item(ITEM)
    paths = draw_item(folder, paper.results, paper.out)
    assert paths == [paper.out / name for name in ("figure_5.svg", "figure_5.png", "figure_5.md")]
    first = [path.read_bytes() for path in paths]
    assert [path.read_bytes() for path in draw_item(folder, paper.results, paper.out)] == first
    drawn = re.findall("<!-- (.*?) -->", first[0].decode())
    assert {"FedMM", "not computed", "(a) DANN, 1 source / 1 target client", "(b) two"} <= set(drawn)
    assert first[1].startswith(b"\x89PNG")


def test_the_page_says_how_it_was_made_and_what_is_missing(paper: Any, line: Any) -> None:
    diverged = line("one", "fedmm", [0.5, None], label="FedMM", seed=1, status="diverged", rounds=3000)
    lines = [line("one", "fedmm", [0.9], label="FedMM"), diverged, line("one", "fedavg_gda", [0.6])]
    page = draw_item(paper.item(ITEM), paper.write(*lines), paper.out)[-1].read_text("utf-8")
    for words in (
        "![Figure 5: FedMM beside FedAvgGDA](figure_5.svg)",
        "| DANN, 1 source / 1 target client | FedMM | 2 | 70.0 | 50.0 to 90.0 |",
        "    fedmm reproduce figure_5\n",
        "- runs: 3, seeds 0, 1\n",
        "- seconds: 38 in all, 12.5 a run\n",
        "- hardware: gpu NVIDIA H200, cpus 16\n",
        "- versions: fedmm 0.1.0, torch 2.11.0\n",
        "- commit: `abc1234`\n",
        "- DANN, 1 source / 1 target client: `source_only` not computed\n",
        "- two: everything not computed\n",
        "- fewer than 2 seeds: DANN, 1 source / 1 target client `fedavg_gda`\n",
        "FedMM, seed 1: diverged; last measured in round 25\n",
    ):
        assert words in page, words


def test_nothing_is_missing_when_all_is_there(paper: Any, line: Any) -> None:
    curves = {"fedmm": "method", "fedavg_gda": "method", "source_only": "bound"}
    paper.write(*(line(panel, curve, [0.5], role=role) for panel in ("one", "two") for curve, role in curves.items()))
    page = draw_item(paper.item(ITEM), paper.results, paper.out)[-1].read_text("utf-8")
    assert page.endswith("## What is missing\n\nNothing: all runs completed.\n")


def test_panels_stand_in_order_on_one_scale(paper: Any, line: Any) -> None:
    paper.write(*(line(panel, "fedmm", [0.5, 0.6]) for panel in ("unlisted", "two", "one")))
    figure = _figure(paper)
    assert len(figure.axes) == 3
    assert all(axes.get_ylim() == (0, 100) for axes in figure.axes)
    titles = [text for text in _texts(figure) if text.startswith("(")]
    assert titles == ["(a) DANN, 1 source / 1 target client", "(b) two", "(c) unlisted"]


def test_a_line_is_the_mean_over_seeds_in_a_band(paper: Any, line: Any) -> None:
    paper.write(line("one", "fedmm", [0.2, 0.6]), line("one", "fedmm", [0.4, 0.8], seed=1))
    axes = _figure(paper).axes[0]
    assert list(axes.lines[0].get_ydata()) == pytest.approx([30, 70])
    assert len(axes.collections) == 1


def test_a_run_that_diverged_ends_with_a_cross(paper: Any, line: Any) -> None:
    paper.write(line("one", "fedmm", [0.2, 0.6, None], status="diverged"), line("two", "fedmm", [0.4]))
    figure = _figure(paper)
    crosses = [drawn for axes in figure.axes for drawn in axes.lines if drawn.get_marker() == "X"]
    assert [(list(cross.get_xdata()), list(cross.get_ydata())) for cross in crosses] == [([50], [60])]
    assert "diverged" in _texts(figure)


def test_a_bound_is_a_labelled_level(paper: Any, line: Any) -> None:
    about = {"role": "bound", "label": "source only"}
    paper.write(line("one", "source_only", [0.5], **about), line("one", "source_only", [0.6], seed=1, **about))
    figure = _figure(paper)
    (level,) = figure.axes[0].lines
    assert list(level.get_ydata()) == pytest.approx([55, 55])
    assert {"source only 55.0", "bound"} <= set(_texts(figure))


def test_rates_say_when_fedsgdas_final_accuracy_is_reached(paper: Any, line: Any) -> None:
    slow = line("one", "fedsgda", [0.1, 0.2, 0.3, 0.5], label="FedSGDA")
    lines = [slow, line("one", "fedmm", [0.2, 0.6, 0.9], label="FedMM"), line("one", "x", [0.4], algorithm="fedmm")]
    paper.write(*lines, line("two", "fedmm", [0.4], label="FedMM"))
    figure = _figure(paper, RATES)
    assert figure.axes[0].get_xscale() == "log"
    texts = _texts(figure)
    start = texts.index("first reaches 50.0 % in round")
    assert texts[start : start + 7] == [texts[start], "FedMM", "50", "FedSGDA", "100", "x", "not reached"]
    assert "FedSGDA: not computed" in texts
    page = draw_item(paper.root / "paper" / "figure_5", paper.results, paper.out)[-1].read_text("utf-8")
    assert "| DANN, 1 source / 1 target client | 50.0 | 50 | 100 | not reached |" in page


def test_a_level_counts_as_reached_when_it_is_met() -> None:
    curve = Curve([1, 2, 3], [10.0, 50.0, 40.0], [], [], [])
    assert [first_reach(curve, level) for level in (5, 50, 50.1)] == [1, 2, None]


def test_labels_stay_apart_without_colour(paper: Any, line: Any) -> None:
    names = ["fedavg_gda", "fedmm", "fedprox_gda", "scaffold_gda", "fedsgda"]
    strokes = paper_strokes(read_results(paper.write(*(line("one", name, [0.5]) for name in names))))
    assert len({stroke.dash for stroke in strokes.values()}) == len({stroke.colour for stroke in strokes.values()}) == 5
    assert (strokes["fedmm"].dash, strokes["fedmm"].colour) == ("-", "#D55E00")


def test_curves_of_one_method_run_through_a_colour_map(paper: Any, line: Any) -> None:
    lines = [line("one", f"p_{p}", [0.5], label=f"p = 0.{p}", algorithm="fedavg_gda") for p in range(5, 10)]
    strokes = paper_strokes(read_results(paper.write(*lines)))
    lightness = [sum(int(stroke.colour[i : i + 2], 16) for i in (1, 3, 5)) for stroke in strokes.values()]
    assert lightness == sorted(lightness)
    assert len(set(lightness)) == 5


def test_full_runs_go_before_those_of_a_smaller_scale(paper: Any, line: Any) -> None:
    folder = paper.item(ITEM)
    paper.write(line("one", "fedmm", [0.2], scale="quick"))
    page = draw_item(folder, paper.results, paper.out)[-1]
    assert "- scale: quick (not the paper's size)" in page.read_text("utf-8")
    paper.write(line("one", "fedmm", [0.9]), line("one", "fedmm", [0.2], scale="quick"))
    draw_item(folder, paper.results, paper.out)
    assert "| FedMM | 1 | 90.0 |".lower() in page.read_text("utf-8")
    assert "20.0" not in page.read_text("utf-8")


def test_results_of_another_item_are_refused(paper: Any, line: Any) -> None:
    folder, results = paper.item(ITEM), paper.write(line("one", "fedmm", [0.5], item="figure_4"))
    with pytest.raises(FedmmError, match=r"holds runs of figure_4 and none of figure_5"):
        draw_item(folder, results, paper.out)


def test_a_place_that_cannot_be_written_is_named(paper: Any, line: Any) -> None:
    paper.out.touch()
    folder, results = paper.item(ITEM), paper.write(line("one", "fedmm", [0.5]))
    with pytest.raises(FedmmError, match=r"figure_5\.md cannot be written"):
        draw_item(folder, results, paper.out)


@pytest.mark.parametrize("accuracies", [[], [None, None], [0.5]], ids=["no round", "no accuracy", "one round"])
@pytest.mark.parametrize("toml", [ITEM, RATES], ids=["curves", "rates"])
def test_runs_of_any_length_are_drawn(paper: Any, line: Any, accuracies: list[float | None], toml: str) -> None:
    paper.write(line("one", "fedmm", accuracies, status="diverged"), line("two", "fedsgda", accuracies))
    assert all(path.stat().st_size for path in draw_item(paper.item(toml), paper.results, paper.out))


def test_the_public_face_is_sorted_and_all_but_running_reads_files_only() -> None:
    assert fedmm.reproduction.__all__ == sorted(fedmm.reproduction.__all__)
    (folder,) = fedmm.reproduction.__path__
    reading = [path for path in Path(folder).glob("*.py") if path.stem not in ("plan", "run", "write_results")]
    imported = re.findall(r"^ *(?:from|import) (\S+)", "\n".join(path.read_text() for path in reading), re.M)
    ours = {name for name in imported if name.startswith("fedmm")}
    rooms = ("fedmm.reporting.", *(f"fedmm.reproduction.{path.stem}" for path in reading))
    assert all(
        name in ("fedmm.core.errors", "fedmm.core.files", "fedmm.core.files") or name.startswith(rooms) for name in ours
    )
    assert not {"torch", "matplotlib.pyplot"} & set(imported)
