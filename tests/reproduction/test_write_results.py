"""Finished runs as lines of a file."""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import fedmm
from fedmm.config.schema import experiment
from fedmm.core.errors import FedmmError
from fedmm.core.options import TrainOptions
from fedmm.core.schedules import DannDecay
from fedmm.reproduction import write_results as results
from fedmm.reproduction.plan import PaperRun
from fedmm.reproduction.results import RESULTS, identity, read_lines
from fedmm.reproduction.write_results import (
    _SINCE,
    append_lines,
    collect,
    digest,
    relabel,
    result_line,
    stamp,
)
from fedmm.training.history import History

TABLES: dict[str, dict[str, Any]] = {
    "run": {"label": "FedMM", "seed": 1, "rounds": 4},
    "data": {"name": "moons", "rows": 40},
    "partition": {"name": "source_target"},
    "model": {"name": "mlp", "hidden": [4]},
    "objective": {"name": "dann", "nu": 0.5},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}


def paper_run(**changes: dict[str, Any]) -> PaperRun:
    tables = {section: {**TABLES.get(section, {}), **changes.get(section, {})} for section in {**TABLES, **changes}}
    return PaperRun("figure_1", "even", "fedmm", "method", "full", experiment(tables))


def line(curve: str = "fedmm", seed: int = 0, **values: Any) -> dict[str, Any]:
    return {"item": "figure_1", "panel": "even", "curve": curve, "seed": seed, "scale": "full", "digest": "d"} | values


def history(*accuracies: float | None, **last: float) -> History:
    rows = [{"round": t, "target_accuracy": value, "drift": 1.0} for t, value in enumerate(accuracies, start=1)]
    rows[-1].update(last)
    return History(rows)


# Lines ----------------------------------------------------------------------------------------------------------------


def test_what_is_appended_is_read(tmp_path: Path) -> None:
    path = tmp_path / "deep" / RESULTS
    append_lines(path, [line(), line("fedavg_gda")])
    append_lines(path, [line(seed=1)])
    assert read_lines(path) == [line(), line("fedavg_gda"), line(seed=1)]


def test_no_file_holds_no_lines(tmp_path: Path) -> None:
    assert read_lines(tmp_path / RESULTS) == []


def test_of_lines_for_one_run_the_last_counts(tmp_path: Path) -> None:
    append_lines(tmp_path / RESULTS, [line(rounds=1), line("fedavg_gda"), line(rounds=2)])
    assert read_lines(tmp_path / RESULTS) == [line("fedavg_gda"), line(rounds=2)]


@pytest.mark.parametrize("key", ["panel", "curve", "seed", "scale"])
def test_lines_that_differ_in_what_they_are_of_all_count(tmp_path: Path, key: str) -> None:
    append_lines(tmp_path / RESULTS, [line(), line(**{key: "another"})])
    assert len({identity(each) for each in read_lines(tmp_path / RESULTS)}) == 2


@pytest.mark.parametrize("kept", [1, 30, -2])
def test_a_torn_last_line_is_no_line_and_is_cut_off(tmp_path: Path, kept: int) -> None:
    path = tmp_path / RESULTS
    append_lines(path, [line(), line(seed=1)])
    first, second, _ = path.read_bytes().split(b"\n")
    path.write_bytes(first + b"\n" + second[:kept])
    assert read_lines(path) == [line()]
    append_lines(path, [line(seed=2)])
    assert path.read_text() == "".join(json.dumps(each) + "\n" for each in (line(), line(seed=2)))


def test_a_whole_last_line_without_its_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    path.write_text(json.dumps(line()))
    assert read_lines(path) == [line()]
    append_lines(path, [line(seed=1)])
    assert read_lines(path) == [line(), line(seed=1)]
    assert path.read_text().count("\n") == 2


def test_appending_nothing_still_cuts_what_is_torn(tmp_path: Path) -> None:
    path = tmp_path / RESULTS
    append_lines(path, [line()])
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"item": "fig')
    append_lines(path, [])
    assert path.read_bytes() == whole


@pytest.mark.parametrize("broken", ["no JSON", "[1]", "3", '{"panel": "even"}', json.dumps(line(seed=[1]))])
def test_what_is_no_result_in_the_middle_is_named(tmp_path: Path, broken: str) -> None:
    path = tmp_path / RESULTS
    path.write_text(f"{json.dumps(line())}\n\n{broken}\n{json.dumps(line(seed=1))}\n")
    with pytest.raises(FedmmError) as refused:
        read_lines(path)
    assert str(refused.value) == f"{path}, line 3, is not a result of a run; remove the line"


