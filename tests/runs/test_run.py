"""What a run leaves behind, however it ends."""

from __future__ import annotations

import gc
import json
import signal
import sys
import tomllib
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, OBJECTIVES, FedmmError
from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, set_values
from fedmm.data import PARTITIONS
from fedmm.engines.in_process import InProcess
from fedmm.models import MODELS
from fedmm.reporting import read_run
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import RunFolder
from fedmm.runs.summary import Summary
from fedmm.training.adaptation import Adaptation
from fedmm.training.history import History, Row
from fedmm.training.problem import AdaptationClient
from fedmm.training.progress import RoundProgress

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "moons": ["data.rows=40", "data.test_rows=20", "model.hidden=[8]", "model.adversary_hidden=[4]"],
    "digits": ["data.test_rows=1700", "model.hidden=[8]", "model.adversary_hidden=[4]"],
}
OPTIONAL = {"mobilenet_v2": "torchvision", "backbone": "torchvision"}
PICTURES_FROM = {"samples.safetensors", "boundary.safetensors"}
FILES = {
    "checkpoints", "experiment.toml", "rounds.jsonl", "summary.json", "model.safetensors", "exhibits.safetensors",
    "model-best.safetensors",
    "held.json",
    "input.json",
}  # fmt: skip
OF_TWO_CLASSES = {
    f"{domain}_{part}"
    for domain in ("target", "source")
    for part in ("auroc", "auroc_error", "average_precision", "average_precision_error", "balanced_accuracy")
}
ROUND_KEYS = {
    *OF_TWO_CLASSES,
    "round", "target_accuracy", "source_accuracy", "target_information", "target_entropy", "loss", "task_loss",
    "domain_loss", "drift", "consensus_gap", "dual_norm", "bytes_up", "bytes_down", "seconds", "clients", "refused",
    "target_bnm", "target_snd", "domain_accuracy", "proxy_a_distance",
}  # fmt: skip
BY_CLIENT = {f"{measure}.{client}-1" for measure in ("drift", "dual_norm") for client in ("source", "target")}
OF_A_DOMAIN_CLASSIFIER = {"domain_accuracy", "proxy_a_distance"}
EVALUATED = (
    "target_accuracy", "source_accuracy", "target_information", "target_entropy", "target_bnm", "target_snd",
    *sorted(OF_A_DOMAIN_CLASSIFIER), *sorted(OF_TWO_CLASSES),
)  # fmt: skip
SUMMARY_KEYS = {
    *OF_TWO_CLASSES,
    "kind", "status", "label", "algorithm", "objective", "data", "partition", "model", "seed", "rounds",
    "target_accuracy", "source_accuracy", "target_information", "target_entropy", "seconds", "bytes_up", "bytes_down",
    "parameters", "clients", "versions", "hardware", "engine", "precision", "refused", "guard",
    "fingerprint", "tested_rows", "best", "stopped_early",
    "target_bnm", "target_snd", "domain_accuracy", "proxy_a_distance", "label_shift", "tested_rows_trained_on",
}  # fmt: skip


def small(*settings: str, data: str = "moons") -> Experiment:
    """An example, shrunken to a fraction of a second, with further settings."""
    shrunken = [*SMALL[data], "run.rounds=3", "run.batch_size=8", "algorithm.local_steps=2"]
    return experiment(set_values(read_toml(EXAMPLES / f"{data}.toml"), [*shrunken, *settings]))


def run(folder: Path, *settings: str, **options: Any) -> Summary:
    return run_experiment(small(*settings), folder, progress=False, **options)


