"""What a single run says of adapting: every branch of its sentence, on one real run and copies of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import write_toml
from fedmm.core.signals.track_record import tell_record
from fedmm.core.signals.validators import ALONE, CANNOT_JUDGE, NOT_SUPPORTED, SUPPORTED
from fedmm.runs.run import run_experiment
from fedmm.runs.verdict import judge_run

TABLES: dict[str, Any] = {
    "run": {"rounds": 2, "batch_size": 4, "threads": 1},
    "data": {"name": "moons", "rows": 40, "test_rows": 30},
    "model": {"name": "mlp", "hidden": [3], "adversary_hidden": [3]},
    "algorithm": {"name": "fedmm", "local_steps": 1},
}
COMPARE = "fedmm compare moons.toml"
SMALL = {
    "source": [0.5, 0.5], "target": [0.5, 0.5], "distance": 0.01, "low": 0.0, "high": 0.05,
    "reliable": True, "notable": False, "sentence": "no sign of label shift",
}  # fmt: skip
GOOD = {"target_information": 0.6, "target_bnm": 0.9, "source_risk": 0.1, "label_shift": SMALL}
PLAIN = {"target_information": 0.3, "target_bnm": 0.7, "source_risk": 0.1, "label_shift": SMALL}


def given(**sections: dict[str, Any]) -> Experiment:
    return experiment({**TABLES, **{name: {**TABLES.get(name, {}), **table} for name, table in sections.items()}})


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "adapted"
    run_experiment(given(), folder, progress=False)
    return folder


class Runs:
    """Copies of one run, changed, in one folder."""

    def __init__(self, root: Path, finished: Path) -> None:
        self.root, self.finished = root, finished

    def add(self, name: str, experiment: Experiment | None = None, rounds: Any = None, **summary: Any) -> Path:
        folder = self.root / name
        shutil.copytree(self.finished, folder)
        told = json.loads((folder / "summary.json").read_text())
        if experiment is not None:
            (folder / "experiment.toml").write_text(write_toml(experiment.tables()))
            told |= {"seed": experiment.run.seed, "objective": experiment.objective.name}
            told |= {"partition": experiment.partition.name, "label": experiment.label}
        (folder / "summary.json").write_text(json.dumps(told | summary))
        lines = rounds or [{"round": 1, "target_information": 0.5, "source_risk": 0.2}]
        (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return folder

    def add_plain(self, seeds: int, **summary: Any) -> None:
        for seed in range(seeds):
            self.add(f"plain-{seed}", plain(seed), **{**PLAIN, **summary})

    def add_seeds(self, seeds: int) -> None:
        """More seeds of the same method."""
        for seed in range(1, seeds):
            self.add(f"adapted-{seed}", given(run={"seed": seed}), **GOOD)


def plain(seed: int = 0, **sections: dict[str, Any]) -> Experiment:
    return given(run={"seed": seed}, objective={"name": "source_only"}, algorithm={"name": "fedavg_gda"}, **sections)


@pytest.fixture
def runs(tmp_path: Path, finished: Path) -> Runs:
    return Runs(tmp_path, finished)


def judged(folder: Path, each: Experiment | None = None) -> dict[str, Any]:
    found = judge_run(folder, each or given(), COMPARE)
    assert found is not None
    assert json.loads((folder / "summary.json").read_text())["adaptation"] == found
    assert "\n" not in found["sentence"]
    return found


def test_a_run_alone_cannot_tell(runs: Runs) -> None:
    found = judged(runs.add("adapted", **GOOD))
    assert found["supported"] is None
    assert found["source_only_runs"] == 0
    assert found["warning_signs"] == []
    assert found["sentence"] == (
        f"{ALONE}; a source-only run of the same data beside it and 3 seeds of both methods are missing; "
        f"`{COMPARE}` trains and judges what is missing; {tell_record(None)}"
    )


def test_one_seed_beside_one_source_only_run_is_too_little(runs: Runs) -> None:
    runs.add_plain(1)
    found = judged(runs.add("adapted", **GOOD))
    assert found["supported"] is None
    assert found["sentence"].startswith(f"{CANNOT_JUDGE}: 3 seeds of each method are needed, not 1; judged against 1 ")
    assert f"`{COMPARE}`" in found["sentence"]


def test_three_seeds_of_both_may_support_it(runs: Runs) -> None:
    runs.add_plain(3)
    runs.add_seeds(3)
    found = judged(runs.add("adapted", **GOOD))
    assert found["supported"] is True
    assert found["sentence"].startswith(f"{SUPPORTED}: ")
    assert "judged against 3 source-only runs beside it" in found["sentence"]
    assert found["sentence"].endswith(tell_record(True))
    assert COMPARE not in found["sentence"]


def test_where_nothing_is_missing_but_the_class_mix_is_rough_no_command_is_advised(runs: Runs) -> None:
    rough = SMALL | {"distance": 0.2, "high": 0.6, "reliable": False, "notable": True}
    runs.add_plain(3, label_shift=rough)
    runs.add_seeds(3)
    found = judged(runs.add("adapted", **GOOD))
    assert found["supported"] is None
    assert (
        "a rough estimate, which labels of a few dozen target rows would settle; judged against 3" in found["sentence"]
    )
    assert COMPARE not in found["sentence"]


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({}, {}),
        ({"run": {"uploads": "int8"}}, {}),
        ({"run": {"stop_by": "source_risk"}}, {}),
        ({}, {"fingerprint": {"source": {"rows": 40, "classes": "other", "inputs": [0.1, 1.0]}}}),
    ],
    ids=["stopped early", "other uploads", "may stop early", "other rows"],
)
def test_runs_that_were_trained_otherwise_are_neither_compared_with_nor_counted_in(
    runs: Runs, tables: dict[str, Any], told: dict[str, Any]
) -> None:
    for seed in range(3):
        changed = {**tables, "run": {"seed": seed, **tables.get("run", {})}}
        as_plain = {"objective": {"name": "source_only"}, "algorithm": {"name": "fedavg_gda"}}
        runs.add(f"plain-{seed}", given(**{**changed, **as_plain}), **{**PLAIN, **told})
        runs.add(f"adapted-{seed}", given(**changed), **{**GOOD, **told})
    if not tables and not told:
        for path in runs.root.glob("*/summary.json"):
            path.write_text(json.dumps(json.loads(path.read_text()) | {"rounds": 1}))
    found = judged(runs.add("adapted", **GOOD))
    assert found["source_only_runs"] == 0
    runs.add("beside", plain(0), **PLAIN)
    assert "3 seeds of each method are needed, not 1" in judged(runs.root / "adapted")["sentence"]


def test_one_reason_against_is_enough(runs: Runs) -> None:
    runs.add_plain(1, target_information=0.65)
    found = judged(runs.add("adapted", **GOOD))
    assert found["supported"] is False
    assert found["sentence"].startswith(f"{NOT_SUPPORTED}: target_information is not higher in every seed")
    assert found["sentence"].endswith(tell_record(False))


@pytest.mark.parametrize(
    "other",
    [
        plain(data={"angle": 20.0}),
        plain(model={"hidden": [4]}),
        given(run={"rounds": 3}, objective={"name": "source_only"}),
        plain(data={"standardise_per_site": True}),
        given(objective={"name": "cdan"}),
    ],
    ids=["other data", "other model", "other rounds", "per site", "not source only"],
)
def test_what_is_no_source_only_run_of_the_same_data_is_not_compared_with(runs: Runs, other: Experiment) -> None:
    per_site = {"standardise_per_site": True} if "standardise_per_site" in other.tables()["data"] else {}
    runs.add("other", other, **PLAIN, **per_site)
    assert judged(runs.add("adapted", **GOOD))["source_only_runs"] == 0


def test_the_source_only_method_with_more_seeds_is_the_reference(runs: Runs) -> None:
    runs.add_plain(2)
    runs.add("other", given(objective={"name": "source_only"}), **{**PLAIN, "source_risk": 0.01})
    assert judged(runs.add("adapted", **GOOD))["source_only_runs"] == 2


@pytest.mark.parametrize("damage", ["interrupted", "numbers", "shift", "toml", "json", "no model"])
def test_a_damaged_or_unfinished_run_is_not_compared_with(runs: Runs, damage: str) -> None:
    told: dict[str, Any] = {
        "interrupted": {"status": "interrupted"}, "numbers": {"source_risk": "low"}, "shift": {"label_shift": {"a": 1}},
    }.get(damage, {})  # fmt: skip
    runs.add("plain", plain(), **{**PLAIN, **told})
    if damage == "toml":
        (runs.root / "plain" / "experiment.toml").write_text("[data")
    if damage == "json":
        (runs.root / "plain" / "summary.json").write_text("{")
    if damage == "no model":
        (runs.root / "plain" / "model.safetensors").unlink()
    assert judged(runs.add("adapted", **GOOD))["source_only_runs"] == 0


def test_signs_against_the_run_are_told_with_any_verdict(runs: Runs) -> None:
    rounds = [{"round": 1, "target_information": 0.6, "source_risk": 0.1}, {"round": 2, "loss": 1.0}]
    rounds += [{"round": 3, "target_information": 0.01, "source_risk": 0.5}]
    shift = {**SMALL, "notable": True, "reliable": False, "distance": 0.4}
    found = judged(runs.add("adapted", rounds=rounds, **{**GOOD, "label_shift": shift}))
    assert len(found["warning_signs"]) == 3
    assert found["sentence"].endswith(
        "; evidence against this run on its own: target_information is 0.01 nats, near 0: it collapsed, or has not "
        "learned yet, and source_risk rose from 0.1 in round 1 to 0.5, and the class mixes of source and target are "
        "estimated to differ in 40% of the rows, roughly"
    )


def test_where_compare_would_refuse_its_reason_is_told(runs: Runs) -> None:
    private = given(transmission={"name": "gaussian"})
    found = judged(runs.add("adapted", private), private)
    assert "fedmm compare cannot judge it either: transmission 'gaussian' adds noise to updates" in found["sentence"]
    assert COMPARE not in found["sentence"]


@pytest.mark.parametrize("each", [plain(), given(partition={"name": "target_supervised"})])
def test_where_nothing_was_adapted_nothing_is_said(runs: Runs, each: Experiment) -> None:
    assert judge_run(runs.add("run", each), each, COMPARE) is None


def test_a_run_that_was_interrupted_says_nothing(runs: Runs) -> None:
    assert judge_run(runs.add("adapted", status="interrupted"), given(), COMPARE) is None
