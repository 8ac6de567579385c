"""A tuning over sites, without Flower's processes between them: its choice, its cost, its refusals, its resume."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.asking import entries
from deploy.grids import SitesGrid
from deploy.test_measuring import held_back, labelled_sites
from deploy.test_serving import crashing, site_files
from flwr.app import Message

import fedmm
from fedmm import FedmmError
from fedmm.config.toml import read_tables
from fedmm.core.errors import Say
from fedmm.core.signals.validators import METRICS
from fedmm.deploy import server as serving
from fedmm.deploy import tuning as tuned_over
from fedmm.deploy.layout import RunRequest, TuneRequest, describe_tuning
from fedmm.deploy.run_view import RunReader
from fedmm.deploy.tuning import check_tuning, plan_deployed, serve_tuning
from fedmm.remote.flower.engine import Patience
from fedmm.runs import sweep as sweeping
from fedmm.runs.tuning import halving
from fedmm.runs.tuning.candidates import PLAIN, derive_candidates
from fedmm.runs.tuning.halving import Budget, Pace
from fedmm.runs.tuning.rungs import Halving
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.experiments import deployed_experiment, experiment_text
from fedmm.sites.rows import site_rows
from fedmm.sites.work import SiteWork
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

TABLES: dict[str, Any] = {
    "run": {"rounds": 4, "batch_size": 16, "threads": 1, "seed": 3, "dtype": "float64", "keep_rows": False},
    "data": {"name": "digits", "test_rows": 1500, "validation_rows": 60},
    "model": {"name": "mlp", "hidden": [12], "adversary_hidden": [8]},
    "algorithm": {"name": "fedmm", "local_steps": 2},
    "tune": {"algorithm.lr_max": [0.02, 0.04]},
}
"""Two candidates beside those that are always there, and too few rounds for more than one rung."""
LONGER = {**TABLES, "run": {**TABLES["run"], "rounds": 6}, "tune": {"algorithm.lr_max": [0.02, 0.04, 0.06, 0.08]}}
"""A rung of 2 rounds for six candidates, and one of 6 for four, where rungs may be so short."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))
    monkeypatch.setattr("fedmm.runs.summary.shift_of_model", lambda *_: None)


def request(folder: Path, tables: dict[str, Any] = TABLES, resume: bool = False, **options: Any) -> RunRequest:
    asked = TuneRequest(tables, **{"seeds": 1, **options})
    text = experiment_text(check_tuning(asked, "one", 0))
    return RunRequest(folder, "one", text, resume, patience=20.0, enrol_seconds=5.0, tuning=asked.text())


class LastingSites(SitesGrid):
    """Sites whose processes go on from question to question, until their files change."""

    def __init__(self, files: Iterable[Path]) -> None:
        super().__init__(files)
        self.lasting: dict[str, SiteWork] = {}

    def work_of(self, config: SiteConfig, say: Say) -> SiteWork:
        return self.lasting.setdefault(config.file.read_text(), SiteWork(config, say))


def grid_of(folder: Path, tables: dict[str, Any] = TABLES, **policy: Any) -> SitesGrid:
    plain = {name: table for name, table in tables.items() if name != "tune"}
    return LastingSites(site_files(folder / "sites", deployed_experiment(plain), **policy))


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "runs" / "one" / "tuning" / "tune.json").read_text())
    return state


def log(folder: Path) -> str:
    return (folder / "runs" / "one" / "server.log").read_text()


def answered(folder: Path, site: str = "source-1") -> tuple[int, int]:
    """Rounds and questions that a site has counted."""
    found = entries(read_site(folder / "sites" / f"{site}.toml"), "answer")
    return sum(entry["rounds"] for entry in found), len(found)