def rounds_of(folder: Path) -> list[Row]:
    return [json.loads(line, parse_constant=refuse) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def summary_of(folder: Path) -> Summary:
    content = json.loads((folder / "summary.json").read_text(), parse_constant=refuse)
    assert isinstance(content, dict)
    return content


def model_of(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def without_time(rows: list[Row]) -> list[Row]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def same_tensors(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# What is left behind --------------------------------------------------------------------------------------------------


def test_a_run_leaves_exactly_the_files_it_promises(tmp_path: Path) -> None:
    run(tmp_path / "moons")
    assert names_in(tmp_path / "moons") == FILES | PICTURES_FROM


def test_there_is_a_boundary_for_points_in_the_plane_alone(tmp_path: Path) -> None:
    run_experiment(small(data="digits"), tmp_path / "digits", progress=False)
    assert names_in(tmp_path / "digits") == FILES | {"samples.safetensors"}
    samples = load_file(tmp_path / "digits" / "samples.safetensors")
    assert {name: tuple(tensor.shape) for name, tensor in samples.items()} == {
        "source_x": (12, 1, 8, 8),
        "source_y": (12,),
        "target_x": (12, 1, 8, 8),
        "target_y": (12,),
    }


def test_every_round_is_one_json_object_on_a_line(tmp_path: Path) -> None:
    run(tmp_path)
    rows = rounds_of(tmp_path)
    assert [row["round"] for row in rows] == [1, 2, 3]
    for row in rows:
        assert set(row) == ROUND_KEYS | BY_CLIENT
        assert 0 <= row["target_accuracy"] <= 1  # type: ignore[operator]
        assert 0 <= row["source_accuracy"] <= 1  # type: ignore[operator]
        assert all(row[key] > 0 for key in ("consensus_gap", "dual_norm", "drift", "seconds"))  # type: ignore[operator]


def test_the_bytes_are_those_of_the_vectors_that_travel(tmp_path: Path) -> None:
    summary = run(tmp_path)
    sent = 2 * 4 * summary["parameters"]  # two clients, four bytes
    assert {(row["bytes_up"], row["bytes_down"]) for row in rounds_of(tmp_path)} == {(sent, sent)}
    assert (summary["bytes_up"], summary["bytes_down"]) == (3 * sent, 3 * sent)


def test_the_summary_says_what_was_run_and_what_came_of_it(tmp_path: Path) -> None:
    returned = run(tmp_path, "run.label=mine", "run.seed=3")
    summary, rows = summary_of(tmp_path), rounds_of(tmp_path)
    assert returned == summary
    assert set(summary) == SUMMARY_KEYS
    about = {
        "kind": "run", "status": "completed", "label": "mine", "algorithm": "fedmm", "objective": "dann",
        "data": "moons", "partition": "source_target", "model": "mlp", "seed": 3, "rounds": 3,
    }  # fmt: skip
    assert about.items() <= summary.items()
    assert summary["target_accuracy"] == rows[-1]["target_accuracy"]
    for measured in EVALUATED:
        assert summary[measured] == rows[-1][measured]
    assert summary["seconds"] == pytest.approx(sum(row["seconds"] for row in rows))  # type: ignore[misc]
    assert summary["clients"] == {
        "source-1": {"source_rows": 40, "target_rows": 0},
        "target-1": {"source_rows": 0, "target_rows": 40},
    }
    assert summary["parameters"] == sum(t.numel() for name, t in model_of(tmp_path).items() if name != "input_mean")
    assert set(summary["versions"]) == {"fedmm", "torch", "python"}
    assert set(summary["hardware"]) == {"device", "cores", "threads"}


def test_the_label_is_the_algorithms_name_unless_one_is_given(tmp_path: Path) -> None:
    assert run(tmp_path, "run.label=")["label"] == "fedmm"


def test_the_model_on_disk_is_the_model_that_was_measured(tmp_path: Path) -> None:
    given = small()
    summary = run_experiment(given, tmp_path, progress=False)
    test = given.data.load().target_test
    model = fedmm.load_model(tmp_path / "model.safetensors", given.model.build((2,), 2, seed=99))
    assert float((model.predict(test.x) == test.y).double().mean()) == summary["target_accuracy"]


def test_the_boundary_is_the_models_own_probability(tmp_path: Path) -> None:
    given = small()
    run_experiment(given, tmp_path, progress=False)
    model = fedmm.load_model(tmp_path / "model.safetensors", given.model.build((2,), 2, seed=99))
    boundary = load_file(tmp_path / "boundary.safetensors")
    i, j = 10, 150
    point = torch.stack([boundary["grid_x"][j], boundary["grid_y"][i]]).unsqueeze(0)
    assert float(model.predict_proba(point)[0, 1]) == pytest.approx(float(boundary["probability"][i, j]), abs=1e-6)


def test_what_a_run_leaves_can_be_read_by_reporting(tmp_path: Path) -> None:
    run(tmp_path)
    read = read_run(tmp_path)
    assert list(read.records) == [1, 2, 3]
    assert read.samples is not None
    assert read.samples.points
    assert read.boundary is not None


def test_rows_are_handed_out_as_they_are_written(tmp_path: Path) -> None:
    seen: list[tuple[Row, int]] = []
    run(tmp_path, on_round=lambda row: seen.append((row, len(rounds_of(tmp_path)))))
    assert [row for row, _ in seen] == rounds_of(tmp_path)
    assert [on_disk for _, on_disk in seen] == [1, 2, 3]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_algorithm_and_objective_runs(tmp_path: Path, algorithm: str, objective: str) -> None:
    tables = {**small().tables(), "objective": {"name": objective}, "algorithm": {"name": algorithm}}
    if "local_steps" in ALGORITHMS[algorithm].__dataclass_fields__:
        tables["algorithm"]["local_steps"] = 2
    summary = run_experiment(experiment(tables), tmp_path, progress=False)
    assert summary["status"] == "completed"
    left_out = set() if OBJECTIVES[objective].tells_domains else OF_A_DOMAIN_CLASSIFIER
    has_dual = "dual" in ALGORITHMS[algorithm]().init_client(torch.zeros(1))
    named = {key for key in BY_CLIENT if has_dual or not key.startswith("dual_norm")}
    if not OBJECTIVES[objective].adapts:
        named = {key for key in named if key.endswith("source-1")}
    assert set(rounds_of(tmp_path)[0]) == (ROUND_KEYS - left_out) | named


@pytest.mark.parametrize("partition", sorted(set(PARTITIONS) - {"by_site"}))
def test_every_partition_of_data_without_sites_runs(tmp_path: Path, partition: str) -> None:
    tables = {**small("run.rounds=1", data="digits").tables(), "partition": {"name": partition}}
    if partition == "target_supervised":
        tables["objective"] = {"name": "source_only"}
    summary = run_experiment(experiment(tables), tmp_path, progress=False)
    assert sum(held["source_rows"] for held in summary["clients"].values()) == 97
    unlabelled = 0 if partition == "target_supervised" else 97
    assert sum(held["target_rows"] for held in summary["clients"].values()) == unlabelled


@pytest.mark.parametrize("model", MODELS)
def test_every_model_runs(tmp_path: Path, model: str) -> None:
    if model in OPTIONAL:
        pytest.importorskip(OPTIONAL[model])
    tables = small("run.rounds=1", "algorithm.local_steps=1", data="digits").tables()
    tables["data"] |= {"kind": "blended", "size": 16, "copies": 1}
    tables["model"] = {"name": model, "task_hidden": [4], "adversary_hidden": [4]}
    assert run_experiment(experiment(tables), tmp_path, progress=False)["status"] == "completed"
    assert names_in(tmp_path) == FILES | {"samples.safetensors"}


# The same again -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["run.seed=5", "run.dtype=float64", "run.client_weights.source-1=2.0"],
        ["algorithm.local_steps={source-1=3, target-1=1}", "algorithm.lr_min={features=0.05, '*'=0.01}"],
        ["objective.name=cdan", "objective.random_dim=6", "objective.nu_schedule=dann_warmup"],
        ["objective.name=mdd", "model.task_hidden=[6]", "model.head_dropout=0.5", "algorithm.lr_schedule=dann_decay"],
        ["partition.name=p_split", "partition.p=0.7", "objective.gradient_scale={adversary=0.5, '*'=1.0}"],
        ["partition.name=dirichlet", "algorithm.name=fedmm", "model.centre=batch_mean"],
    ],
    ids=" ".join,
)
def test_the_resolved_file_gives_the_same_run_to_the_bit(tmp_path: Path, settings: list[str]) -> None:
    run(tmp_path / "first", *settings)
    resolved = experiment(tomllib.loads((tmp_path / "first" / "experiment.toml").read_text(encoding="utf-8")))
    assert resolved == small(*settings)
    run_experiment(resolved, tmp_path / "second", progress=False)
    assert same_tensors(model_of(tmp_path / "first"), model_of(tmp_path / "second"))
    assert without_time(rounds_of(tmp_path / "first")) == without_time(rounds_of(tmp_path / "second"))
    experiments = [(tmp_path / name / "experiment.toml").read_text() for name in ("first", "second")]
    assert experiments[0] == experiments[1]


def test_one_seed_gives_one_result_and_another_seed_another(tmp_path: Path) -> None:
    for number, (name, seed) in enumerate({"a": 0, "b": 0, "c": 1}.items()):
        torch.manual_seed(number)  # torch's own generator must not matter
        run(tmp_path / name, f"run.seed={seed}")
    assert same_tensors(model_of(tmp_path / "a"), model_of(tmp_path / "b"))
    assert without_time(rounds_of(tmp_path / "a")) == without_time(rounds_of(tmp_path / "b"))
    a, c = model_of(tmp_path / "a"), model_of(tmp_path / "c")
    assert not any(torch.equal(a[name], c[name]) for name in a if name != "input_mean")


def test_a_run_leaves_torchs_own_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    run(tmp_path)
    assert torch.equal(torch.rand(3), expected)


# Bounds ---------------------------------------------------------------------------------------------------------------


def test_the_targets_own_labels_are_a_bound_from_above_on_moons(tmp_path: Path) -> None:
    # Turned by 90 degrees the moons of the source say nothing of the target's; its own labels say everything.
    turned = ["data.angle=90", "data.rows=200", "data.test_rows=200", "model.hidden=[16]", "run.rounds=40"]
    plain = [*turned, "objective.name=source_only", "algorithm.lr_min=0.2", "algorithm.local_steps=10"]
    above = run(tmp_path / "above", *plain, "partition.name=target_supervised")
    below = run(tmp_path / "below", *plain, "partition.name=centralised")
    assert above["target_accuracy"] > 0.9 > below["target_accuracy"] + 0.1
    assert below["source_accuracy"] > below["target_accuracy"] + 0.2
    assert above["clients"] == {"client-1": {"source_rows": 200, "target_rows": 0}}


def test_a_centralised_client_trains_on_both_domains(tmp_path: Path) -> None:
    summary = run(tmp_path, "partition.name=centralised")
    assert summary["clients"] == {"client-1": {"source_rows": 40, "target_rows": 40}}
    assert summary["target_entropy"] is not None


# Evaluating now and then ----------------------------------------------------------------------------------------------


def test_evaluating_less_often_changes_nothing_but_what_is_measured(tmp_path: Path) -> None:
    run(tmp_path / "often", "run.rounds=5")
    run(tmp_path / "seldom", "run.rounds=5", "run.evaluate_every=2")
    assert same_tensors(model_of(tmp_path / "often"), model_of(tmp_path / "seldom"))
    often, seldom = (without_time(rounds_of(tmp_path / name)) for name in ("often", "seldom"))
    for every, now_and_then in zip(often, seldom, strict=True):
        measured = every["round"] in (2, 4, 5)
        for key in every.keys() - EVALUATED - BY_CLIENT:
            assert now_and_then[key] == every[key]
        for key in {*EVALUATED, *BY_CLIENT}:
            assert now_and_then.get(key) == (every[key] if measured else None)


def test_rounds_without_an_evaluation_hold_null(tmp_path: Path) -> None:
    run(tmp_path, "run.rounds=5", "run.evaluate_every=2")
    evaluated = ROUND_KEYS | BY_CLIENT
    assert [set(row) for row in rounds_of(tmp_path)] == [ROUND_KEYS, evaluated, ROUND_KEYS, evaluated, evaluated]


def test_the_last_round_is_always_evaluated(tmp_path: Path) -> None:
    summary = run(tmp_path, "run.evaluate_every=100")
    assert rounds_of(tmp_path)[-1]["target_accuracy"] == summary["target_accuracy"] is not None


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["run.device=nonsense"], "run.device 'nonsense' cannot be used here"),
        (["run.client_weights.nobody=2.0"], "unknown client in run.client_weights 'nobody'"),
        (["algorithm.local_steps={nobody=2}"], "unknown client in local_steps 'nobody'"),
        (["algorithm.local_steps={source-1=2}"], "local_steps gives no number for client 'target-1'"),
        (["algorithm.local_steps=[1, 2, 3]"], "local_steps holds 3 numbers for 2 clients"),
        (["objective.gradient_scale={nothing=1.0, '*'=1.0}"], "no parameter belongs to group 'nothing'"),
        (["model.name=small_cnn", "model.channels=[2, 2]"], "takes pictures"),
        (["partition.source_clients=1000"], "source_clients is 1000"),
        (["partition.name=p_split", "partition.p=0.5", "run.batch_size=1"], "batch_size must be at least 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_leaves_nothing_behind(tmp_path: Path, settings: list[str], words: str) -> None:
    tables = small().tables()
    if any(setting.startswith(("model.name", "partition.name")) for setting in settings):
        tables = {**tables, "model": {"name": "mlp"}, "partition": {}}
    given = experiment(set_values(tables, settings))
    with pytest.raises(FedmmError, match=words) as refused:
        run_experiment(given, tmp_path / "run", progress=False)
    assert "\n" not in str(refused.value)
    assert names_in(tmp_path) == set()


def raised_by(folder: Path, *settings: str, **options: Any) -> tuple[type[Exception] | None, list[str]]:
    """What a run raises, and which files it leaves open."""
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        raised = None
        try:
            run(folder, *settings, **options)
        except Exception as problem:
            raised = type(problem)
        gc.collect()
    return raised, [str(each.message) for each in warned]


@pytest.mark.parametrize("key", ["lr_min", "lr_max", "penalty_min", "penalty_max"])
@pytest.mark.parametrize("groups", ["{nothing=0.1, '*'=0.1}", "{nothing=0.1}"])
def test_an_unknown_group_leaves_nothing_behind(tmp_path: Path, key: str, groups: str) -> None:
    with pytest.raises(FedmmError, match="group"):
        run(tmp_path / "run", f"algorithm.{key}={groups}")
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize(
    "setting",
    [
        "algorithm.lr_schedule={name='dann_decay', alpha=-20.0}",
        "objective.nu_schedule={name='dann_warmup', gamma=-4000.0}",
    ],
)
def test_an_impossible_schedule_leaves_nothing_behind(tmp_path: Path, setting: str) -> None:
    with pytest.raises(FedmmError):
        run(tmp_path / "run", setting)
    assert names_in(tmp_path) == set()


def test_a_label_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    assert raised_by(tmp_path / "run", "run.label=\udcff") == (FedmmError, [])
    assert names_in(tmp_path) == set()


def test_whatever_ends_a_run_its_files_are_closed(tmp_path: Path) -> None:
    def fail(row: Row) -> None:
        raise RuntimeError(f"the user's own mistake in round {row['round']}")

    assert raised_by(tmp_path, on_round=fail) == (RuntimeError, [])


def test_bad_input_does_not_cost_the_older_run(tmp_path: Path) -> None:
    run(tmp_path)
    with pytest.raises(FedmmError):
        run(tmp_path, "run.device=nonsense", overwrite=True)
    assert names_in(tmp_path) == FILES | PICTURES_FROM


# Folders --------------------------------------------------------------------------------------------------------------


def test_an_older_run_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    run(tmp_path, "run.rounds=1")
    (tmp_path / "rounds.png").write_bytes(b"older")
    with pytest.raises(FedmmError, match="is not empty"):
        run(tmp_path)
    assert summary_of(tmp_path)["rounds"] == 1
    run(tmp_path, overwrite=True)
    assert summary_of(tmp_path)["rounds"] == 3
    assert names_in(tmp_path) == FILES | PICTURES_FROM


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_someone_else_is_never_deleted(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FedmmError, match="name another with --out"):
        run(tmp_path, overwrite=overwrite)
    assert names_in(tmp_path) == {"thesis.tex"}


# Runs that end early --------------------------------------------------------------------------------------------------

DIVERGING = ("algorithm.lr_min=1e3", "algorithm.lr_max=1e3", "run.rounds=50")


def test_a_run_that_diverges_says_so_and_keeps_the_rounds_so_far(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(FedmmError) as diverged:
        run(folder, *DIVERGING)
    summary, rows = summary_of(folder), rounds_of(folder)
    assert names_in(folder) == FILES | PICTURES_FROM
    assert summary["status"] == "diverged"
    assert summary["rounds"] == len(rows) > 0
    assert summary["target_accuracy"] == rows[-1]["target_accuracy"]
    assert all(tensor.isfinite().all() for tensor in model_of(folder).values())
    assert read_run(folder).status == "diverged"
    assert str(diverged.value) == (
        f"client 'source-1' produced non-finite parameters in round {len(rows) + 1}: use smaller learning rates or "
        f"larger penalties; the run up to round {len(rows)} is in {folder}"
    )


def test_the_model_of_a_diverged_run_is_that_of_its_last_good_round(tmp_path: Path) -> None:
    with pytest.raises(FedmmError):
        run(tmp_path / "diverged", *DIVERGING)
    good = summary_of(tmp_path / "diverged")["rounds"]
    run(tmp_path / "shorter", *DIVERGING, f"run.rounds={good}")
    assert same_tensors(model_of(tmp_path / "diverged"), model_of(tmp_path / "shorter"))


def test_a_run_that_diverges_in_its_first_round_leaves_a_readable_folder(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"in round 1: .* up to round 0 "):
        run(tmp_path, "algorithm.lr_min=1e30")
    summary = summary_of(tmp_path)
    assert (summary["status"], summary["rounds"], summary["target_accuracy"]) == ("diverged", 0, None)
    assert rounds_of(tmp_path) == []
    assert read_run(tmp_path).target_accuracy is None


def test_rounds_on_the_way_to_divergence_are_json_too(tmp_path: Path) -> None:
    with pytest.raises(FedmmError):
        run(tmp_path, "algorithm.lr_min=1e10", "algorithm.lr_max=1e10")
    assert rounds_of(tmp_path)[0]["drift"] is None


def test_a_summary_of_a_run_with_noise_holds_nothing_computed_from_rows_without_it(tmp_path: Path) -> None:
    summary = run(tmp_path, "transmission.name=gaussian", "run.probe_rows=0", "model.centre=none")
    assert "fingerprint" not in summary
    assert summary["label_shift"] is None


@pytest.mark.parametrize("last", [1, 2])
def test_an_interrupted_run_leaves_a_readable_folder(tmp_path: Path, last: int) -> None:
    def stop(row: Row) -> None:
        if row["round"] == last:
            raise KeyboardInterrupt

    summary = run(tmp_path / "run", on_round=stop)
    assert summary == summary_of(tmp_path / "run")
    assert (summary["status"], summary["rounds"]) == ("interrupted", last)
    assert names_in(tmp_path / "run") == FILES | PICTURES_FROM
    run(tmp_path / "shorter", f"run.rounds={last}")
    assert same_tensors(model_of(tmp_path / "run"), model_of(tmp_path / "shorter"))
    assert read_run(tmp_path / "run").status == "interrupted"


@pytest.mark.parametrize(
    "moment",
    [
        InProcess.run_round,
        AdaptationClient.open_round,
        Adaptation.evaluate,
        History.append,
        RoundProgress.after_round,
        RunFolder.append,
    ],
    ids=lambda moment: moment.__qualname__,
)
def test_whenever_ctrl_c_comes_rounds_summary_and_model_agree(tmp_path: Path, moment: types.FunctionType) -> None:
    calls = 0

    def press(frame: types.FrameType, event: str, argument: object) -> None:
        """Ctrl-C at the beginning of the fourth call of a function."""
        nonlocal calls
        calls += event == "call" and frame.f_code is moment.__code__
        if calls == 4:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(press)
    try:
        summary = run(tmp_path / "run", "run.rounds=9")
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    assert summary["status"] == "interrupted"
    rows = rounds_of(tmp_path / "run")
    assert [row["round"] for row in rows] == list(range(1, summary["rounds"] + 1))
    run(tmp_path / "shorter", f"run.rounds={summary['rounds']}")
    assert same_tensors(model_of(tmp_path / "run"), model_of(tmp_path / "shorter"))
    assert without_time(rows) == without_time(rounds_of(tmp_path / "shorter"))
