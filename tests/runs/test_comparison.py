"""Several runs side by side. Processes take seconds to begin, so that tests share them."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from workers_here import workers_here

from fedmm import FedmmError
from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, set_values
from fedmm.core.files import write_json
from fedmm.reporting import read_comparison, read_run
from fedmm.runs.comparison import compare, folder_names
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import claim_folder

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = [
    "run.rounds=3", "run.batch_size=8", "data.rows=40", "data.test_rows=20", "model.hidden=[8]",
    "model.adversary_hidden=[4]", "algorithm.local_steps=2",
]  # fmt: skip


def small(*settings: str) -> Experiment:
    return experiment(set_values(read_toml(EXAMPLES / "moons.toml"), [*SMALL, *settings]))


@dataclass(frozen=True)
class Compared:
    """A comparison of two runs that complete and one that diverges."""

    folder: Path
    raised: BaseException | None

    @property
    def summary(self) -> dict[str, Any]:
        content = json.loads((self.folder / "summary.json").read_text())
        assert isinstance(content, dict)
        return content


@pytest.fixture(scope="module", params=[1, pytest.param(2, marks=pytest.mark.processes)], ids="{} at a time".format)
def compared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Compared:
    folder = tmp_path_factory.mktemp("comparison") / "moons"
    experiments = [
        small("run.label=FedMM", "run.seed=4"),
        small("run.label=too fast", "algorithm.lr_min=1e3", "algorithm.lr_max=1e3", "run.rounds=50"),
        small("run.label=FedMM", "run.seed=5", "run.evaluate_every=2"),
    ]
    raised = None
    try:
        with workers_here() if request.param == 1 else nullcontext():
            compare(experiments, folder, title="three runs", workers=request.param, progress=False)
    except FedmmError as problem:
        raised = problem
    return Compared(folder, raised)


def test_a_comparison_leaves_a_summary_over_runs_in_their_own_folders(compared: Compared) -> None:
    assert {path.name for path in compared.folder.iterdir()} == {
        "summary.json",
        "plan.json",
        "fedmm-seed4",
        "fedmm-seed5",
        "too-fast-seed0",
    }
    assert set(compared.summary) == {"kind", "title", "status", "runs", "versions", "hardware", "evidence"}
    assert (compared.summary["kind"], compared.summary["title"]) == ("comparison", "three runs")


def test_the_summary_lists_what_each_run_was_and_reached(compared: Compared) -> None:
    finished = [each for each in compared.summary["runs"] if each["label"] == "FedMM"]
    assert [each["seed"] for each in finished] == [4, 5]
    for each in finished:
        assert set(each) == {
            "label", "algorithm", "objective", "seed", "rounds", "target_accuracy", "seconds", "status", "folder"
        }  # fmt: skip
        own = json.loads((compared.folder / each["folder"] / "summary.json").read_text())
        assert {key: own[key] for key in each if key != "folder"} == {k: v for k, v in each.items() if k != "folder"}
        assert (each["algorithm"], each["objective"], each["rounds"]) == ("fedmm", "dann", 3)


def test_a_run_of_a_comparison_is_the_run_alone_to_the_bit(compared: Compared, tmp_path: Path) -> None:
    run_experiment(small("run.label=FedMM", "run.seed=4"), tmp_path, progress=False)
    alone, beside = (load_file(f / "model.safetensors") for f in (tmp_path, compared.folder / "fedmm-seed4"))
    assert alone.keys() == beside.keys()
    assert all(torch.equal(alone[name], beside[name]) for name in alone)


def test_what_completed_can_be_read_by_reporting(compared: Compared) -> None:
    read = read_comparison(compared.folder)
    assert [run.seed for run in read.groups()["FedMM"]] == [4, 5]


def test_a_run_that_diverges_is_reported_in_one_sentence_after_the_others_are_done(compared: Compared) -> None:
    assert isinstance(compared.raised, FedmmError)
    assert str(compared.raised).startswith("client 'source-1' produced non-finite parameters in round ")
    assert "\n" not in str(compared.raised)
    assert read_run(compared.folder / "too-fast-seed0").status == "diverged"


def test_a_run_that_diverged_stands_in_the_comparison_with_its_status(compared: Compared) -> None:
    assert {each["label"]: each["status"] for each in compared.summary["runs"]} == {
        "FedMM": "completed",
        "too fast": "diverged",
    }


def test_runs_may_be_evaluated_now_and_then(compared: Compared) -> None:
    seldom = read_run(compared.folder / "fedmm-seed5")
    assert seldom.series("target_accuracy").rounds == [2, 3]


def test_labels_make_folders_inside_the_comparison_and_nowhere_else() -> None:
    labels = ["../../etc", "a/b", "..", "/", "MU = 0.5 [x]\n"]
    names = folder_names([small(f"run.label={json.dumps(label)}", f"run.seed={n}") for n, label in enumerate(labels)])
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9.=-]*-seed\d", name) for name in names), names
    assert len(set(names)) == len(names)


def test_two_runs_with_one_label_and_seed_are_refused_before_anything_is_touched(tmp_path: Path) -> None:
    write_json(tmp_path / "summary.json", {"kind": "comparison"})
    with pytest.raises(FedmmError, match="give them different labels or seeds"):
        compare([small(), small()], tmp_path, title="", workers=1, overwrite=True, progress=False)
    assert json.loads((tmp_path / "summary.json").read_text()) == {"kind": "comparison"}


def test_a_folder_that_cannot_be_made_is_refused_in_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match=r"cannot be used: Not a directory"):
        compare([small()], tmp_path / "file" / "x", title="", workers=1, progress=False)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Three endless runs, one at a time, and Ctrl-C in the first; and the summary that stood there until then."""
    folder = tmp_path_factory.mktemp("interrupted") / "x"
    until_then: dict[str, Any] = {}

    def press() -> None:
        rounds, until = folder / "fedmm-seed0" / "rounds.jsonl", time.monotonic() + 600
        while not (rounds.exists() and rounds.read_text().count("\n") > 2) and time.monotonic() < until:
            time.sleep(0.01)
        until_then.update(json.loads((folder / "summary.json").read_text()))
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    presser = threading.Thread(target=press)
    presser.start()
    experiments = [small("run.label=FedMM", "run.rounds=10_000_000", f"run.seed={seed}") for seed in range(3)]
    try:
        with workers_here():
            compare(experiments, folder, title="endless", workers=1, progress=False)
    finally:
        presser.join()
        signal.signal(signal.SIGINT, before)
    return folder, until_then