def test_what_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match=r"results cannot be written to .*: "):
        append_lines(tmp_path / "file" / RESULTS, [line()])
    with pytest.raises(FedmmError, match="cannot be read: "):
        read_lines(tmp_path)


def test_a_line_holds_the_last_measures_and_all_of_them_over_the_rounds() -> None:
    found = result_line(paper_run(), history(None, 0.123456789, None, 0.25), "completed", {"command": "x"})
    assert (found["target_accuracy"], found["rounds"], found["status"]) == (0.25, 4, "completed")
    assert found["series"]["round"] == [2, 4]
    assert found["series"]["target_accuracy"] == [0.12346, 0.25]
    assert found["series"]["source_risk"] == [None, None]
    assert (found["label"], found["algorithm"], found["objective"], found["seed"]) == ("FedMM", "fedmm", "dann", 1)
    assert found["provenance"] == {"command": "x"}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_becomes_null(tmp_path: Path, value: float) -> None:
    found = result_line(paper_run(), history(0.5, 0.5, source_risk=value), "diverged", {})
    assert found["source_risk"] is None
    append_lines(tmp_path / RESULTS, [found])
    assert read_lines(tmp_path / RESULTS) == [found]


def test_a_run_that_was_never_measured_has_no_accuracy() -> None:
    found = result_line(paper_run(), History(), "diverged", {})
    assert (found["target_accuracy"], found["rounds"], found["series"]["round"]) == (None, 0, [])


def test_a_result_for_another_panel_keeps_its_numbers() -> None:
    found = result_line(paper_run(), history(0.5), "completed", {"command": "x"})
    other = replace(paper_run(run={"label": "again"}), item="figure_2", panel="other", curve="again", role="bound")
    copied = relabel(found, other)
    assert copied == result_line(other, history(0.5), "completed", {"command": "x"})
    assert found["panel"] == "even", "the original is left alone"


# Fingerprints ---------------------------------------------------------------------------------------------------------

NOT_WHAT: dict[str, Any] = {
    "device": "auto", "precision": "bf16", "engine": "batched", "threads": 2, "evaluate_every": 3, "label": "other",
    "checkpoint_every": 5, "checkpoint_seconds": 1.0, "keep_checkpoints": 3, "best_by": "source_risk",
    "actors": 2, "ray_address": "auto", "stacked": True, "durable": True, "track": ["tensorboard"],
    "keep_rows": False,
}  # fmt: skip
WHAT: dict[str, Any] = {
    "rounds": 5, "seed": 2, "batch_size": 32, "probe_rows": 10, "dtype": "float64", "client_weights": {"source-1": 2.0},
    "preset": "paper", "participation": 0.5, "on_bad_update": "skip", "max_update_norm": 2.0, "max_update_ratio": 3.0,
    "uploads": "int8", "broadcasts": "fp16", "secure_sum": True,
    "stop_by": "target_entropy", "patience": 9, "min_rounds": 3, "min_delta": 0.1,
}  # fmt: skip


def test_every_option_of_a_run_is_in_one_of_the_lists() -> None:
    assert NOT_WHAT.keys() | WHAT.keys() == {field.name for field in fields(TrainOptions)}
    assert not NOT_WHAT.keys() & WHAT.keys()


@pytest.mark.parametrize("key", NOT_WHAT)
def test_where_a_run_is_computed_and_what_it_is_called_is_not_in_its_fingerprint(key: str) -> None:
    assert digest(paper_run(run={key: NOT_WHAT[key]})) == digest(paper_run())


@pytest.mark.parametrize("key", WHAT)
def test_any_other_option_of_a_run_is_in_its_fingerprint(key: str) -> None:
    assert digest(paper_run(run={key: WHAT[key]})) != digest(paper_run())


@pytest.mark.parametrize(
    "changes",
    [
        {"data": {"rows": 41}},
        {"data": {"seed": 1}},
        {"partition": {"target_clients": 2}},
        {"model": {"hidden": [5]}},
        {"model": {"centre": "none"}},
        {"objective": {"nu": 0.25}},
        {"objective": {"name": "mdd"}},
        {"objective": {"nu_schedule": "dann_warmup"}},
        {"algorithm": {"penalty_max": 2.0}},
        {"algorithm": {"name": "fedmm_smoothed"}},
        {"algorithm": {"local_steps": {"source-1": 2, "target-1": 3}}},
        {"algorithm": {"lr_schedule": "dann_decay"}},
        {"aggregation": {"name": "median"}},
        {"transmission": {"name": "clip"}},
    ],
    ids=json.dumps,
)
def test_any_other_section_is_in_the_fingerprint(changes: dict[str, dict[str, Any]]) -> None:
    assert digest(paper_run(**changes)) != digest(paper_run())


