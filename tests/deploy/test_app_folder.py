"""The folder ``deploy/``: a Flower app in the layout of its baselines, and files for those who run sites."""

from __future__ import annotations

import tomllib
from importlib import import_module
from importlib.metadata import requires
from pathlib import Path

import pytest

from fedmm.config.sites import RowsElsewhere
from fedmm.deploy.flower_commands import APP
from fedmm.sites.config import read_site
from fedmm.sites.experiments import deployed_experiment, site_names

FOLDER = Path(__file__).parents[2] / "deploy"


def test_it_has_the_layout_of_a_flower_baseline() -> None:
    app = tomllib.loads((FOLDER / "pyproject.toml").read_text())
    assert {"LICENSE", "README.md", "pyproject.toml"} <= {path.name for path in FOLDER.iterdir()}
    components = app["tool"]["flwr"]["app"]["components"]
    for reference in components.values():
        module, _, name = reference.partition(":")
        package, _, file = module.partition(".")
        text = (FOLDER / package / f"{file}.py").read_text()
        assert name == "app"
        assert '__all__ = ["app"]' in text  # by which Flower finds it
        assert "flwr" not in text
    package = FOLDER / "fedmm_flower"
    for name in (
        "client_app",
        "dataset",
        "model",
        "server_app",
        "strategy",
        "utils",
    ):  # that its structure test asks for
        assert (package / f"{name}.py").is_file(), name
    front = (FOLDER / "README.md").read_text().split("---")[1]
    for key in ("title:", "url:", "labels:", "dataset:"):
        assert key in front
    for heading in ("About this baseline", "Experimental Setup", "Environment Setup", "Running the Experiments"):
        assert f"## {heading}" in (FOLDER / "README.md").read_text()


def test_every_module_of_the_app_can_be_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    for path in sorted((FOLDER / "fedmm_flower").glob("*.py")):
        module = import_module(f"fedmm_flower.{path.stem}" if path.stem != "__init__" else "fedmm_flower")
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ())), path


def test_the_ray_of_the_extra_and_of_the_constraints_is_the_one_that_flower_pins() -> None:
    pinned = {each.partition(";")[0].strip() for each in requires("flwr") or () if each.startswith("ray==")}
    extras = tomllib.loads((FOLDER.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(extras["ray"]) == pinned
    assert pinned <= set((FOLDER.parent / "constraints.txt").read_text().split())


def test_its_keys_are_those_of_the_app_that_is_submitted() -> None:
    mine, submitted = (
        tomllib.loads(text)["tool"]["flwr"]["app"]["config"] for text in ((FOLDER / "pyproject.toml").read_text(), APP)
    )
    assert mine.keys() == submitted.keys()
    each = deployed_experiment(tomllib.loads(mine["experiment"]))
    assert (each.algorithm.name, each.run.rounds) == ("fedmm", 5)
    assert site_names(each) == ["source-1", "target-1"]


def test_an_experiment_without_rows_says_what_the_server_has_to_know() -> None:
    each = deployed_experiment(tomllib.loads((FOLDER / "conf" / "hospitals.toml").read_text()))
    assert isinstance(each.data, RowsElsewhere)
    assert site_names(each) == ["hospital-a", "hospital-b", "hospital-c"]
    assert deployed_experiment(each.tables()).tables() == each.tables()


@pytest.mark.parametrize("name", ["hospital-a", "hospital-b"])
def test_the_sites_files_are_right(name: str) -> None:
    site = read_site(FOLDER / "sites" / f"{name}.toml")
    assert site.site.name == name
    assert not site.superlink.insecure
