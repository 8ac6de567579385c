"""Every number of a table can be worked out by hand from the results."""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import pytest

from fedmm.reproduction import Item, draw_item, read_item, read_results
from fedmm.reproduction.tables import accuracy_grids, markdown, method_columns, rounds_grids

ITEM = """
title = "Table 1: target accuracy on Office-31"
form = "FORM"
panels = ["a_w", "d_w"]
curves = ["dann_fedavg_gda", "mdd_fedavg_gda", "dann_fedmm", "mdd_fedmm", "source_only"]
[panel.a_w]
title = "A → W"
[panel.d_w]
title = "D → W"
[columns_of]
dann = ["dann_fedavg_gda", "dann_fedmm"]
mdd = ["mdd_fedavg_gda", "mdd_fedmm"]
[paper.accuracy.a_w]
dann_fedmm = 65.5
[paper.accuracy.d_w]
dann_fedmm = 89.6
[paper.rounds.a_w]
dann_fedmm = 7.5
mdd_fedmm = 23
"""


def _runs(line: Any, **values: Any) -> list[dict[str, Any]]:
    about = {"item": "table_1", **values}
    return [
        line("a_w", "dann_fedmm", [0.2, 0.7], label="FedMM", **about),
        line("a_w", "dann_fedmm", [0.795, 0.8], label="FedMM", seed=1, **about),
        line("d_w", "dann_fedmm", [0.9], label="FedMM", **about),
        line("a_w", "dann_fedavg_gda", [0.6], label="FedAvgGDA", status="diverged", **about),
        line("d_w", "dann_fedavg_gda", [], label="FedAvgGDA", status="diverged", **about),
        line("a_w", "mdd_fedmm", [0.8], label="FedMM", objective="mdd", **about),
        line("a_w", "source_only", [0.5], label="source only", role="bound", **about),
    ]


@pytest.fixture
def item(paper: Any) -> Item:
    return read_item(paper.item(ITEM.replace("FORM", "accuracy_table"), "table_1"))


def test_columns_are_grouped_by_method_and_ordered_by_objective(item: Item) -> None:
    columns = method_columns(item, [])
    assert [(column.group, column.heading) for column in columns] == [
        ("FedAvgGDA", "DANN"),
        ("FedAvgGDA", "MDD"),
        ("FedMM", "DANN"),
        ("FedMM", "MDD"),
    ]


def test_accuracies(paper: Any, line: Any, item: Item) -> None:
    methods, bounds = accuracy_grids(item, read_results(paper.write(*_runs(line))))
    (first, second, average) = methods.rows
    ours = first.numbers[2]
    assert ours.value == pytest.approx(75.0)
    assert ours.spread == pytest.approx(5 * sqrt(2))  # deviations of 5 on both sides, n - 1 = 1
    assert (ours.paper, ours.best, ours.diverged) == (65.5, True, False)
    assert [number.best for number in first.numbers] == [False, False, True, False]  # MDD has no rival
    assert (second.numbers[0].value, second.numbers[0].diverged) == (None, True)
    assert average.numbers[2].value == pytest.approx((75 + 90) / 2)
    assert average.numbers[2].paper == pytest.approx((65.5 + 89.6) / 2)
    assert (average.numbers[3].value, average.numbers[3].share) == (pytest.approx(80.0), "1 of 2")
    assert [row.numbers[0].value for row in bounds.rows] == [50.0, None, 50.0]


def test_markdown(paper: Any, line: Any, item: Item) -> None:
    methods, bounds = accuracy_grids(item, read_results(paper.write(*_runs(line))))
    text = markdown(methods)
    assert text.splitlines()[:5] == [
        "|  | FedAvgGDA<br>DANN | FedAvgGDA<br>MDD | FedMM<br>DANN | FedMM<br>MDD |",
        "| :-- | --: | --: | --: | --: |",
        "| A → W | 60.0† | – | **75.0 ± 7.1** (65.5) | 80.0 |",  # noqa: RUF001
        "| D → W | diverged | – | 90.0 (89.6) | – |",  # noqa: RUF001
        "| Average | 60.0† [1 of 2] | – | 82.5 (77.5) | 80.0 [1 of 2] |",  # noqa: RUF001
    ]
    assert "– not computed." in text  # noqa: RUF001
    assert "A → W FedAvgGDA DANN (1 of 1), D → W FedAvgGDA DANN (1 of 1)." in text
    assert "| A → W | 50.0 |" in markdown(bounds)


def test_rounds_until_within_one_point_of_the_end(paper: Any, line: Any) -> None:
    item = read_item(paper.item(ITEM.replace("FORM", "rounds_table"), "table_1"))
    (grid,) = rounds_grids(item, read_results(paper.write(*_runs(line))))
    # Seed 0 is there at round 50. Seed 1 is half a point below its end at round 25, which is near enough.
    assert grid.rows[0].numbers[2].value == pytest.approx((0.50 + 0.25) / 2)
    text = markdown(grid)
    assert "| 0.38 ± 0.18 (7.5) | 0.25 (23) |" in text
    assert "within 1 point of the run's final accuracy" in text


def test_a_table_made_of_another_items_runs(paper: Any, line: Any) -> None:
    paper.write(*_runs(line))
    toml = ITEM.replace("FORM", "rounds_table").replace("panels", 'runs_of = "table_1"\npanels')
    paths = draw_item(paper.item(toml, "table_2"), paper.results, paper.out)
    assert [path.name for path in paths] == ["table_2.svg", "table_2.png", "table_2.md"]
    page = paths[-1].read_text("utf-8")
    assert "0.38 ± 0.18 (7.5)" in page
    assert "fedmm reproduce table_1" not in page  # the runs themselves say which command made them


def test_a_table_is_drawn_before_anything_is_computed(paper: Any) -> None:
    paper.results.touch()
    folder: Path = paper.item(ITEM.replace("FORM", "accuracy_table"), "table_1")
    page = draw_item(folder, paper.results, paper.out)[-1].read_text("utf-8")
    assert "| A → W | – | – | – (65.5) | – |" in page  # noqa: RUF001
    assert "- A → W: everything not computed" in page
    assert "    fedmm reproduce table_1\n" in page