def test_it_chooses_as_fedmm_tune_does_in_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halving, "FEWEST_ROUNDS", 2)
    serve_tuning(grid_of(tmp_path, LONGER), request(tmp_path, LONGER))
    here = fedmm.tune(LONGER, seeds=1, out=tmp_path / "here")
    ours, theirs = state_of(tmp_path), json.loads((tmp_path / "here" / "tune.json").read_text())
    assert ours["candidates"] == theirs["candidates"]
    assert ours["plan"] == theirs["plan"]
    assert [len(rung["entries"]) for rung in ours["rungs"]] == [6, 4]
    assert [rung["order"] for rung in ours["rungs"]] == [rung["order"] for rung in theirs["rungs"]]
    for rung, other in zip(ours["rungs"], theirs["rungs"], strict=True):
        for entry, same in zip(rung["entries"], other["entries"], strict=True):
            for signals, expected in zip(entry["signals"], same["signals"], strict=True):
                assert signals == pytest.approx(expected, rel=1e-6)
    assert ours["verdict"]["label"] == here.label
    folder = tmp_path / "runs" / "one" / "tuning"
    assert fedmm.experiment(read_tables(folder / "tuned.toml")) == here.best
    assert not list(folder.rglob("checkpoints"))
    assert "tuning completed; everything is in" in log(tmp_path)


def test_the_sites_count_every_round_and_no_more_questions_than_they_were_asked_for(tmp_path: Path) -> None:
    serve_tuning(grid_of(tmp_path), request(tmp_path))
    assert "asking source-1, target-1 for at most 16 rounds and 37 questions each" in log(tmp_path)
    assert answered(tmp_path, "source-1") == (16, 1 + 4 * (1 + 4))  # before all; a run: who it is, and its rounds
    assert answered(tmp_path, "target-1") == (
        12,
        1 + 4 * (1 + 4 + 4) - 4,
    )  # measures, and source only has no use for it
    runs = {entry["run"] for entry in entries(read_site(tmp_path / "sites" / "target-1.toml"), "question")}
    assert runs == {"one", *(f"one.rung-1.{number}" for number in range(1, 5))}


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        (
            {"max_rounds": 15},
            r"the tuning takes 16 rounds of this site, which has 15 left of its policy.max_rounds, 15; .*; ask for "
            "more, or start a tuning of fewer rounds with --max-rounds",
        ),
        ({"max_questions": 30}, r"the tuning takes 37 questions of this site, which has 30 left"),
        ({"require_approval": True}, r"this site's owner approves every single one \(policy.require_approval\)"),
        ({"max_epsilon": 1.0}, "would carry no noise"),
    ],
)
def test_a_site_without_room_leads_to_a_refusal_before_anything_is_trained(
    tmp_path: Path, policy: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedmmError, match=f"the tuning cannot start: the site '.*' refuses: .*{sentence}"):
        serve_tuning(grid_of(tmp_path, **policy), request(tmp_path))
    assert answered(tmp_path)[0] == 0
    assert not (tmp_path / "runs" / "one" / "tuning").exists()
    refusals = entries(read_site(tmp_path / "sites" / "target-1.toml"), "refusal")
    assert len(refusals) == 1


def test_what_was_answered_before_counts(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, max_rounds=31)
    serve_tuning(grid, request(tmp_path))
    again = RunRequest(**{**vars(request(tmp_path)), "name": "two"})
    with pytest.raises(
        FedmmError, match=r"takes 16 rounds of this site, which has 15 left of its policy.max_rounds, 31"
    ):
        serve_tuning(grid, again)


def test_max_rounds_leaves_candidates_out_and_is_kept(tmp_path: Path) -> None:
    serve_tuning(grid_of(tmp_path, max_rounds=12), request(tmp_path, max_rounds=12))
    assert answered(tmp_path)[0] == 12
    state = state_of(tmp_path)
    assert len(state["rungs"][0]["entries"]) == 3
    assert state["notes"] == ["to keep to 12 rounds 1 candidate is left out"]


