"""The paper as data."""

from __future__ import annotations

from pathlib import Path

import pytest
from reproduction.small_paper import RUNS, changed, write_paper

from fedmm.core.errors import FedmmError
from fedmm.reproduction.items import Item, read_items
from fedmm.reproduction.plan import plan_runs


@pytest.fixture
def paper(tmp_path: Path) -> Path:
    return write_paper(tmp_path / "paper")


def figure(paper: Path) -> Item:
    return read_items(paper)["figure_1"]


def names(item: Item, scale: str = "full", **chosen: list[str] | list[int]) -> list[str]:
    return [f"{run.panel}/{run.curve} {run.experiment.run.seed}" for run in plan_runs(item, scale, **chosen)]


def test_items_are_folders_with_a_file_of_their_own(paper: Path) -> None:
    found = read_items(paper)
    assert list(found) == ["figure_1", "figure_2", "table_1"]
    assert {name: len(plan_runs(item)) for name, item in found.items() if item.runs_of == name} == RUNS
    assert (found["table_1"].runs_of, found["figure_1"].runs_of) == ("figure_1", "figure_1")


def test_runs_are_those_of_every_panel_curve_and_seed(paper: Path) -> None:
    assert names(figure(paper)) == [
        "even/fedavg_gda 0", "even/fedavg_gda 1", "even/fedmm 0", "even/fedmm 1",
        "uneven/fedmm 0", "uneven/fedmm 1", "uneven/source_only 0", "uneven/source_only 1",
    ]  # fmt: skip


def test_a_curve_is_its_file_on_top_of_those_it_extends(paper: Path) -> None:
    (run,) = plan_runs(figure(paper), panels=["uneven"], curves=["fedmm"], seeds=[1])
    assert (run.item, run.panel, run.curve, run.role, run.scale) == ("figure_1", "uneven", "fedmm", "method", "full")
    each = run.experiment
    assert (each.label, each.run.rounds, each.run.seed, each.algorithm.name) == ("FedMM", 6, 1, "fedmm")
    assert each.partition.split(each.data.load(), 0)[-1].name == "target-2"


def test_a_bound_says_so(paper: Path) -> None:
    assert [run.role for run in plan_runs(figure(paper), curves=["source_only"])] == ["bound", "bound"]


def test_some_may_be_chosen(paper: Path) -> None:
    item = figure(paper)
    assert names(item, curves=["fedmm"], seeds=[1]) == ["even/fedmm 1", "uneven/fedmm 1"]
    assert names(item, panels=["uneven"], curves=["source_only"], seeds=[0]) == ["uneven/source_only 0"]


def test_a_scale_changes_values_and_seeds_of_every_run(paper: Path) -> None:
    item = figure(paper)
    assert item.scales == ["full", "smoke"]
    small = plan_runs(item, "smoke")
    assert names(item, "smoke") == ["even/fedavg_gda 5", "even/fedmm 5", "uneven/fedmm 5", "uneven/source_only 5"]
    for run in small:
        each = run.experiment
        assert (run.scale, each.run.rounds, each.run.batch_size, each.run.label) == ("smoke", 2, 8, each.label)
        assert len(each.data.load().target_test.x) == 20
        assert len(each.data.load().target.x) == 40


def test_without_a_sweep_there_is_one_seed_at_any_scale(paper: Path) -> None:
    changed(paper / "common.toml", '[sweep]\n"run.seed" = [0, 1]', "")
    assert {run.experiment.run.seed for scale in ("full", "smoke") for run in plan_runs(figure(paper), scale)} == {0}


