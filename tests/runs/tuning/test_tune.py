"""A tuning from an experiment to a setting: on moons, interrupted, out of time, and blind to target labels."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedmm
from fedmm.core.errors import FedmmError
from fedmm.runs import sweep as sweeping
from fedmm.runs.evidence import shift_of_model
from fedmm.runs.run_folder import hold_run_folder
from fedmm.runs.tuning import rungs as climbing
from fedmm.runs.tuning import tune as tuning
from fedmm.runs.tuning.criteria import ByTarget
from fedmm.runs.tuning.halving import Budget, Pace
from fedmm.runs.tuning.rung_results import Choice
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

SLOW = Pace(0.4, 0.0)
FREE = Pace(0.0, 0.0)
TABLES: dict[str, Any] = {
    "run": {"rounds": 30, "batch_size": 8, "seed": 5, "evaluate_every": 5, "keep_rows": False},
    "data": {"name": "moons", "rows": 60, "test_rows": 30, "validation_rows": 20},
    "model": {"name": "mlp", "hidden": [6], "adversary_hidden": [4]},
    "algorithm": {"name": "fedmm_smoothed", "local_steps": 1, "lr_min": 0.1},
    "tune": {"algorithm.lr_max": [0.005, 0.02, 0.04, 0.08]},
}
"""Four candidates of one's own, so a rung of 10 rounds and one of 30."""


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs in this process, computed in one way; label shift is estimated by no test but those that need it."""
    monkeypatch.setattr("fedmm.runs.summary.shift_of_model", lambda *_: None)
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    return state


def choice_in(folder: Path) -> dict[str, Any]:
    state = state_of(folder)
    return {key: state[key] for key in ("verdict", "table", "tuned", "rungs", "plan", "competing")}


def test_it_goes_from_all_candidates_to_a_setting_that_can_be_run(tmp_path: Path) -> None:
    lines: list[str] = []
    found = fedmm.tune(TABLES, seeds=2, out=tmp_path / "t", say=lines.append)
    state = state_of(tmp_path / "t")
    assert [(len(rung["entries"]), rung["rounds"]) for rung in state["rungs"]] == [(6, 10), (4, 30)]
    assert {entry["label"] for entry in state["rungs"][1]["entries"]} >= {"source only", "as given"}
    assert {len(entry["runs"]) for entry in state["rungs"][1]["entries"]} == {2}
    assert [row["candidate"] for row in found.table if row["rung"] == 2] == state["rungs"][1]["order"]
    assert len(found.table) == 6
    assert set(found.table[0]["signals"]) == {"target_information", "target_bnm", "source_risk"}
    assert found.label == "source only"  # two seeds are not enough for the rule
    assert found.best.source_only
    assert found.adapted is not None
    assert not found.adapted.source_only
    assert any("from the start, since schedules depend on the number of rounds" in line for line in lines)
    tuned = fedmm.experiment(tuning.read_tables(tmp_path / "t" / "tuned.toml"))
    assert tuned == found.best
    assert (tuned.run.rounds, tuned.run.seed, tuned.run.label) == (30, 5, "")
    assert fedmm.experiment(tuning.read_tables(tmp_path / "t" / "adapted.toml")) == found.adapted


def test_nothing_is_kept_without_a_folder_or_said_without_say() -> None:
    found = fedmm.tune({**TABLES, "run": {**TABLES["run"], "rounds": 3}}, seeds=1, say=None)
    assert found.folder is None
    assert len(found.table) == 6


@pytest.mark.parametrize("rung", [0, 1])
def test_after_a_kill_in_any_rung_the_same_is_chosen_without_running_again_what_is_finished(
    tmp_path: Path, rung: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    fedmm.tune(TABLES, seeds=2, out=whole)
    number = [0]
    ordinary = climbing.run_sweep

    def killed(*args: Any, **kwargs: Any) -> Any:
        number[0] += 1
        if number[0] <= rung:
            return ordinary(*args, **kwargs)
        first = args[1] / "source-only-seed5" / "summary.json"  # the second program never begins
        ordinary(*args, **{**kwargs, "stop": first.exists})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(climbing, "run_sweep", killed)
        with pytest.raises(KeyboardInterrupt):
            fedmm.tune(TABLES, seeds=2, out=cut)
    assert len(state_of(cut)["rungs"]) == rung
    finished = {path: path.stat().st_mtime_ns for path in cut.glob("rung-*/source-only*/rounds.jsonl")}
    assert finished
    fedmm.tune(TABLES, seeds=2, out=cut, resume=True)
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert choice_in(cut) == choice_in(whole)
    again = {path: path.stat().st_mtime_ns for path in cut.glob("rung-*/*/rounds.jsonl")}
    fedmm.tune(TABLES, seeds=2, out=cut, resume=True)
    assert {path: path.stat().st_mtime_ns for path in again} == again
    assert choice_in(cut) == choice_in(whole)


def arrays(path: Path, labels: str) -> dict[str, Any]:
    """Two shifted clouds for each class, with the target's labels as they are, permuted, or none."""
    draws = np.random.default_rng(0)
    y = np.arange(80) % 2
    source = (draws.normal(size=(80, 3)) + 2.0 * y[:, None]).astype(np.float32)
    target = (draws.normal(size=(80, 3)) + 2.0 * y[:, None] + 0.5).astype(np.float32)
    named = {"right": y, "permuted": draws.permutation(1 - y), "none": None}[labels]
    content = {"source_x": source, "source_y": y, "target_x": target}
    np.savez(path, **content, **({} if named is None else {"target_y": named}))
    return {**TABLES, "data": {"name": "arrays", "file": str(path), "held_out": 0.2}}


