"""The real paper's folder: every file makes experiments at every scale, and every result is of one of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fedmm.experiment.paper_items import FULL, Item, PaperRun, items
from fedmm.experiment.results import RESULTS, digest, identity, read_lines
from fedmm.reporting.paper import draw_item

PAPER = Path(__file__).parents[1] / "paper"
ITEMS = items(PAPER)
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
    runs = OWN[name].runs(scale)
    assert runs
    assert len({name_of(run) for run in runs}) == len(runs)
    assert all(run.experiment.label for run in runs)
    assert {run.scale for run in runs} == {scale}


@each_own
def test_a_figure_can_be_tried_quickly(item: Item) -> None:
    full, smoke = item.runs(FULL), item.runs("smoke")
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
    known = {name_of(run) for run in item.runs(FULL)}
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
    digests = {name_of(run): digest(run) for run in item.runs(FULL)}
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


def test_the_panels_with_three_clients_are_told_as_they_came_out() -> None:
    found = {
        (line["panel"], line["curve"]): line for line in read_lines(PAPER / "figure_5" / RESULTS) if line["seed"] == 0
    }
    head = "| | FedAvgGDA | FedProxGDA | FedMM | FedMM smoothed |"
    curves = ("fedavg_gda", "fedprox_gda", "fedmm", "fedmm_smoothed")
    after = (PAPER / "README.md").read_text(encoding="utf-8").split(head)[1].split("\n\n")[0].splitlines()[2:]
    told = [[cell.strip() for cell in line.strip("|").split("|")] for line in after]
    assert [name for name, *_ in told] == [f"{o} {c}" for o in ("DANN", "MDD", "CDAN") for c in ("1s2t", "2s1t")]
    for name, *cells in told:
        for curve, cell in zip(curves, cells, strict=True):
            line = found.get((name.lower().replace(" ", "_"), curve))
            diverged = line and line["status"] == "diverged"
            words = f", **diverged** in round {line['rounds']:,}" if line and diverged else ""
            assert cell == (f"{100 * line['target_accuracy']:.1f}{words}" if line else "-"), (name, curve)
