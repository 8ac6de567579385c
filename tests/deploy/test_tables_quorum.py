"""Runs over tables that begin with some of their sites: columns are agreed on among those, and hold for the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pandas", reason="tables need fedmm[tables]")

from deploy.table_sites import NAMES, agreed, read_json, run, tables, write_site
from deploy.test_enrolment import LateGrid

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.deploy import server as serving
from fedmm.deploy.layout import RunRequest
from fedmm.deploy.server import serve
from fedmm.remote.flower import engine
from fedmm.remote.flower.engine import Patience
from fedmm.sites.experiments import experiment_text

DOMAINS = {"north": "source", "south": "source", "west": "target"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that are new are looked for between any two answers."""
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0, meeting=0.0))


def experiment(rounds: int = 4, **data: Any) -> Experiment:
    return agreed(run={"rounds": rounds}, data={"domains": DOMAINS, **data})


def begun(folder: Path, frames: Any, each: Experiment, late: dict[str, int], **more: Any) -> Path:
    """A run over sites of which some come later. late: by site, after how many invitations of others."""
    files = [write_site(folder / "sites", name, frames[name]) for name in NAMES]
    served = {"patience": 20.0, "enrol_seconds": 5.0, "min_sites": 2, **more}
    serve(LateGrid(files, late), RunRequest(folder, "one", experiment_text(each), **served))
    return folder / "runs" / "one"


def log(folder: Path) -> str:
    return (folder / "server.log").read_text()


@pytest.mark.parametrize("scaling", ["standard", "per_site"])
def test_columns_are_those_of_the_sites_that_are_there_and_hold_for_who_comes_later(
    tmp_path: Path, scaling: str
) -> None:
    frames = tables()
    frames["south"]["crp"] += 1000.0  # which nobody knows when the run begins
    frames["south"].loc[3, "age"] = np.nan
    folder = begun(tmp_path, frames, experiment(scaling=scaling), {"south": 3})
    assert "site 'south' joins the run, which started without it" in log(folder)
    rounds = [line for line in log(folder).splitlines() if " counted, " in line]
    assert "2 counted" in rounds[0]
    assert "3 counted" in rounds[-1]
    columns = read_json(folder / "encoding.json")["columns"]
    others = run(tmp_path / "two", _files(tmp_path / "two", frames, ("north", "west")), _two(scaling))
    assert columns == read_json(others / "encoding.json")["columns"]
    assert log(folder).count("tables: 4 columns become 7 numbers") == 1


def _files(folder: Path, frames: Any, names: tuple[str, ...]) -> dict[str, Path]:
    return {name: write_site(folder / "sites", name, frames[name]) for name in names}


def _two(scaling: str) -> Experiment:
    return agreed(run={"rounds": 1}, data={"sites": ["north", "west"], "scaling": scaling})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda frame: frame.drop(columns=["crp", "ward"]), "has no column 'crp', 'ward'"),
        (lambda frame: frame.assign(age="secret"), "has text in 'age', where the experiment has numbers"),
        (lambda frame: frame.assign(diagnosis="secret"), "has labels that are not a class of the experiment"),
    ],
)
@pytest.mark.parametrize("late", [{}, {"south": 3}])
def test_a_table_that_does_not_fit_is_named_with_the_difference_and_the_run_goes_on(
    tmp_path: Path, change: Any, words: str, late: dict[str, int]
) -> None:
    frames = tables()
    frames["south"] = change(frames["south"])
    folder = begun(tmp_path, frames, experiment(), late)
    said = log(folder)
    assert f"the site 'south' refuses: {words}" in said
    assert ("tables: south " + words in said) == (not late)
    assert "completed after round 4" in said
    assert "secret" not in said
    assert not [line for line in said.splitlines() if "3 counted, " in line]


def test_too_few_tables_that_fit_end_the_run_before_it_begins(tmp_path: Path) -> None:
    frames = tables()
    frames["south"] = frames["south"].drop(columns="crp")
    with pytest.raises(FedmmError, match=r"the sites' tables do not fit the experiment: south has no column 'crp'"):
        begun(tmp_path / "fit", frames, experiment(), {"west": 9})
    with pytest.raises(FedmmError, match=r"south, west did not come .*; the run starts with 2 sites, but 1 came"):
        begun(tmp_path / "came", tables(), experiment(), {"south": 9, "west": 9}, enrol_seconds=0.1)
    with pytest.raises(FedmmError, match="the experiment does not say what they hold"):
        begun(tmp_path / "unclear", tables(), agreed(), {})


def test_a_run_that_goes_on_keeps_the_columns_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames, each = tables(), experiment()
    usual = engine.FlowerEngine.run_round

    def broken(self: Any, state: Any) -> Any:
        if state.round == 2:
            raise RuntimeError("killed")
        return usual(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(engine.FlowerEngine, "run_round", broken)
        with pytest.raises(RuntimeError, match="killed"):
            begun(tmp_path, frames, each, {"south": 99})
    before = read_json(tmp_path / "runs" / "one" / "encoding.json")
    folder = begun(tmp_path, frames, each, {}, resume=True)
    assert read_json(folder / "encoding.json") == before
    assert "3 counted, " in log(folder)


def test_with_all_sites_there_a_quorum_changes_no_bit(tmp_path: Path) -> None:
    each = experiment(2)
    models = [
        (begun(tmp_path / name, tables(), each, {}, min_sites=least) / "model.safetensors").read_bytes()
        for name, least in (("all", 0), ("two", 2))
    ]
    assert models[0] == models[1]