def test_target_labels_permuted_or_removed_change_nothing_in_the_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedmm.runs.summary.shift_of_model", shift_of_model)
    choices = []
    for labels in ("right", "permuted", "none"):
        (tmp_path / labels).mkdir()
        tables = arrays(tmp_path / "data.npz", labels)
        fedmm.tune(tables, seeds=3, out=tmp_path / labels / "t")
        choices.append(choice_in(tmp_path / labels / "t"))
    assert choices[0] == choices[1] == choices[2]


class Clock:
    """A clock that goes on by a step whenever it is read."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def test_with_time_enough_nothing_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Budget", partial(Budget, clock=Clock(0.0)))
    found = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert found.notes == []
    assert len(found.table) == 6


def test_with_little_time_candidates_are_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Budget", partial(Budget, clock=Clock(0.0)))
    monkeypatch.setattr(climbing, "pace_of", lambda *_: SLOW)
    found = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert found.notes[0].startswith("for lack of time 2 candidates are left out: fedmm_smoothed lr_max=")
    assert len(found.table) == 4
    assert state_of(tmp_path / "t")["status"] == "completed"


def test_when_the_time_is_over_there_is_a_result_and_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = climbing.run_sweep
    clock = Clock(0.0)

    def slow(*args: Any, **kwargs: Any) -> Any:
        if kwargs["title"] == "tuning" and len(args[0]) == 4:  # the last rung
            clock.now = 1e6
        return ordinary(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "Budget", partial(Budget, clock=clock))
        patch.setattr(climbing, "run_sweep", slow)
        found = fedmm.tune(TABLES, minutes=1e3, seeds=1, out=tmp_path / "t")
    assert found.notes == ["the time was over in rung 2 of 2; resume continues"]
    assert found.label == "source only"
    assert found.adapted is not None  # by the first rung
    assert found.sentence.endswith(" Judged after 10 of 30 rounds.")
    assert state_of(tmp_path / "t")["status"] == "out of time"
    more = fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    assert more.notes == []
    assert state_of(tmp_path / "t")["status"] == "completed"


def test_a_rung_ends_while_there_is_time_to_write_and_read_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(0.0), []

    def sweep(experiments: Any, *_: Any, stop: Any, **__: Any) -> Any:
        for clock.now in (60.0 - 2 * len(experiments) - 0.1, 60.0 - 2 * len(experiments)):
            asked.append(stop())
        return {"status": "interrupted", "runs": []}

    monkeypatch.setattr(tuning, "Budget", partial(Budget, clock=clock))
    monkeypatch.setattr(climbing, "run_sweep", sweep)
    monkeypatch.setattr(
        climbing.Halving, "_measure_pace", lambda self: setattr(self.state, "pace", Pace(0.0, 0.0, 1.0))
    )
    found = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert asked == [False, True]
    assert found.label == "source only"
    assert (tmp_path / "t" / "tuned.toml").exists()


def test_a_time_that_is_over_at_once_gives_source_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "Budget", partial(Budget, clock=Clock(1e6)))
    found = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert (found.label, found.adapted, found.table) == ("source only", None, [])
    assert found.notes == ["no rung was started; resume continues"]
    assert (tmp_path / "t" / "tuned.toml").exists()


def test_what_no_time_was_left_for_is_run_when_it_goes_on_with_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "Budget", partial(Budget, clock=Clock(1e6)))
        patch.setattr(climbing.Halving, "_measure_pace", lambda self: setattr(self.state, "pace", Pace(0.0, 1e9)))
        short = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t", say=lines.append)
    assert short.notes == ["no rung was started; resume continues"]
    assert lines == []  # what does not even begin is not said to be cut
    assert state_of(tmp_path / "t")["plan"][-1]["rounds"] < 30
    more = fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    assert more.notes == []
    assert len(more.table) == 6
    assert [rung["rounds"] for rung in state_of(tmp_path / "t")["rungs"]] == [10, 30]


def give_a_pace(patch: pytest.MonkeyPatch, per_round: float, clock: Clock) -> None:
    """Rounds are taken to last so long, and nothing else to take any time, by a clock that stands still."""
    patch.setattr(tuning, "Budget", partial(Budget, clock=clock))
    patch.setattr(climbing.Halving, "_measure_pace", lambda self: setattr(self.state, "pace", Pace(per_round, 0.0)))
    patch.setattr(climbing, "pace_of", lambda *_: None)


def sweep_taking(seconds: float, clock: Clock) -> Any:
    """The ordinary sweep, after which so much time has passed."""
    ordinary = climbing.run_sweep

    def sweep(*args: Any, **options: Any) -> Any:
        found = ordinary(*args, **options)
        clock.now += seconds
        return found

    return sweep


def test_a_rung_that_would_be_no_longer_than_the_one_before_waits_for_more_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that is short nor one with few candidates overrules what a longer time would find."""
    clock = Clock(0.0)
    whole = fedmm.tune(TABLES, seeds=1, out=tmp_path / "whole")

    with monkeypatch.context() as patch:
        patch.setattr(tuning, "Budget", partial(Budget, clock=clock))
        patch.setattr(climbing, "pace_of", lambda *_: Pace(0.02, 0.0))
        patch.setattr(climbing, "run_sweep", sweep_taking(59.5, clock))
        short = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert short.notes == ["for lack of time rung 2 of 2 was not started; resume continues"]
    assert short.sentence.endswith(" Judged after 10 of 30 rounds.")
    assert short.adapted is not None
    more = fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    assert (more.notes, more.label, more.sentence) == ([], whole.label, whole.sentence)
    assert more.table == whole.table


