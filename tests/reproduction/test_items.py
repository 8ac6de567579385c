"""An item is read as it stands in its folder, and what is wrong with it is said in one sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmm.core.errors import FedmmError
from fedmm.reproduction import read_item

TABLE = """
title = "Table 1"
form = "accuracy_table"
panels = ["a_w", "d_w"]
curves = ["dann_fedavg_gda", "dann_fedmm", "source_only"]
seeds = [0, 1, 2]   # for the runner
[panel.a_w]
title = "A → W"
[columns_of]
dann = ["dann_fedavg_gda", "dann_fedmm"]
[paper.accuracy]
a_w.dann_fedmm = 65.5
d_w.dann_fedmm = 90
[paper.rounds]
a_w.dann_fedmm = 13
"""


def test_an_item_reads_back(paper: Any) -> None:
    item = read_item(paper.item(TABLE, "table_1"))
    assert (item.name, item.title, item.form, item.columns) == ("table_1", "Table 1", "accuracy_table", 3)
    assert item.panels == ("a_w", "d_w")
    assert (item.panel_title("a_w"), item.panel_title("d_w")) == ("A → W", "d_w")
    assert item.columns_of == {"dann": ("dann_fedavg_gda", "dann_fedmm")}
    assert item.paper_accuracy == {("a_w", "dann_fedmm"): 65.5, ("d_w", "dann_fedmm"): 90.0}
    assert item.paper_rounds == {("a_w", "dann_fedmm"): 13.0}


def test_every_listed_curve_is_expected_of_a_panel_without_files(paper: Any) -> None:
    curves = ["dann_fedavg_gda", "dann_fedmm", "source_only"]
    item = read_item(paper.item(TABLE, "table_1"))
    assert item.expected() == [(panel, curve) for panel in ("a_w", "d_w") for curve in curves]


def test_the_files_of_a_panel_are_what_is_expected_of_it(paper: Any) -> None:
    folder = paper.item('title = ""\nform = "curves"\npanels = ["p", "q"]\ncurves = ["b", "a"]')
    (folder / "p").mkdir()
    for name in ("a", "b", "panel", "z"):
        (folder / "p" / f"{name}.toml").touch()
    assert read_item(folder).expected() == [("p", "b"), ("p", "a"), ("p", "z"), ("q", "b"), ("q", "a")]


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("title = ", "not valid TOML"),
        ('title = 1\nform = "curves"\npanels = ["p"]', "'title' as text"),
        ('title = ""\nform = "pie"\npanels = ["p"]', "'form' as one of curves, rates"),
        ('title = ""\nform = "curves"', "at least one of its 'panels'"),
        ('title = ""\nform = "curves"\npanels = "p"', "'panels' as a list of names"),
        ('title = ""\nform = "curves"\npanels = ["p"]\ncolumns = 0', "'columns' as a whole number"),
        ('title = ""\nform = "curves"\npanels = ["p"]\nx = "cubic"', "'x' as one of linear, log"),
        ('title = ""\nform = "curves"\npanels = ["p"]\npanel.p = 3', "'panel.p' as a table"),
        (
            'title = ""\nform = "curves"\npanels = ["p"]\npaper.accuracy.p.c = "x"',
            "'paper.accuracy.p.c' as a finite number",
        ),
    ],
)
def test_what_is_wrong_is_named(paper: Any, toml: str, words: str) -> None:
    with pytest.raises(FedmmError) as error:
        read_item(paper.item(toml))
    message = str(error.value)
    assert "item.toml" in message
    assert words in message
    assert "\n" not in message


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"nowhere/item\.toml is missing"):
        read_item(tmp_path / "nowhere")