def test_after_ctrl_c_runs_under_way_end_and_none_begins(interrupted: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = interrupted
    summary = json.loads((folder / "summary.json").read_text())
    assert {path.name for path in folder.iterdir()} == {"summary.json", "plan.json", "fedmm-seed0"}
    assert summary["status"] == "interrupted"
    assert [(each["folder"], each["status"]) for each in summary["runs"]] == [("fedmm-seed0", "interrupted")]
    run = read_run(folder / "fedmm-seed0")
    assert list(run.records) == list(range(1, summary["runs"][0]["rounds"] + 1))
    assert len(read_comparison(folder).runs) == 1


def test_a_comparison_killed_on_the_way_leaves_a_folder_that_is_known(
    interrupted: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    _, until_then = interrupted
    assert (until_then["kind"], until_then["status"], until_then["runs"]) == ("comparison", "running", [])
    write_json(tmp_path / "x" / "summary.json", until_then)
    with pytest.raises(FedmmError, match="must give 'runs' as a list of at least one run"):
        read_comparison(tmp_path / "x")
    with claim_folder(tmp_path / "x", "plan.json", overwrite=True):
        assert list((tmp_path / "x").iterdir()) == []


def test_a_folder_that_is_taken_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(FedmmError, match="name another with --out"):
            compare([small()], tmp_path, title="", workers=1, overwrite=overwrite, progress=False)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
