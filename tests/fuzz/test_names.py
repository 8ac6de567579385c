"""Names that lead elsewhere, or that no file system takes: nothing is written outside the folder a user named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzz.hostile import TEXT, WORDS, answered, examples
from fuzz.test_cli import OWN, TOML, everything_below, fedmm
from hypothesis import given
from hypothesis import strategies as st
from problems import adapt, network, source_client, target_client

from fedmm.config.schema import experiment
from fedmm.config.toml import is_utf8, read_toml
from fedmm.core.files import is_name
from fedmm.reporting import comparison_rows, draw_comparison, markdown_table, read_comparison
from fedmm.runs.comparison import folder_names
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import folder_name

RESERVED = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
LABELS = [word for word in WORDS if is_utf8(word) and word] + [
    "x" * 5000,
    "CON",
    "a\N{ZERO WIDTH SPACE}b",
    "-rf",
    "$$$",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run; what is written beside it was written elsewhere."""
    folder = tmp_path / "a" / "b" / "here"
    folder.mkdir(parents=True)
    (folder / OWN).write_text(TOML)
    monkeypatch.chdir(folder)
    return folder


def outside(here: Path) -> set[str]:
    top = here.parents[2]
    return {name for name in everything_below(top) if not name.startswith("a/b/here/")}


@examples(120)
@given(TEXT)
def test_a_text_becomes_a_name_that_leads_nowhere(text: str) -> None:
    assert is_name(folder_name(text).replace("\\", ""))
    assert (Path("/runs") / folder_name(text)).parent == Path("/runs")


@examples(40)
@given(st.lists(TEXT.filter(is_utf8), min_size=1, max_size=3, unique=True))
def test_labels_make_safe_folders_or_are_refused(labels: list[str]) -> None:
    one = experiment(TABLES)
    names = answered(lambda: folder_names([replace(one, run=replace(one.run, label=label)) for label in labels]))
    for name in names or []:
        assert is_name(name)
        assert name.isascii()
        assert name == name.lower().strip(" .-")
        assert len(name) < 150
        assert name.split(".")[0] not in RESERVED


TABLES: dict[str, Any] = {
    "run": {"rounds": 1, "batch_size": 2, "probe_rows": 4, "threads": 1},
    "data": {"name": "moons", "rows": 8, "test_rows": 4},
    "model": {"name": "mlp", "hidden": [3], "adversary_hidden": [3]},
    "algorithm": {"name": "fedmm", "local_steps": 1},
}


@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_runs_with_any_labels_are_read_tabulated_and_drawn(here: Path) -> None:
    before = outside(here)
    run_experiment(experiment(TABLES), here / "runs" / "one", progress=False)
    listed = [{"label": label, "folder": "one"} for label in LABELS]
    title = "\n../\N{GRINNING FACE}$\\frac{\x1b"
    (here / "runs/summary.json").write_text(json.dumps({"kind": "comparison", "title": title, "runs": listed}))
    found = read_comparison(here / "runs")
    assert [run.label for run in found.runs] == LABELS
    assert len(markdown_table(comparison_rows(found)).splitlines()) == 2 + len(found.groups())
    draw_comparison(here / "runs")
    assert outside(here) == before


@pytest.mark.parametrize("name", ["...toml", "x" * 250 + ".toml", "a\nb.toml", "\udcff.toml"])
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_a_file_of_any_name_leaves_its_runs_in_runs(here: Path, name: str) -> None:
    (here / name).write_text(TOML + '[sweep]\n"run.seed" = [0]\n')
    before = set(everything_below(here)) | outside(here)
    ended = fedmm("sweep", "--", name)
    assert ended.code == 0, ended.err
    written = (set(everything_below(here)) | outside(here)) - before
    assert written
    assert all(path.startswith("runs/") for path in written)
    assert not (here / "summary.json").exists()


@pytest.mark.parametrize("out", ["", ".", "..", "../..", "/", "/etc", "/proc/self", "x" * 300, "-o", "link", OWN])
def test_a_folder_that_is_not_empty_or_cannot_be_is_refused_and_left(here: Path, out: str) -> None:
    (here / "link").symlink_to(here.parent)
    before = everything_below(here.parents[2])
    ended = fedmm("run", f"--out={out}", "--overwrite", "--", OWN)
    if out == "-o":
        assert ended.code == 0
        assert {path.split("/")[3] for path in everything_below(here.parents[2]).keys() - before.keys()} == {"-o"}
    else:
        assert (ended.code, everything_below(here.parents[2])) == (2, before)


def test_a_folder_with_a_zero_byte_is_refused(here: Path) -> None:
    assert answered(lambda: run_experiment(experiment(TABLES), here / "a\x00b", progress=False)) is None


def test_a_link_to_a_run_is_not_emptied(here: Path) -> None:
    run_experiment(experiment(TABLES), here / "real", progress=False)
    (here / "link").symlink_to("real")
    before = everything_below(here / "real")
    assert answered(lambda: run_experiment(experiment(TABLES), here / "link", overwrite=True, progress=False)) is None
    assert everything_below(here / "real") == before


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a\nb", "..", "x" * 300, "\N{GRINNING FACE}", "-", "CON"])
def test_clients_may_have_any_name_and_no_file_is_called_after_one(here: Path, name: str) -> None:
    before = everything_below(here.parents[2])
    adapted = answered(lambda: adapt([source_client(name), target_client()], model=network()))
    if adapted is not None:
        adapted.save(here / "model.safetensors")
    assert everything_below(here.parents[2]).keys() - before.keys() <= {"a/b/here/model.safetensors"}


def test_what_a_run_writes_about_odd_names_can_be_read_again(here: Path) -> None:
    label = 'a\n"b" \\ \x7f \N{GRINNING FACE} ../x'
    one = experiment({**TABLES, "run": {**TABLES["run"], "label": label}})
    run_experiment(one, here / "run", progress=False)
    assert json.loads((here / "run/summary.json").read_text())["label"] == label
    assert experiment(read_toml(here / "run/experiment.toml")) == one
    assert torch.get_num_threads() == 1