# What is not there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"scale": "smok"}, "unknown scale of figure_1 'smok'; did you mean 'smoke'? (known: full, smoke)"),
        ({"panels": ["evn"]}, "unknown panel of figure_1 'evn'; did you mean 'even'? (known: even, uneven)"),
        ({"curves": ["x"]}, "unknown curve of figure_1 'x' (known: fedavg_gda, fedmm, source_only)"),
        ({"seeds": [7]}, "unknown seed of figure_1 '7' (known: 0, 1)"),
    ],
)
def test_a_name_that_is_unknown_is_answered_with_those_that_are(paper: Path, chosen: dict, message: str) -> None:
    with pytest.raises(FedmmError) as refused:
        plan_runs(figure(paper), **chosen)
    assert str(refused.value) == message


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_without_items_is_refused(tmp_path: Path, there: bool) -> None:
    folder = tmp_path if there else tmp_path / "gone"
    with pytest.raises(FedmmError, match=r"holds no item\.toml of a figure or table; run this in a checkout"):
        read_items(folder)


# What is wrong --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("panels", ["", "panels = []", 'panels = "even"', "panels = [1]"])
def test_panels_must_be_a_list_of_names(paper: Path, panels: str) -> None:
    changed(paper / "figure_1" / "item.toml", 'panels = ["even", "uneven"]', panels)
    with pytest.raises(FedmmError, match=r"item\.toml must (list at least one of its|give) 'panels'"):
        read_items(paper)


@pytest.mark.parametrize("scale", ["scale = 3", "[scale]\nsmoke = 3", "[scale.smoke]\nrounds = 3"])
def test_scales_must_be_tables_of_changes(tmp_path: Path, scale: str) -> None:
    write_paper(tmp_path)
    (tmp_path / "figure_2" / "item.toml").write_text(f'title = "x"\nform = "curves"\npanels = ["rates"]\n{scale}\n')
    with pytest.raises(FedmmError, match=r"item\.toml must give 'scale(\.smoke)?(\.rounds)?' as a table"):
        read_items(tmp_path)


def test_the_item_whose_runs_are_used_must_be_there(paper: Path) -> None:
    changed(paper / "table_1" / "item.toml", '"figure_1"', '"figure_9"')
    with pytest.raises(FedmmError, match=r"unknown item in runs_of of .*item\.toml 'figure_9'; did you mean 'figure_"):
        read_items(paper)


def test_a_panel_without_files_is_refused(paper: Path) -> None:
    changed(paper / "figure_1" / "item.toml", '"uneven"', '"odd"')
    with pytest.raises(FedmmError, match=r"odd holds no curve of panel 'odd'; add a TOML file for each"):
        plan_runs(figure(paper))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "fedmm"', 'name = "fedm"', r"unknown algorithm\.name 'fedm'; did you mean 'fedmm'\?"),
        ("local_steps = 2", "local_step = 2", r"unknown key in \[algorithm\] 'local_step'"),
        ('label = "FedMM"', "", r"run\.label is missing, or \[sweep\] has more than run\.seed"),
        ("[run]", '[sweep]\n"algorithm.lr_min" = [0.1, 0.2]\n[run]', r"\[sweep\] has more than run\.seed"),
        ("[run]", "[sweep.run]\nseed = [3]\n[run]", r"sweep\.run\.seed occurs twice"),
        ("[run]", "[reproduce]\nrole = 'best'\n[run]", r"reproduce\.role must be 'method' or 'bound'"),
        ('[run]\nlabel = "FedMM"', "[reproduce]\nrole = 3", r"reproduce\.role must be 'method' or 'bound'"),
    ],
)
def test_what_is_wrong_in_a_curves_file_is_told_with_its_name(paper: Path, old: str, new: str, message: str) -> None:
    changed(paper / "figure_1" / "even" / "fedmm.toml", old, new)
    with pytest.raises(FedmmError, match=rf"fedmm\.toml: .*{message}"):
        plan_runs(figure(paper), panels=["even"])


@pytest.mark.parametrize("top", ["run = 3", "sweep = 3", "reproduce = 3"])
def test_a_value_in_the_place_of_a_section_is_told_with_the_files_name(paper: Path, top: str) -> None:
    (paper / "figure_1" / "even" / "fedmm.toml").write_text(f'extends = "panel.toml"\n{top}\n')
    with pytest.raises(FedmmError, match=r"fedmm\.toml: "):
        plan_runs(figure(paper), panels=["even"])