def test_a_tuning_that_was_cut_short_goes_on_to_a_longer_rung_however_often_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ordinary = climbing.run_sweep

    def killed(*args: Any, **options: Any) -> Any:
        ordinary(*args, **{**options, "stop": lambda: True})
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        give_a_pace(patch, 1.0, Clock(0.0))
        short = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert short.sentence.endswith(" Judged after 18 of 30 rounds.")
    with monkeypatch.context() as patch:
        patch.setattr(climbing, "run_sweep", killed)
        with pytest.raises(KeyboardInterrupt):
            fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    assert state_of(tmp_path / "t")["status"] == "running"
    more = fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    state = state_of(tmp_path / "t")
    assert [(rung["rounds"], len(rung["entries"])) for rung in state["rungs"]] == [(18, 3), (30, 3)]
    assert [planned["candidates"] for planned in state["plan"]] == [1, 1]  # those that there are, not those of the plan
    assert " Judged after " not in more.sentence


@pytest.mark.parametrize(("tried", "rounds"), [([0.005, 0.02, 0.04, 0.08], [10, 20, 30]), ([0.02], [18, 30])])
def test_a_last_rung_that_was_cut_short_is_followed_by_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: list[float], rounds: list[int]
) -> None:
    """Of two rungs, and of one alone."""
    clock = Clock(0.0)
    tables = {**TABLES, "tune": {"algorithm.lr_max": tried}}
    with monkeypatch.context() as patch:
        give_a_pace(patch, 0.25 if rounds[0] == 10 else 1.0, clock)
        patch.setattr(climbing, "run_sweep", sweep_taking(42.8, clock))
        short = fedmm.tune(tables, minutes=1, seeds=1, out=tmp_path / "t")
    assert [rung["rounds"] for rung in state_of(tmp_path / "t")["rungs"]] == rounds[:-1]
    assert short.sentence.endswith(f" Judged after {rounds[-2]} of 30 rounds.")
    more = fedmm.tune(tables, seeds=1, out=tmp_path / "t", resume=True)
    assert [rung["rounds"] for rung in state_of(tmp_path / "t")["rungs"]] == rounds
    assert " Judged after " not in more.sentence
    assert state_of(tmp_path / "t")["status"] == "completed"


