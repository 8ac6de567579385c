"""The real paper's folder: every file makes experiments at every scale, and every result is of one of them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
from doc_tables import rows_below

from fedmm.reproduction import draw_item
from fedmm.reproduction.items import FULL, Item, read_items
from fedmm.reproduction.plan import PaperRun, plan_runs
from fedmm.reproduction.results import RESULTS, identity, read_lines
from fedmm.reproduction.write_results import digest

PAPER = Path(__file__).parents[1] / "paper"
README = PAPER / "README.md"
CONFIRMED = PAPER.parent / "benchmarks" / "results" / "default" / "confirm"
ITEMS = read_items(PAPER)
OWN = {name: item for name, item in ITEMS.items() if item.runs_of == name}
SCALES = [(name, scale) for name, item in OWN.items() for scale in item.scales]

each_item = pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.name)
each_own = pytest.mark.parametrize("item", OWN.values(), ids=lambda item: item.name)


def test_every_figure_and_table_of_the_papers_experiments_is_there() -> None:
    assert ITEMS.keys() >= {"figure_2", "figure_4", "figure_5", "table_1", "table_2"}


def name_of(run: PaperRun) -> tuple[object, ...]:
    return (run.panel, run.curve, run.experiment.run.seed, run.scale)


@pytest.mark.parametrize(("name", "scale"), SCALES)
def test_every_file_makes_experiments_at_every_scale(name: str, scale: str) -> None:
    runs = plan_runs(OWN[name], scale)
    assert runs
    assert len({name_of(run) for run in runs}) == len(runs)
    assert all(run.experiment.label for run in runs)
    assert {run.scale for run in runs} == {scale}


@each_own
def test_a_figure_can_be_tried_quickly(item: Item) -> None:
    full, smoke = plan_runs(item, FULL), plan_runs(item, "smoke")
    assert {(run.panel, run.curve) for run in smoke} == {(run.panel, run.curve) for run in full}
    assert max(run.experiment.run.rounds for run in smoke) <= 5
    assert len(smoke) <= len(full)


@each_own
def test_no_file_lies_where_no_panel_finds_it(item: Item) -> None:
    folders = {path.parent.name for path in item.folder.glob("*/*.toml")}
    assert folders == set(item.panels)


@each_item
def test_panels_of_an_item_are_those_of_the_runs_it_is_made_of(item: Item) -> None:
    assert set(item.panels) <= set(ITEMS[item.runs_of].panels)


@each_own
def test_every_result_is_of_a_run_that_is_there(item: Item) -> None:
    known = {name_of(run) for run in plan_runs(item, FULL)}
    lines = read_lines(item.folder / RESULTS)
    assert {identity(line) for line in lines} <= known
    for line in lines:
        assert line["item"] == item.name
        assert line["provenance"].keys() >= {
            "command",
            "commit",
            "date",
            "versions",
            "hardware",
            "precision",
            "seconds",
        }


@each_own
def test_every_result_is_of_its_file_as_it_stands(item: Item) -> None:
    digests = {name_of(run): digest(run) for run in plan_runs(item, FULL)}
    stale = [identity(line) for line in read_lines(item.folder / RESULTS) if line["digest"] != digests[identity(line)]]
    assert not stale, "run them again; or, where an option was added, let digest() leave it out at its default"


@each_item
def test_an_item_can_be_drawn_from_what_there_is(item: Item, tmp_path: Path) -> None:
    results = tmp_path / RESULTS
    source = ITEMS[item.runs_of].folder / RESULTS
    if source.exists():
        shutil.copy(source, results)
    else:
        results.touch()
    drawn = draw_item(item.folder, results, tmp_path / "out")
    assert {path.suffix for path in drawn} == {".svg", ".png", ".md"}


def test_the_list_of_all_numbers_is_that_of_the_results() -> None:
    listed = json.loads((PAPER / "results.json").read_text(encoding="utf-8"))["results"]
    found = [line for name in ITEMS for line in read_lines(PAPER / name / RESULTS) if line["scale"] == FULL]
    assert [(line["item"], *identity(line)[:3]) for line in found] == [
        (line["item"], line["panel"], line["curve"], line["seed"]) for line in listed
    ]
    assert [line["target_accuracy"] for line in found] == [line["target_accuracy"] for line in listed]


OFFICE_31 = ("a_w", "d_w", "w_d", "a_d", "d_a", "w_a")
OUTCOME = (  # item, panels, FedAvgGDA's curve, FedMM's, seeds: the rows of the README's first table of numbers
    ("figure_5", ("dann_1s1t",), "fedavg_gda", "fedmm_smoothed", 3),
    ("figure_5", ("dann_1s1t",), "fedavg_gda", "fedmm", 3),
    ("figure_5", ("cdan_1s1t",), "fedavg_gda", "fedmm", 3),
    ("figure_5", ("mdd_1s1t",), "fedavg_gda", "fedmm", 8),
    ("figure_5", ("mdd_1s1t",), "fedavg_gda", "fedmm_smoothed", 3),
    ("beyond", ("dann_disjoint_2s1t",), "fedavg_gda", "fedmm_smoothed", 3),
    ("beyond", ("dann_disjoint_2s1t",), "fedavg_gda", "fedmm", 3),
    ("table_1", OFFICE_31, "dann_fedavg_gda", "dann_fedmm", 3),
    ("table_1", OFFICE_31, "mdd_fedavg_gda", "mdd_fedmm", 3),
    ("table_1", OFFICE_31, "cdan_fedavg_gda", "cdan_fedmm", 3),
)


def test_what_came_out_is_told_as_it_was_measured() -> None:
    head = "| | FedAvgGDA | FedMM | aim | |"
    rows = [cells for cells in rows_below(head, README) if "at most" not in cells[3]]
    assert len(rows) == len(OUTCOME)
    for (item, panels, averaged, ours, seeds), cells in zip(OUTCOME, rows, strict=True):
        lines = read_lines(PAPER / item / RESULTS)
        for curve, cell in ((averaged, cells[1]), (ours, cells[2])):
            found = {
                p: [line for line in lines if identity(line)[:2] == (p, curve) and line["seed"] < seeds] for p in panels
            }
            assert all(len(each) == seeds for each in found.values())
            told = mean(mean(100 * line["target_accuracy"] for line in each) for each in found.values())
            assert cell == f"{told:.1f}", cells[0]


def test_the_rounds_to_fedsgdas_accuracy_are_those_of_figure_4() -> None:
    head = "|  | FedSGDA's final (%) | FedMM smoothed, M = 20 | FedMM, M = 25 | FedMM, M = 20 | FedSGDA |"
    drawn = rows_below(head, PAPER / "figure_4" / "figure_4.md")
    assert [cells[0] for cells in drawn] == ["DANN", "MDD", "CDAN"]
    told = [cells[2] for cells in rows_below("| | FedAvgGDA | FedMM | aim | |", README) if "at most" in cells[3]]
    assert told == [", ".join(cells[column] for cells in drawn) for column in (4, 2)]


def test_the_panels_with_three_clients_are_told_as_they_came_out() -> None:
    lines = read_lines(PAPER / "figure_5" / RESULTS)
    curves = ("fedavg_gda", "fedprox_gda", "fedmm", "fedmm_smoothed")
    told = rows_below("| | FedAvgGDA | FedProxGDA | FedMM | FedMM smoothed |", README)
    assert [name for name, *_ in told] == [f"{o} {c}" for o in ("DANN", "MDD", "CDAN") for c in ("1s2t", "2s1t")]
    for name, *cells in told:
        for curve, cell in zip(curves, cells, strict=True):
            place = (name.lower().replace(" ", "_"), curve)
            assert cell == _as_told([line for line in lines if identity(line)[:2] == place]), place


def test_the_projects_first_page_tells_figure_5_as_it_came_out() -> None:
    lines = read_lines(PAPER / "figure_5" / RESULTS)
    told = rows_below(
        "| objective | rounds | FedAvgGDA | FedMM | FedMM smoothed | FedMM restrained, 3,000 rounds |",
        PAPER.parent / "README.md",
    )
    assert [name for name, *_ in told] == ["DANN", "CDAN", "MDD"]
    for name, rounds, *cells, restrained in told:
        for curve, cell in zip(("fedavg_gda", "fedmm", "fedmm_smoothed"), cells, strict=True):
            runs = [line for line in lines if identity(line)[:2] == (f"{name.lower()}_1s1t", curve)]
            assert {f"{line['rounds']:,}" for line in runs} == {rounds}
            assert cell == _as_told(runs) + (" (one seed)" if len(runs) == 1 else ""), (name, curve)
        confirmed = json.loads(
            (CONFIRMED / f"{name.lower()}_1s1t_fedmm_2_restrained_300.json").read_text(encoding="utf-8")
        )
        assert confirmed["rounds"] == 3000
        assert restrained == _as_told([{**run, "target_accuracy": run["last"]} for run in confirmed["runs"]])


def _as_told(lines: Sequence[dict[str, Any]]) -> str:
    if not lines:
        return "-"
    found = [100 * line["target_accuracy"] for line in lines]
    spread = f" ({min(found):.1f} to {max(found):.1f})" if len(found) > 1 else ""
    diverged = sum(line["status"] == "diverged" for line in lines)
    return f"{mean(found):.1f}{spread}" + (f", {diverged} of {len(found)} **diverged**" if diverged else "")