def test_a_default_that_is_written_out_changes_nothing() -> None:
    assert digest(paper_run(algorithm={"lr_min": 0.01}, run={"batch_size": 64})) == digest(paper_run())


def test_options_that_came_later_leave_the_fingerprints_of_older_results_alone() -> None:
    # as it was before there were sections [aggregation] and [transmission], and losses on target rows alone
    tables = paper_run().experiment.tables()
    run = {key: value for key, value in tables["run"].items() if key in WHAT.keys() - _SINCE["run"].keys()}
    older = {section: tables[section] for section in ("data", "partition", "model", "objective", "algorithm")}
    older["objective"] = {key: value for key, value in older["objective"].items() if key not in _SINCE["objective"]}
    text = json.dumps({**older, "run": run}, sort_keys=True)
    assert digest(paper_run()) == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_order_of_keys_and_the_panel_change_nothing() -> None:
    turned = {section: dict(reversed(table.items())) for section, table in TABLES.items()}
    other = PaperRun("table_1", "row", "cell", "bound", "smoke", experiment(turned))
    assert digest(other) == digest(paper_run())


def test_options_of_a_schedule_are_in_the_fingerprint() -> None:
    run = paper_run(algorithm={"lr_schedule": "dann_decay"})
    slower = replace(run.experiment, algorithm=replace(run.experiment.algorithm, lr_schedule=DannDecay(alpha=5.0)))
    assert digest(replace(run, experiment=slower)) != digest(run)


# All numbers ----------------------------------------------------------------------------------------------------------


def test_every_number_at_full_scale_is_collected_without_its_series(tmp_path: Path) -> None:
    kept = line(target_accuracy=0.5, series={"round": [1]}, provenance={"command": "x"})
    append_lines(tmp_path / "figure_1" / RESULTS, [kept, line(seed=1, scale="smoke")])
    append_lines(tmp_path / "figure_2" / RESULTS, [line(item="figure_2")])
    path = collect(tmp_path, ["figure_1", "figure_2", "table_1"])
    assert path == tmp_path / "results.json"
    found = json.loads(path.read_text())["results"]
    assert [(each["item"], each["seed"]) for each in found] == [("figure_1", 0), ("figure_2", 0)]
    assert found[0] == {key: value for key, value in kept.items() if key not in ("series", "scale")}


# Where a number comes from --------------------------------------------------------------------------------------------


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository in which the library lies as it does here."""
    inside = tmp_path / "src" / "fedmm" / "experiment"
    inside.mkdir(parents=True)
    (inside / "results.py").write_text("")
    (tmp_path / "README.md").write_text("")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "first")
    monkeypatch.setattr(results, "__file__", str(inside / "results.py"))
    monkeypatch.delenv("FEDMM_COMMIT", raising=False)
    return tmp_path


def test_a_number_is_stamped_with_command_commit_and_date(checkout: Path) -> None:
    found = stamp("fedmm reproduce figure-1")
    assert found["command"] == "fedmm reproduce figure-1"
    assert found["commit"] == git(checkout, "rev-parse", "--short=12", "HEAD").strip()
    assert datetime.fromisoformat(found["date"]).tzinfo is not None


def test_a_plus_sign_says_that_the_source_has_been_changed_since(checkout: Path) -> None:
    commit = stamp("x")["commit"]
    (checkout / "README.md").write_text("more")
    assert stamp("x")["commit"] == commit
    (checkout / "src" / "fedmm" / "new.py").write_text("")
    assert stamp("x")["commit"] == commit + "+"


def test_elsewhere_the_commit_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDMM_COMMIT", "abc")
    assert stamp("x")["commit"] == "abc"


def test_outside_a_repository_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(results, "__file__", str(tmp_path / "results.py"))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("FEDMM_COMMIT", raising=False)
    assert stamp("x")["commit"] == "unknown"


def test_the_librarys_own_commit_is_found_wherever_it_is_imported_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMM_COMMIT", raising=False)
    root = Path(fedmm.__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("the library does not lie in a checkout")
    assert stamp("x")["commit"].removesuffix("+") == git(root, "rev-parse", "--short=12", "HEAD").strip()