def test_a_tuning_of_few_candidates_that_ran_all_rounds_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        give_a_pace(patch, 0.4, Clock(0.0))
        few = fedmm.tune(TABLES, minutes=1, seeds=1, out=tmp_path / "t")
    assert [rung["rounds"] for rung in state_of(tmp_path / "t")["rungs"]] == [30]
    again = fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True)
    assert (again.notes, again.sentence, again.table) == (few.notes, few.sentence, few.table)
    assert state_of(tmp_path / "t")["status"] == "completed"


def test_an_older_offer_to_adapt_does_not_outlive_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert fedmm.tune(TABLES, seeds=1, out=tmp_path / "t").adapted is not None
    assert (tmp_path / "t" / "adapted.toml").exists()
    none = Choice("source only", None, None, "Nothing adapts.")
    monkeypatch.setattr(ByTarget, "choose", lambda *_: none)
    assert fedmm.tune(TABLES, seeds=1, out=tmp_path / "t", resume=True).adapted is None
    assert not (tmp_path / "t" / "adapted.toml").exists()


def test_rows_that_changed_since_it_began_are_refused(tmp_path: Path) -> None:
    tables = arrays(tmp_path / "data.npz", "right")
    fedmm.tune(tables, seeds=1, out=tmp_path / "t")
    with np.load(tmp_path / "data.npz") as held:
        changed = {**held, "target_x": held["target_x"] + np.arange(3)}
    np.savez(tmp_path / "data.npz", **changed)
    with pytest.raises(FedmmError, match=r"the data has changed since the tuning in .* began; bring the old data back"):
        fedmm.tune(tables, seeds=1, out=tmp_path / "t", resume=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"minutes": 0}, "minutes must be above 0, not 0"),
        ({"minutes": float("nan")}, "minutes must be above 0, not nan"),
        ({"minutes": "ten"}, "minutes must be above 0, not ten"),
        ({"seeds": 0}, "seeds must be from 1 to 100, not 0"),
        ({"seeds": 2.5}, "seeds must be a whole number, not 2.5"),
        ({"eta": 2.5}, "eta must be a whole number, not 2.5"),
        ({"objectives": "cdan"}, r"objectives must be a list of names such as \['dann', 'cdan'\], not 'cdan'"),
        ({"objectives": [3]}, "objectives must be a list of names"),
        ({"eta": 1}, "eta must be at least 2, not 1"),
        ({"resume": True, "out": None}, "resume needs the folder"),
        ({"out": 3}, "out must be the name of a folder, not 3"),
        ({"say": 3}, "say must be a function that takes a line of text, not 3"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedmmError, match=sentence):
        fedmm.tune(TABLES, **{"out": tmp_path / "t", **options})
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("given", [5, None, [TABLES]])
def test_what_is_no_experiment_is_refused(given: Any) -> None:
    with pytest.raises(FedmmError, match="tune needs an experiment, its tables, or its file, not"):
        fedmm.tune(given)


