"""``fedmm tune`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.commands import Command

from fedmm.reporting.html import collect_runs
from fedmm.reporting.html.tuning import tuning_section
from fedmm.runs import sweep as sweeping
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

FILE = """
[run]
rounds = 3
batch_size = 8
keep_rows = false
[data]
name = "moons"
rows = 60
test_rows = 30
[model]
name = "mlp"
hidden = [6]
adversary_hidden = [4]
[algorithm]
local_steps = 1
"""
GRID = '[tune]\n"algorithm.lr_max" = [0.02, 0.05]\n'


@pytest.fixture(autouse=True)
def _file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
    monkeypatch.setattr("fedmm.runs.summary.shift_of_model", lambda *_: None)
    Path("mine.toml").write_text(FILE + GRID, encoding="utf-8")


def test_it_leaves_a_file_that_run_takes_a_table_and_a_section_of_the_report(command: Command) -> None:
    ended = command("tune", "mine.toml", "--seeds", "1")
    folder = Path("runs/mine-tune")
    assert ended.code == 0, ended.err
    assert "rung 1 of 1: 4 candidates, 3 rounds, 1 seed" in ended.out
    assert "use source only" in " ".join(ended.out.split())
    assert f"fedmm run {folder / 'tuned.toml'}" in " ".join(ended.out.split())
    ran = command("run", folder / "tuned.toml", "--rounds", "1", "--out", "runs/tuned")
    assert ran.code == 0, ran.err
    found = collect_runs([folder])
    assert len(found.entries) == 4
    (tuned,) = found.tunings
    assert tuned.chosen == "source only"
    section = tuning_section(tuned)
    assert len(section.parts) == 4
    assert "the half stays whose predictions agree best" in str(section.parts[1])
    again = command("tune", "mine.toml", "--seeds", "1", "--resume")
    assert again.code == 0
    taken = command("tune", "mine.toml", "--seeds", "1", "--out", folder)
    assert taken.code == 2
    assert "is not empty" in taken.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--minutes", "0"), "minutes must be above 0, not 0"),
        (("--seeds", "0"), "seeds must be from 1 to 100, not 0"),
        (("--eta", "1"), "eta must be at least 2, not 1"),
        (("--set", "tune.algorithm.rate=[1]"), "rate"),
        (("--set", "tune.run.seed=[1]"), "tune.run.seed cannot be tuned"),
        (("--set", "tune=1"), "section.key=value"),
        (("--objectives", "cdan"), "--objectives is for files without a [tune] table"),
        (("--set", "transmission.name=gaussian"), "adds noise to updates"),
        (("--set", "run.engine=ray"), "run.engine must be 'auto' or 'batched'"),
        (("--resume", "--overwrite"), "--resume and --overwrite exclude each other"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    ended = command("tune", "mine.toml", *arguments)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert sentence in ended.err
    assert not Path("runs").exists()


def test_an_empty_grid_is_refused(command: Command) -> None:
    Path("mine.toml").write_text(FILE + "[tune]\n", encoding="utf-8")
    ended = command("tune", "mine.toml")
    assert ended.code == 2
    assert "[tune] must hold at least one list of values" in ended.err


def test_run_says_what_a_file_with_such_a_table_is_for(command: Command) -> None:
    ended = command("run", "mine.toml")
    assert ended.code == 2
    assert "which is for `fedmm tune`" in ended.err


def test_check_looks_at_the_experiment_as_given_and_builds_the_others(command: Command) -> None:
    ended = command("check", "mine.toml")
    assert ended.code == 0, ended.err
    assert "a tuning of 4 runs that can all be built; this is the first" in ended.out
    assert "fedmm_restrained, dann" in ended.out
    wrong = command("check", "mine.toml", "--set", "tune.run.seed=[1]")
    assert wrong.code == 2
    assert "tune.run.seed cannot be tuned" in wrong.err
    compared = command("compare", "mine.toml")
    assert compared.code == 2
    assert "a [tune] table is for `fedmm tune`; remove it here" in compared.err


def test_a_tuning_under_way_is_shown_by_its_runs_and_one_that_cannot_be_read_is_refused(command: Command) -> None:
    folder = Path("runs/mine-tune")
    assert command("tune", "mine.toml", "--seeds", "1").code == 0
    summary = (folder / "summary.json").read_text(encoding="utf-8")
    (folder / "summary.json").write_text('{"kind": "comparison", "status": "running"}', encoding="utf-8")
    shown = collect_runs([folder])
    assert (len(shown.entries), shown.tunings) == (4, ())
    (folder / "summary.json").write_text(summary, encoding="utf-8")
    (folder / "tune.json").write_text('{"format": "fedmm-tune-1"}', encoding="utf-8")
    ended = command("report", folder, "--out", "r.html")
    assert ended.code == 2
    assert "is damaged, so the tuning can be neither shown nor continued" in ended.err
    resumed = command("tune", "mine.toml", "--seeds", "1", "--resume")
    assert "is not a tuning that can be continued" in resumed.err


def test_a_tuning_that_judged_nothing_or_has_not_ended_is_reported_as_such(command: Command) -> None:
    folder = Path("runs/mine-tune")
    assert command("tune", "mine.toml", "--seeds", "1", "--minutes", "1e-9").code == 0
    empty = command("report", folder, "--out", "r.html")
    assert (empty.code, "holds a tuning in which nothing was judged" in empty.err) == (2, True)
    assert command("tune", "mine.toml", "--seeds", "1", "--resume").code == 0
    state = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    (folder / "tune.json").write_text(json.dumps({**state, "verdict": None}), encoding="utf-8")
    unfinished = command("report", folder, "--out", "r.html")
    assert (unfinished.code, "a tuning that has not ended; `fedmm tune --resume` continues it" in unfinished.err) == (
        2,
        True,
    )


def test_ctrl_c_is_answered_once(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmm.cli.tune.tune_experiment", press)
    ended = command("tune", "mine.toml")
    assert (ended.code, ended.err) == (130, "")
    assert ended.out.startswith("stopped; finished runs are in runs/mine-tune")


def test_where_everything_diverges_no_file_to_run_is_left_and_the_report_says_so(command: Command) -> None:
    diverging = ("tune", "mine.toml", "--seeds", "1", "--set", "algorithm.lr_min=1e30")
    folder = Path("runs/mine-tune")
    for options in ((), ("--resume",)):
        ended = command(*diverging, *options)
        assert ended.code == 2
        assert ended.err == (
            "error: nothing could be trained: 4 of 4 candidates diverged; use smaller learning rates (algorithm.lr_min "
            "and lr_max)\n"
        )
        assert not (folder / "tuned.toml").exists()
        assert len(list(folder.glob("rung-1/*/summary.json"))) == 4
    assert collect_runs([folder]).tunings[0].sentence.startswith("Nothing could be trained: 4 of 4 candidates")