def test_max_rounds_is_kept_by_what_goes_on_after_a_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut to one rung of all seeds, it has asked for more by then than the whole plan would have."""
    monkeypatch.setattr(halving, "FEWEST_ROUNDS", 2)
    with monkeypatch.context() as patch:
        patch.setattr(tuned_over, "Budget", partial(Budget, clock=lambda: 0.0))
        patch.setattr(Halving, "_measure_pace", lambda self: setattr(self.state, "pace", Pace(1.15, 0.0)))
        patch.setattr(Halving, "_keep_pace", lambda *_: None)
        serve_tuning(grid_of(tmp_path, LONGER), request(tmp_path, LONGER, seeds=3, minutes=1.0, max_rounds=88))
    assert answered(tmp_path)[0] == 45
    serve_tuning(grid_of(tmp_path, LONGER), request(tmp_path, LONGER, resume=True, seeds=3, max_rounds=88))
    assert answered(tmp_path)[0] == 45
    state = state_of(tmp_path)
    assert "to keep to 88 rounds rung 2 was not started" in state["notes"]
    assert (state["status"], len(state["plan"])) == ("completed", 1)


def test_too_few_rounds_for_anything_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"--max-rounds 2 is too few: .* take 3 rounds with 1 seed even"):
        serve_tuning(grid_of(tmp_path), request(tmp_path, max_rounds=2))


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({"transmission": {"name": "gaussian"}}, {}, "adds noise to updates, but the validators that tuning goes by"),
        ({"run": {**TABLES["run"], "probe_rows": 0}}, {}, "run.probe_rows must be above 0"),
        ({}, {"seeds": 0}, "seeds must be from 1"),
        ({}, {"minutes": 0.0}, "minutes must be above 0"),
        ({}, {"eta": 1}, "eta must be at least 2"),
        ({}, {"max_rounds": 0}, "--max-rounds must be at least 1"),
        ({}, {"max_rounds": 2}, "--max-rounds 2 is too few"),
        ({}, {"objectives": ("mdd",)}, r"--objectives is for files without a \[tune\] table"),
    ],
)
def test_what_cannot_be_tuned_is_refused_before_it_is_submitted(
    change: dict[str, Any], options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedmmError, match=sentence):
        check_tuning(TuneRequest({**TABLES, **change}, **options), "one", 0)


def test_a_tuning_needs_all_sites_and_a_short_name() -> None:
    with pytest.raises(FedmmError, match="it needs all of them; leave --min-sites out"):
        check_tuning(TuneRequest(TABLES), "one", 1)
    with pytest.raises(FedmmError, match="at most 80 characters, not 81"):
        check_tuning(TuneRequest(TABLES), "n" * 81, 0)


def test_after_a_kill_it_goes_on_in_the_round_it_was_in_to_the_same_choice(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    serve_tuning(grid_of(whole), request(whole))
    grid = grid_of(cut, max_rounds=16)
    with crashing(3):  # in the first run
        serve_tuning(grid, request(cut))
    assert answered(cut)[0] == 3
    with crashing(2):  # in the second
        serve_tuning(grid, request(cut, resume=True))
    serve_tuning(grid, request(cut, resume=True))
    assert answered(cut)[0] == 16  # not one more than without the kills
    ours, theirs = state_of(cut), state_of(whole)
    assert all(ours[key] == theirs[key] for key in ("verdict", "table", "rungs", "tuned"))
    serve_tuning(grid, request(cut, resume=True))  # nothing is left to do
    assert answered(cut)[0] == 16


def test_when_the_time_is_over_it_judges_what_there_is_and_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(tuned_over, "Budget", partial(Budget, clock=lambda: now[0]))
    grid = grid_of(tmp_path)

    def pass_time(name: str, reply: Message) -> Message:
        now[0] += reply.metadata.message_type == "train" and name == "source-1"
        return reply

    grid.on_reply = pass_time
    serve_tuning(grid, request(tmp_path, minutes=0.5))  # of 30 rounds 8 measure the pace, 16 are in the rung
    assert state_of(tmp_path)["status"] == "completed"
    assert answered(tmp_path)[0] == 24
    short = tmp_path / "short"
    grid = grid_of(short)
    grid.on_reply = pass_time
    serve_tuning(grid, request(short, minutes=12 / 60))
    state = state_of(short)
    assert any("for lack of time" in note for note in state["notes"])
    assert answered(short)[0] <= 13


def test_a_site_that_is_away_when_models_are_measured_ends_it_and_resume_repeats_the_run(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    grid.silent = {"target-1"}
    asked = RunRequest(**{**vars(request(tmp_path)), "patience": 0.3})
    with pytest.raises(FedmmError, match="the sites did not measure target_information after its last round"):
        serve_tuning(grid, asked)
    grid.silent = set()
    serve_tuning(grid, RunRequest(**{**vars(asked), "resume": True}))
    assert state_of(tmp_path)["status"] == "completed"


def test_a_candidate_that_a_site_does_not_allow_is_given_up_and_the_others_go_on(tmp_path: Path) -> None:
    tables = {**TABLES, "tune": {"algorithm.penalty_min": [200.0, 1.0]}}
    serve_tuning(grid_of(tmp_path, tables), request(tmp_path, tables))
    state = state_of(tmp_path)
    assert state["status"] == "completed"
    (veto,) = [entry["veto"] for entry in state["rungs"][0]["entries"] if "200" in entry["label"]]
    assert veto == "1 of 1 runs diverged"
    (note,) = state["notes"]
    assert "penalty_min=200" in note
    assert "does not take part in it: learning rate times penalties is so large" in note


def test_before_it_goes_on_sites_are_asked_for_what_is_left(tmp_path: Path) -> None:
    grid = grid_of(tmp_path, max_rounds=20)
    with crashing(1):
        serve_tuning(grid, request(tmp_path))
    file = tmp_path / "sites" / "source-1.toml"
    file.write_text(file.read_text().replace("max_rounds = 20", "max_rounds = 6"))
    with pytest.raises(FedmmError, match=r"the tuning cannot start: .*takes 15 rounds of this site, which has 5 left"):
        serve_tuning(grid, request(tmp_path, resume=True))


def test_rows_that_only_the_sites_have_are_tuned_with_the_risk_of_held_back_rows(tmp_path: Path) -> None:
    each, files = held_back(tmp_path / "sites")
    tables = {**each.tables(), "tune": {"algorithm.lr_max": [0.02]}}
    serve_tuning(SitesGrid(files), request(tmp_path, tables))
    state = state_of(tmp_path)
    assert {len(entry["signals"][0]) for entry in state["rungs"][0]["entries"]} == {3}
    tuned = deployed_experiment(read_tables(tmp_path / "runs" / "one" / "tuning" / "tuned.toml"))
    assert tuned.data == each.data


def write_labelled_table(folder: Path) -> dict[str, Any]:
    """A table of three sites that all have labels, of which some are kept to choose by, and an experiment with it."""
    random = np.random.default_rng(0)
    rare = random.random(240) < 0.3
    lines = [
        f"{'abc'[row % 3]},{x + 1.5 * positive:.6f},{random.normal():.6f},{('no', 'yes')[positive]}\n"
        for row, (x, positive) in enumerate(zip(random.normal(size=240), rare.astype(int), strict=True))
    ]
    folder.mkdir(exist_ok=True)
    (folder / "rows.csv").write_text("".join(["site,x,y,fraud\n", *lines]))
    table = {"name": "table", "file": str(folder / "rows.csv"), "label": "fraud", "site": "site", "labelled_only": True}
    return {
        "run": TABLES["run"],
        "data": {**table, "held_out": 0.2, "validation_share": 0.3},
        "partition": {"name": "by_site"},
        "model": {"name": "mlp", "hidden": [4]},
        "objective": {"name": "auc"},
        "algorithm": {"name": "fedmm", "local_steps": 2, "lr_min": 0.05, "lr_max": 0.05},
        "tune": {"algorithm.lr_min": [0.1, 0.2]},
    }


@pytest.mark.parametrize("metric", ["auc", "worst_site"])
def test_without_a_target_it_chooses_by_the_same_numbers_as_fedmm_tune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
    tables = write_labelled_table(tmp_path)
    grid = grid_of(tmp_path, tables, allow_paths=[tables["data"]["file"]], min_rows=5)
    serve_tuning(grid, request(tmp_path, tables, metric=metric))
    here = fedmm.tune(tables, seeds=1, metric=metric, out=tmp_path / "here")
    ours, theirs = state_of(tmp_path), json.loads((tmp_path / "here" / "tune.json").read_text())
    (rung,), (other,) = ours["rungs"], theirs["rungs"]
    assert rung["order"] == other["order"]
    signals, expected = ({each["label"]: each["signals"][0] for each in both["entries"]} for both in (rung, other))
    assert signals.keys() == expected.keys() == {"as given", PLAIN, "fedmm lr_min=0.1", "fedmm lr_min=0.2"}
    for label, own in signals.items():
        assert own.keys() == set(METRICS[metric])
        assert own == pytest.approx(expected[label], rel=1e-6)
    assert (ours["verdict"]["label"], ours["notes"]) == (here.label, [])
    assert fedmm.experiment(read_tables(tmp_path / "runs" / "one" / "tuning" / "tuned.toml")) == here.best


def test_labelled_rows_that_only_the_sites_have_are_tuned_by_those_they_keep_from_training(tmp_path: Path) -> None:
    each, files = labelled_sites(tmp_path / "sites", 40)
    tables = {**each, "tune": {"algorithm.lr_min": [0.2]}}
    serve_tuning(LastingSites(files), request(tmp_path, tables))
    state = state_of(tmp_path)
    assert state["metric"] == "auc"
    found = {each["label"]: each["signals"][0]["validation_auroc"] for each in state["rungs"][0]["entries"]}
    assert len(found) == 3
    # Before all; of 3 runs of 4 rounds each: who it is, its rounds, and up to 8 questions to measure after each.
    assert f"asking east, west for at most 12 rounds and {1 + 3 * (1 + 4 + 8 * 4)} questions each" in log(tmp_path)
    assert answered(tmp_path, "east")[1] <= 1 + 3 * (1 + 4 + 8 * 4)
    assert state["verdict"]["label"] == max(found, key=lambda label: found[label])
    own = deployed_experiment(each)
    rows = {file.stem: site_rows(read_site(file), own) for file in files}
    kept = [each.validation for each in rows.values() if each.validation is not None]
    x = torch.cat([each.take(torch.arange(len(each))) for each in kept])
    y = torch.cat([each.labels(torch.arange(len(each))) for each in kept])
    torch.set_num_threads(1)
    adapted = fedmm.adapt(
        [fedmm.Client(source=each.source, name=name) for name, each in rows.items()],
        own.model.build((30,), 2, own.run.seed),
        own.objective,
        own.algorithm,
        own.run.rounds,
        batch_size=16,
        seed=own.run.seed,
        dtype=torch.float64,
        source_validation=(x, y),
        progress=False,
    )
    assert found["as given"] == pytest.approx(adapted.history[-1]["validation_auroc"], rel=1e-9)


def test_without_rows_to_choose_by_nothing_is_trained(tmp_path: Path) -> None:
    tables, files = labelled_sites(tmp_path / "sites", 0)
    with pytest.raises(FedmmError, match=r"^the tuning cannot start: the metric auc is judged by labelled rows that "):
        serve_tuning(LastingSites(files), request(tmp_path, tables))
    assert [sum(each["rounds"] for each in entries(read_site(file), "answer")) for file in files] == [0, 0]
    known = {**tables, "data": {"name": "unbalanced"}, "partition": {"name": "label_sorted", "clients": 2}}
    with pytest.raises(FedmmError, match="the metric worst_site is judged by validation_worst_accuracy, which needs"):
        check_tuning(TuneRequest(known, metric="worst_site"), "one", 0)


def test_tables_are_described_once_and_all_candidates_train_on_the_same_numbers(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    from deploy.table_sites import agreed, tables, write_site

    files = [write_site(tmp_path / "sites", name, frame) for name, frame in tables().items()]
    asked = {**agreed().tables(), "tune": {"algorithm.lr_max": [0.02]}}
    with crashing(1):
        serve_tuning(LastingSites(files), request(tmp_path, asked))
    serve_tuning(LastingSites(files), request(tmp_path, asked, resume=True))
    described = [each for each in entries(read_site(files[0]), "answer") if each["kind"] == "describe"]
    assert len(described) == 1
    encodings = {path.read_text() for path in (tmp_path / "runs" / "one").rglob("encoding.json")}
    assert len(list((tmp_path / "runs" / "one").rglob("encoding.json"))) == 4
    assert len(encodings) == 1


def test_the_default_grid_is_that_of_fedmm_tune() -> None:
    plain = {name: table for name, table in TABLES.items() if name != "tune"}
    assert list(plan_deployed(TuneRequest(plain))[0]) == list(derive_candidates(plain))


def test_status_and_watch_say_how_far_it_is(tmp_path: Path) -> None:
    grid = grid_of(tmp_path)
    folder = tmp_path / "runs" / "one"
    with crashing(2):
        serve_tuning(grid, request(tmp_path))
    assert describe_tuning(folder) == "running, rung 1 of 1, 0 of its runs finished"
    (folder / "server.lock").unlink()  # which names this process, and it is alive
    cut = RunReader(folder).read()
    assert (cut.state, cut.over) == ("not running; `fedmm deploy resume` continues it", False)
    serve_tuning(grid, request(tmp_path, resume=True))
    assert describe_tuning(folder) == "completed, rung 1 of 1, 4 of its runs finished"
    (folder / "server.lock").unlink()
    ended = RunReader(folder).read()
    assert (ended.state, ended.over) == ("completed", True)