def test_a_run_whose_rounds_are_no_text_is_named_and_resume_runs_it_again(tmp_path: Path) -> None:
    quick = {**TABLES, "run": {**TABLES["run"], "rounds": 2}}
    fedmm.tune(quick, seeds=1, out=tmp_path / "t")
    state = state_of(tmp_path / "t")
    (tmp_path / "t" / "tune.json").write_text(json.dumps({**state, "rungs": []}), encoding="utf-8")
    broken = tmp_path / "t" / "rung-1" / "source-only-seed5"
    (broken / "rounds.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(FedmmError, match=rf"{broken.name}/rounds.jsonl is damaged; .* remove .*{broken.name} and res"):
        fedmm.tune(quick, seeds=1, out=tmp_path / "t", resume=True)
    shutil.rmtree(broken)
    fedmm.tune(quick, seeds=1, out=tmp_path / "t", resume=True)
    assert state_of(tmp_path / "t")["verdict"] == state["verdict"]


def test_a_first_rung_in_which_everything_diverged_is_the_last(tmp_path: Path) -> None:
    diverging = {**TABLES, "algorithm": {**TABLES["algorithm"], "lr_min": 1e8}}
    for resume in (False, True):
        with pytest.raises(FedmmError, match=r"^nothing could be trained: 6 of 6 candidates diverged; use smaller"):
            fedmm.tune(diverging, seeds=3, out=tmp_path / "t", resume=resume)
        assert [path.name for path in tmp_path.glob("t/rung-*")] == ["rung-1"]
    assert (state_of(tmp_path / "t")["status"], state_of(tmp_path / "t")["notes"]) == ("completed", [])


def test_a_folder_in_use_and_one_of_other_candidates_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("not a run", encoding="utf-8")
    with pytest.raises(FedmmError, match="is not empty"):
        fedmm.tune(TABLES, out=tmp_path)
    quick = {**TABLES, "run": {**TABLES["run"], "rounds": 2}}
    fedmm.tune(quick, seeds=1, out=tmp_path / "t")
    with pytest.raises(FedmmError, match="other candidates or options"):
        fedmm.tune(quick, seeds=2, out=tmp_path / "t", resume=True)
    state = state_of(tmp_path / "t")
    for options in ({"resume": True}, {"overwrite": True}):
        with hold_run_folder(tmp_path / "t"), pytest.raises(FedmmError, match="another process is at work in"):
            fedmm.tune(quick, seeds=1, out=tmp_path / "t", **options)
    assert state_of(tmp_path / "t") == state
    (rung,) = state["rungs"]
    for damaged in (
        {},
        *({**state, "pace": pace} for pace in ({"x": 1}, {"per_round": "x", "per_rung": 0.0})),
        *({**state, "plan": plan} for plan in ([], [{}], [{**state["plan"][0], "rounds": "2"}])),
        *({**state, "rungs": rungs} for rungs in ({}, [{"rounds": 2}])),
        *({**state, "rungs": [{**rung, key: None}]} for key in ("rounds", "judged_after", "order", "entries")),
        *({**state, "rungs": [{**rung, "entries": entries}]} for entries in ([1], rung["entries"][1:])),
        {**state, "rungs": [{**rung, "entries": rung["entries"][1:], "order": rung["order"][1:]}]},
        {**state, "rungs": [{**rung, "entries": [{**entry, "signals": []} for entry in rung["entries"]]}]},
        {**state, "rungs": [{**rung, "label_shift": {"distance": 0.1}}]},
        *({**state, key: None} for key in ("notes", "remarks", "competing", "title", "whole_plan")),
    ):
        (tmp_path / "t" / "tune.json").write_text(json.dumps(damaged), encoding="utf-8")
        with pytest.raises(FedmmError, match="not a tuning that can be continued"):
            fedmm.tune(quick, seeds=1, out=tmp_path / "t", resume=True)
    fedmm.tune(quick, seeds=1, out=tmp_path / "t", overwrite=True)
