"""A user's own files, from the file to the run's folder; a target without labels is the normal case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fabricated import picture, write

from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import FedmmError
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import INPUT, read_input
from fedmm.runs.summary import NO_TARGET_LABELS
from fedmm.runs.sweep import run_sweep

PEOPLE = [f"{n % 3},{20 + n},{'nsw'[n % 3]},{'' if n % 3 == 2 else n % 2}" for n in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 2)), np.arange(20) % 2
    np.savez(tmp_path / "rows.npz", source_x=x[:20], source_y=y, target_x=x[20:])
    (tmp_path / "people.csv").write_text("\n".join(["place,age,wind,sick", *PEOPLE]) + "\n")
    for site, names in (("north", ("cat/1", "cat/2", "dog/1", "dog/2")), ("south", ("cat/1", "dog/1"))):
        write(tmp_path / "sites" / site, {f"{name}.png": picture(n) for n, name in enumerate(names)})
    write(tmp_path / "sites" / "west", {f"{n}.png": picture(n) for n in range(3)})
    return tmp_path


def data(folder: Path, kind: str) -> dict[str, Any]:
    if kind == "table":
        pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    return {
        "arrays": {"name": "arrays", "file": str(folder / "rows.npz")},
        "table": {"name": "table", "file": str(folder / "people.csv"), "label": "sick", "site": "place"},
        "image_folder": {
            "name": "image_folder", "sites": str(folder / "sites"), "image_size": 8, "stored_size": 10,
        },
    }[kind]  # fmt: skip


def small(given: dict[str, Any], **run: Any) -> Experiment:
    partition = "by_site" if given["name"] in ("table", "image_folder") else "source_target"
    return experiment(
        {
            "data": given,
            "partition": {"name": partition},
            "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4]},
            "algorithm": {"name": "fedmm", "local_steps": 1},
            "run": {"rounds": 2, "batch_size": 6, **run},
        }
    )


@pytest.mark.parametrize("engine", ["in_process", "batched"])
@pytest.mark.parametrize("kind", ["arrays", "table", "image_folder"])
def test_a_target_without_labels_runs_and_says_so(folder: Path, kind: str, engine: str) -> None:
    summary = run_experiment(small(data(folder, kind), engine=engine), folder / "run", progress=False)
    assert summary["target_accuracy"] is None
    assert summary["source_accuracy"] is not None
    assert summary["note"] == NO_TARGET_LABELS
    assert set(summary["tested_rows"]) == {"source"}
    rows = [json.loads(line) for line in (folder / "run" / "rounds.jsonl").read_text().splitlines()]
    assert "target_accuracy" not in rows[-1]
    assert rows[-1]["target_information"] is not None


@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_a_table_without_a_target_is_tested_on_what_is_held_out(folder: Path, engine: str) -> None:
    rows = [line for line in PEOPLE if not line.endswith(",")]
    (folder / "people.csv").write_text("\n".join(["place,age,wind,sick", *rows]) + "\n")
    given = {**data(folder, "table"), "labelled_only": True, "held_out": 0.3}
    each = experiment({**small(given, engine=engine).tables(), "objective": {"name": "source_only"}})
    summary = run_experiment(each, folder / "run", progress=False)
    assert summary["target_accuracy"] is None
    assert summary["source_auroc"] is not None
    assert "note" not in summary
    assert sum(client["source_rows"] for client in summary["clients"].values()) + summary["tested_rows"]["source"] == 20
    with pytest.raises(FedmmError, match="labelled_only is for a table without a target; leave out target_sites"):
        small({**given, "target_sites": ["2"]})
    with pytest.raises(FedmmError, match="no client holds target rows, to which dann adapts"):
        run_experiment(small(given), folder / "adapting", progress=False)


def test_a_sweep_over_it_does_too(folder: Path) -> None:
    runs = [small(data(folder, "arrays"), seed=seed) for seed in (0, 1)]
    summary = run_sweep(runs, folder / "sweep", title="two seeds", progress=False)
    assert [run["target_accuracy"] for run in summary["runs"]] == [None, None]
    for run in summary["runs"]:
        names, way = read_input(folder / "sweep" / run["folder"])
        assert names == ("0", "1")
        assert way is not None


@pytest.mark.parametrize(
    ("kind", "path"), [("arrays", "rows.npz"), ("table", "people.csv"), ("image_folder", "sites/west")]
)
def test_a_run_remembers_how_its_files_become_rows(folder: Path, kind: str, path: str) -> None:
    given = small(data(folder, kind))
    run_experiment(given, folder / "run", progress=False)
    pair = given.data.load()
    names, way = read_input(folder / "run")
    assert names == pair.class_names
    assert way == pair.input
    assert way is not None
    found = way.read(folder / path)
    unlabelled = found.x if found.y is None else found.x[found.y < 0]
    assert torch.equal(unlabelled, pair.target.x)


def test_a_client_for_each_site(folder: Path) -> None:
    summary = run_experiment(small(data(folder, "image_folder")), folder / "run", progress=False)
    assert summary["clients"].keys() == {"north", "south", "west"}
    assert summary["clients"]["west"] == {"source_rows": 0, "target_rows": 3}
    held = [summary["clients"][site]["source_rows"] for site in ("north", "south")]
    assert sum(held) == 5
    assert min(held) >= 1


def test_built_in_data_has_class_names_and_no_files_of_its_own(tmp_path: Path) -> None:
    run_experiment(small({"name": "moons", "rows": 8, "test_rows": 4}), tmp_path / "run", progress=False)
    assert read_input(tmp_path / "run") == (("upper", "lower"), None)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "fedmm-input-9"}', '{"format": "fedmm-input-1", "class_names": ["a"], "input": 5}'],
)
def test_a_file_that_does_not_say_what_a_model_takes_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(FedmmError, match="cannot be read"):
        read_input(tmp_path)
    (tmp_path / INPUT).write_text(text)
    with pytest.raises(FedmmError):
        read_input(tmp_path)
