"""From the tables of a TOML file to an experiment and back, and every way in which a file can be wrong."""

from __future__ import annotations

import datetime
import itertools
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmm import ALGORITHMS, DANN, MDD, OBJECTIVES, FedMM, FedmmError, FedSGDA, RestrainedFedMM
from fedmm.algorithms.server_optimizers import ServerOptimizer
from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, write_toml
from fedmm.core.options import PRESETS, TrainOptions
from fedmm.core.schedules import SCHEDULES, CosineDecay, Schedule
from fedmm.core.target_losses import TARGET_LOSSES, TargetLoss
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS

EXAMPLES = Path(__file__).parents[2] / "examples"
SECTIONS: dict[str, Mapping[str, type]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "objective": OBJECTIVES,
    "algorithm": ALGORITHMS,
}
ROWS = [("run", "", TrainOptions)] + [(s, name, row) for s, rows in SECTIONS.items() for name, row in rows.items()]
KEYS = [(section, name, field) for section, name, row in ROWS for field in fields(row)]

each_row = pytest.mark.parametrize(("section", "name", "row"), ROWS, ids=[f"{s} {n}".strip() for s, n, _ in ROWS])
each_key = pytest.mark.parametrize(
    ("section", "name", "field"), KEYS, ids=[f"{s} {n} {f.name}".replace("  ", " ") for s, n, f in KEYS]
)

COMPANIONS: dict[tuple[str, str], dict[str, Any]] = {
    **{(name, "regulariser_weight"): {"regulariser": "chi_square"} for name in ("afl", "fedmm_agnostic", "drfa")},
    ("digits", "size"): {"kind": "blended"},
    ("digits", "copies"): {"kind": "blended"},
    ("office31", "target"): {"source": "dslr"},
    ("usps", "source"): {"target": "mnist"},
    ("usps", "target"): {"source": "usps"},
    **{(name, "source_share"): {"restrained": True} for name, kind in OBJECTIVES.items() if kind.tells_domains},
    ("backbone", "frozen"): {"batch_norm": "frozen"},
    ("image_folder", "target_sites"): {"sites": "there"},
    ("table", "target_sites"): {"site": "hospital"},
    ("table", "columns"): {"header": False},
}
"""What else has to be said where one key is given alone."""
REFUSABLE = {"target_loss", "sam_radius", "domain_smoothing", "restrained", "source_share"}
USELESS = {name: REFUSABLE - kind.used_options() for name, kind in OBJECTIVES.items()}
"""Keys of all objectives that some refuse, but for their defaults."""


def tables(**sections: dict[str, Any]) -> dict[str, Any]:
    """The smallest complete experiment, with some sections replaced."""
    complete = {
        "data": {"name": "moons"},
        "model": {"name": "mlp"},
        "objective": {"name": "dann"},
        "algorithm": {"name": "fedmm"},
    }
    return {**complete, **sections}


def table_of(section: str, name: str, **values: Any) -> dict[str, Any]:
    """An experiment in which one section has this row and these values."""
    named = {"name": name} if name else {}
    return tables(**{section: {**named, **values}})


def written(given: Experiment) -> Experiment:
    """The experiment after a way through a file."""
    return experiment(tomllib.loads(write_toml(given.tables())))


def refusal(given: Mapping[str, Any]) -> str:
    """The one sentence with which tables are refused."""
    with pytest.raises(FedmmError) as refused:
        experiment(given)
    sentence = str(refused.value)
    assert "\n" not in sentence
    assert ". " not in sentence
    assert not sentence.endswith(".")
    return sentence


def hint_of(row: type, field: Field[Any]) -> Any:
    return typing.get_type_hints(row)[field.name]


def another(field: Field[Any], hint: Any) -> Any:
    """A value for a key that is not its default, as TOML would give it."""
    value, options = field.default, typing.get_args(hint)
    if hint in (Schedule, Schedule | str):
        return {"name": "cosine_decay", "final": 0.25}
    if hint == TargetLoss | str:
        return {"name": "mcc", "temperature": 1.5}
    if hint == ServerOptimizer | str:
        return {"name": "adam", "epsilon": 0.5}
    if field.name in ("domain_smoothing", "positive_share", "source_share"):  # below 0.5, below 1
        return 0.1
    if typing.get_origin(hint) is Literal:
        return next(option for option in options if option != value)
    if typing.get_origin(hint) is tuple:
        words = ["mlflow"] if field.name == "track" else ["a b", "é"]
        return words if options[0] is str else [3, 2]
    if field.name == "max_update_ratio":  # 0, or above 1
        return 2.5
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return {"source-1": 3, "target-1": 2} if int in options else {"features": 0.002, "*": 0.25}
    if hint not in (bool, int, float, str):
        return {"a b": "é"} if options[1:] == (str,) else {"source-1": 2.0}
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        words = {
            "preset": "paper",
            "device": "auto",
            "separator": ";",
            "encoding": "utf-16",
            "best_by": "source_risk",
            "stop_by": "dev_risk",
        }
        return words.get(field.name, 'a "label" with é, \\ and\ttabs')
    return value + 1 if hint is int else value / 2 or 0.5


# The examples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["digits", "moons"])
def test_the_examples_are_complete_experiments(name: str) -> None:
    example = experiment(read_toml(EXAMPLES / f"{name}.toml"))
    assert example.data.name == name
    assert example.label == "FedMM"
    assert written(example) == example


def test_every_file_among_the_examples_is_tested() -> None:
    own = {"arrays", "pictures", "table"}
    assert {path.stem for path in EXAMPLES.glob("*.toml")} == {"digits", "moons", "sweep", "target_losses", *own}


@pytest.mark.parametrize("name", ["arrays", "pictures", "table", "digits"])
def test_what_the_examples_say_in_their_comments_can_be_said(name: str) -> None:
    text = (EXAMPLES / f"{name}.toml").read_text(encoding="utf-8")
    assert written(experiment(tomllib.loads(text))) == experiment(tomllib.loads(text))
    lines = text.splitlines()
    commented = [line for line in lines if line.startswith("# ") and " = " in line]
    assert commented
    for line in commented:
        said = text.replace(line, line.removeprefix("# "))
        said = said.replace("pretrained = true", "pretrained = false") if line.startswith("# weights") else said
        example = experiment(tomllib.loads(said))
        assert written(example) == example


# Short for others -----------------------------------------------------------------------------------------------------


def worst_site(**sections: dict[str, Any]) -> dict[str, Any]:
    named = {"data": {"name": "moons"}, "model": {"name": "mlp"}, "objective": {"name": "worst_site"}}
    return {**named, **sections}


def test_worst_site_is_source_only_by_an_algorithm_that_weighs_clients() -> None:
    in_full = {"objective": {"name": "source_only"}, "algorithm": {"name": "fedmm_agnostic"}}
    assert experiment(worst_site()) == experiment(worst_site(**in_full)) == written(experiment(worst_site()))
    options = {"algorithm": {"lr_min": 0.25}, "objective": {"name": "worst_site", "class_weights": "balanced"}}
    given = experiment(worst_site(**options))
    assert (given.algorithm.name, given.algorithm.lr_min) == ("fedmm_agnostic", 0.25)
    assert given.objective == OBJECTIVES["source_only"](class_weights="balanced")
    for name in ("afl", "drfa", "q_ffl"):
        assert experiment(worst_site(algorithm={"name": name})).algorithm.name == name


@pytest.mark.parametrize("preset", PRESETS)
def test_worst_site_goes_with_a_preset(preset: str) -> None:
    given = experiment(worst_site(run={"preset": preset}))
    assert (given.objective.name, given.algorithm.name) == ("source_only", "fedmm_agnostic")


def test_worst_site_says_which_algorithms_weigh_clients() -> None:
    assert refusal(worst_site(algorithm={"name": "fedmm"})) == (
        "objective.name = 'worst_site' needs an algorithm that weighs its clients, and fedmm does not; set "
        "algorithm.name to one of afl, drfa, fedmm_agnostic, q_ffl"
    )
    assert refusal(worst_site(algorithm={"name": "fdemm"})).startswith("unknown algorithm.name 'fdemm'")
    assert refusal(worst_site(algorithm={"name": ["afl"]})).startswith("algorithm.name must say which one to use")


# There and back -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_combination_of_rows_comes_back_from_its_file(algorithm: str, objective: str) -> None:
    for model, data, partition in itertools.product(MODELS, DATASETS, PARTITIONS):
        given = experiment(
            {
                "data": {"name": data},
                "partition": {"name": partition},
                "model": {"name": model},
                "objective": {"name": objective},
                "algorithm": {"name": algorithm},
            }
        )
        assert written(given) == given


@each_key
def test_every_key_comes_back_from_its_file(section: str, name: str, field: Field[Any]) -> None:
    row = SECTIONS[section][name] if name else TrainOptions
    if field.name in USELESS.get(name, ()):
        assert "must be" in refusal(table_of(section, name, **{field.name: another(field, hint_of(row, field))}))
        return
    changed = {field.name: another(field, hint_of(row, field))}
    given = experiment(table_of(section, name, **COMPANIONS.get((name, field.name), {}), **changed))
    assert getattr(getattr(given, section), field.name) != field.default
    assert written(given) == given


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_comes_back_from_its_file(schedule: str) -> None:
    given = experiment(
        tables(
            objective={"name": "dann", "nu_schedule": schedule},
            algorithm={"name": "fedmm", "lr_schedule": {"name": schedule}},
        )
    )
    assert isinstance(given.objective.nu_schedule, SCHEDULES[schedule])
    assert given.objective.nu_schedule == given.algorithm.lr_schedule
    assert written(given) == given


@pytest.mark.parametrize("name", TARGET_LOSSES)
def test_every_target_loss_comes_back_from_its_file(name: str) -> None:
    by_name, by_table = (
        experiment(tables(objective={"name": "dann", "target_loss": given})) for given in (name, {"name": name})
    )
    assert isinstance(by_name.objective.target_loss, TARGET_LOSSES[name])
    assert by_name == by_table == written(by_name)


def test_a_bad_target_loss_is_refused_by_its_key() -> None:
    def with_loss(value: Any) -> str:
        return refusal(tables(objective={"name": "dann", "target_loss": value}))

    assert with_loss("mmc").startswith("unknown objective.target_loss.name 'mmc'; did you mean 'mcc'?")
    assert with_loss({"temperature": 1.0}).startswith("objective.target_loss.name must say which one to use: bnm, im, ")
    assert with_loss({"name": "im", "temperature": 1.0}).startswith(
        "unknown key in [objective.target_loss] 'temperature'"
    )
    assert with_loss(1).startswith("objective.target_loss must be a target loss's name, or a table")


def test_options_of_a_schedule_come_back() -> None:
    given = experiment(tables(algorithm={"name": "fedmm", "lr_schedule": {"name": "cosine_decay", "final": 0.1}}))
    assert given.algorithm.lr_schedule == CosineDecay(final=0.1)
    assert written(given).algorithm.lr_schedule == CosineDecay(final=0.1)


@pytest.mark.parametrize("steps", [5, [5, 6], {"source-1": 5, "target-1": 6}])
def test_local_steps_are_for_all_clients_or_one_by_one(steps: Any) -> None:
    given = experiment(tables(algorithm={"name": "fedmm", "local_steps": steps}))
    assert given.algorithm.steps == (tuple(steps) if isinstance(steps, list) else steps)
    assert written(given) == given


def test_groups_with_dots_stars_and_odd_letters_come_back() -> None:
    rates = {"features.0": 0.001, "task head": 0.002, "é": 0.003, 'a"b': 0.004, "": 0.005, "*": 0.01}
    given = experiment(tables(algorithm={"name": "fedmm", "lr_min": rates}))
    assert written(given).algorithm.lr_min == rates


def test_a_whole_number_does_where_a_number_is_asked_for() -> None:
    given = experiment(tables(objective={"name": "dann", "nu": 2}, algorithm={"name": "fedmm", "lr_min": 1}))
    assert given.objective.nu == 2.0
    assert isinstance(given.objective.nu, float)
    assert written(given) == given


def test_an_experiment_cannot_be_changed_by_way_of_its_tables() -> None:
    given = experiment(tables(run={"client_weights": {"source-1": 2.0}}))
    given.tables()["run"]["client_weights"]["source-1"] = 3.0
    assert given.run.client_weights == {"source-1": 2.0}


# Defaults -------------------------------------------------------------------------------------------------------------


def test_run_and_partition_may_be_left_out() -> None:
    given = experiment(tables())
    assert given.run == TrainOptions()
    assert given.partition.name == "source_target"
    assert given.label == "fedmm"


def test_the_partition_is_source_target_unless_it_is_named() -> None:
    assert experiment(tables(partition={"source_clients": 3})).tables()["partition"]["source_clients"] == 3


def test_auto_is_a_device_that_is_there() -> None:
    assert TrainOptions(device="auto").torch_device.type in ("cpu", "cuda")


# Refusals -------------------------------------------------------------------------------------------------------------


def test_an_unknown_section_is_refused_with_the_nearest_one() -> None:
    assert refusal(tables(modle={})).startswith("unknown section 'modle'; did you mean 'model'?")


@each_row
def test_an_unknown_key_is_refused_with_the_nearest_one(section: str, name: str, row: type) -> None:
    for field in fields(row):
        wrong = field.name + "x"
        sentence = refusal(table_of(section, name, **{wrong: 1}))
        assert sentence.startswith(f"unknown key in [{section}] {wrong!r}; did you mean ")
        assert field.name in sentence


@pytest.mark.parametrize("section", ["data", "model"])
def test_a_missing_section_is_named(section: str) -> None:
    without = {key: value for key, value in tables().items() if key != section}
    assert refusal(without) == f"the section [{section}] is missing"


@pytest.mark.parametrize("without", [("objective", "algorithm"), ("objective",), ("algorithm",), ()])
@pytest.mark.parametrize("names_alone", [True, False])
def test_without_objective_and_algorithm_it_is_dann_by_the_restrained_fedmm(
    without: tuple[str, ...], names_alone: bool
) -> None:
    given = tables(objective={"name": "mdd"}, algorithm={"name": "fedsgda"})
    for section in without:
        if names_alone:
            given[section] = {}
        else:
            del given[section]
    built = experiment(given)
    assert built.objective == (DANN() if "objective" in without else MDD())
    assert built.algorithm == (RestrainedFedMM() if "algorithm" in without else FedSGDA())


def test_options_without_a_name_are_those_of_the_default() -> None:
    built = experiment(tables(objective={"nu": 0.25}, algorithm={"average_rate": 0.5}))
    assert built.objective == DANN(nu=0.25)
    assert built.algorithm == RestrainedFedMM(average_rate=0.5)
    assert built.label == "fedmm_restrained"
    assert written(built) == built


@pytest.mark.parametrize("section", ["run", *SECTIONS])
@pytest.mark.parametrize("value", [5, "moons", [1], [{"name": "moons"}], True])
def test_a_section_that_is_no_table_is_named(section: str, value: Any) -> None:
    assert refusal(tables(**{section: value})) == f"{section} must be a section of its own: [{section}]"


@pytest.mark.parametrize(
    ("section", "table"),
    [("data", {}), ("model", {})] + [(section, {"name": name}) for section in SECTIONS for name in (5, ["moons"])],
)
def test_a_missing_name_is_asked_for(section: str, table: dict[str, Any]) -> None:
    sentence = refusal(tables(**{section: table}))
    assert sentence.startswith(f"{section}.name must say which one to use: ")
    assert all(name in sentence for name in SECTIONS[section])


@pytest.mark.parametrize("section", SECTIONS)
def test_an_unknown_name_is_refused_with_the_nearest_one(section: str) -> None:
    known = next(iter(SECTIONS[section]))
    sentence = refusal(tables(**{section: {"name": known + "s"}}))
    assert sentence.startswith(f"unknown {section}.name '{known}s'; did you mean '{known}'?")


@each_key
def test_a_value_of_the_wrong_type_is_refused_by_its_key(section: str, name: str, field: Field[Any]) -> None:
    row = SECTIONS[section][name] if name else TrainOptions
    for wrong in wrong_values(hint_of(row, field)):
        sentence = refusal(table_of(section, name, **{field.name: wrong}))
        assert sentence.startswith(f"{section}.{field.name} must be "), wrong


def wrong_values(hint: Any) -> list[Any]:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    day = datetime.date(2021, 10, 15)
    if hint is bool:
        return [0, 1, "true", [True], day]
    if hint is int:
        return [1.0, True, "1", [1], {}, day]
    if hint is float:
        return [True, "1.0", [1.0], {}, day]
    if hint is str:
        return [1, True, ["a"], {}, day]
    if hint in (Schedule, Schedule | str, ServerOptimizer | str, TargetLoss | str):
        return [1, True, ["constant"], day]
    if origin is Literal:
        return ["nonsense", "", 1, True, list(options), {}, day]
    if origin is tuple and options[0] is str:
        return [1, "ab", [1], [True], ["a", 1], [["a"]], {"a": "b"}, day]
    if origin is tuple:
        return [1, "ab", [1.5, 1.5], [True, True], ["a", "b"], [[1], [2]], {"a": 1}, day] + (
            [] if options[-1] is Ellipsis else [[], [1], [1] * (len(options) + 1)]
        )
    if origin in (typing.Union, types.UnionType):
        per_client = [1.0, [1.0], {"a": 1.0}] if int in options else [[1.0]]
        return [True, "1", ["a"], {"a": "b"}, {"a": {"b": 1}}, {"a": True}, day, *per_client]
    assert issubclass(origin, Mapping)
    if options[1] is not float:
        return [1, "a", [1.0], {"a": [1.0]}, {"a": {"b": 1}}, day]
    return [1, "a", [1.0], {"a": "b"}, {"a": True}, {"a": [1.0]}, day]


IMPOSSIBLE: list[tuple[str, str, str, Any, str]] = [
    ("run", "", "rounds", 0, "at least 1"),
    ("run", "", "seed", -1, "at least 0"),
    ("run", "", "batch_size", 0, "at least 1"),
    ("run", "", "evaluate_every", 0, "at least 1"),
    ("run", "", "threads", -1, "at least 0"),
    ("run", "", "client_weights", {"source-1": 0.0}, "above 0"),
    ("data", "digits", "angle", 361.0, "between -360 and 360"),
    ("data", "digits", "test_rows", 0, "at least 1"),
    ("data", "digits", "test_rows", 1797, "below 1797"),
    ("data", "digits", "size", 20, "is an option of kind 'blended'"),
    ("data", "digits", "copies", 0, "at least 1"),
    ("data", "digits", "seed", -1, "at least 0"),
    ("data", "moons", "rows", 1, "at least 2"),
    ("data", "moons", "noise", -0.1, "0 or more"),
    ("data", "moons", "angle", -361.0, "between -360 and 360"),
    ("data", "moons", "test_rows", 1, "at least 2"),
    ("data", "moons", "seed", -1, "at least 0"),
    ("partition", "p_split", "p", 1.5, "between 0 and 1"),
    ("partition", "source_target", "source_clients", 0, "at least 1"),
    ("partition", "disjoint_classes", "target_clients", 0, "at least 1"),
    ("partition", "dirichlet", "alpha", 0.0, "between 1e-06 and 1e+06"),
    ("partition", "dirichlet", "min_rows", 0, "at least 1"),
    ("model", "mlp", "hidden", [], "at least one layer"),
    ("model", "mlp", "hidden", [8, 0], "at least 1"),
    ("model", "mlp", "task_hidden", [0], "at least 1"),
    ("model", "small_cnn", "channels", [0, 8], "at least 1"),
    ("model", "paper_cnn", "adversary_hidden", [-1], "at least 1"),
    ("model", "mlp", "head_dropout", 1.0, "between 0 and 0.99"),
    ("objective", "dann", "nu", -1.0, "0 or more"),
    ("objective", "dann", "gradient_scale", {"features": -1.0}, "0 or more"),
    ("objective", "dann", "gradient_scale", {}, "at least one group"),
    ("objective", "cdan", "random_dim", -1, "at least 0"),
    ("objective", "dann", "target_loss", {"name": "mcc", "temperature": 0.0}, "above 0"),
    ("objective", "dann", "target_weight", -1.0, "0 or more"),
    ("objective", "dann", "domain_smoothing", -0.1, "0 or more"),
    ("objective", "cdan", "domain_smoothing", 0.5, "below 0.5"),
    ("objective", "mdd", "sam_radius", -0.1, "0 or more"),
    ("objective", "mdd", "domain_smoothing", 0.1, "must be 0 for mdd"),
    ("objective", "source_only", "target_loss", "mcc", "must be 'none' for source_only"),
    ("objective", "source_only", "class_weights", "even", "one of 'none', 'balanced'"),
    ("objective", "auc", "sam_radius", 0.1, "must be 0 for auc"),
    ("objective", "auc", "form", "hinge", "one of 'margin', 'square'"),
    ("objective", "auc", "margin", 0.0, "above 0"),
    ("objective", "auc", "positive_share", 1.0, "at least 0 and below 1"),
    ("objective", "auc", "scaled", 1, "must be true or false"),
    ("objective", "auc", "max_fpr", 0.0, "above 0 and at most 1"),
    ("objective", "mdd", "gamma", 0.0, "above 0"),
    ("objective", "mdd", "epsilon", 0.0, "above 0"),
    ("algorithm", "fedmm", "lr_min", 0.0, "above 0"),
    ("algorithm", "fedmm", "lr_max", {"*": -1.0}, "above 0"),
    ("algorithm", "fedmm", "lr_max", {}, "at least one group"),
    ("algorithm", "fedmm", "penalty_min", 0.0, "above 0"),
    ("algorithm", "fedmm", "dual_decay", 1.5, "between 0 and 1"),
    ("algorithm", "fedmm", "local_steps", 0, "at least 1"),
    ("algorithm", "fedmm", "local_steps", [], "a number for each client"),
    ("algorithm", "fedmm", "local_steps", [1, 0], "at least 1"),
    ("algorithm", "fedmm", "local_steps", {}, "at least one client"),
    ("algorithm", "fedmm", "local_steps", {"source-1": 0}, "at least 1"),
    ("algorithm", "fedprox_gda", "penalty_max", -1.0, "0 or more"),
    ("algorithm", "fedavg_gda", "server_lr", 0.0, "above 0"),
    ("algorithm", "scaffold_gda", "server_lr", -1.0, "above 0"),
    ("objective", "dann", "nu_schedule", {"name": "tllib_warmup", "length": 0}, "above 0"),
]


@pytest.mark.parametrize(("section", "name", "key", "value", "words"), IMPOSSIBLE)
def test_an_impossible_value_is_refused_by_its_key(section: str, name: str, key: str, value: Any, words: str) -> None:
    sentence = refusal(table_of(section, name, **{key: value}))
    assert sentence.startswith(f"{section}.{key}")
    assert words in sentence


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@each_row
def test_a_number_that_is_not_finite_is_refused_by_its_key(section: str, name: str, row: type, value: float) -> None:
    hints = typing.get_type_hints(row)
    for key in (field.name for field in fields(row) if hints[field.name] is float):
        assert refusal(table_of(section, name, **{key: value})).startswith(f"{section}.{key} must be finite")


FLOATS_OF_SCHEDULES = [
    (name, field.name)
    for name, row in SCHEDULES.items()
    for field in fields(row)  # type: ignore[arg-type]
    if typing.get_type_hints(row)[field.name] is float
]


@pytest.mark.parametrize(("schedule", "option"), FLOATS_OF_SCHEDULES)
def test_a_schedule_refuses_numbers_that_are_not_finite(schedule: str, option: str) -> None:
    table = {"name": schedule, option: float("nan")}
    sentence = refusal(tables(algorithm={"name": "fedmm", "lr_schedule": table}))
    assert sentence.startswith(f"algorithm.lr_schedule.{option} must be finite")


@pytest.mark.parametrize("table", [{"name": "dann_decay", "alpha": -2.0}, {"name": "inverse_decay", "rate": -1.0}])
def test_a_decay_that_would_go_below_zero_is_refused(table: dict[str, Any]) -> None:
    assert "algorithm.lr_schedule" in refusal(tables(algorithm={"name": "fedmm", "lr_schedule": table}))


def test_a_bad_schedule_is_refused_by_its_key() -> None:
    def with_schedule(value: Any) -> str:
        return refusal(tables(objective={"name": "dann", "nu_schedule": value}))

    assert with_schedule("dann_warmups").startswith(
        "unknown objective.nu_schedule.name 'dann_warmups'; did you mean 'dann_warmup'?"
    )
    assert with_schedule({"gamma": 1.0}).startswith("objective.nu_schedule.name must say which one to use: ")
    assert with_schedule({"name": "dann_warmup", "gama": 1.0}).startswith(
        "unknown key in [objective.nu_schedule] 'gama'; did you mean 'gamma'?"
    )
    assert with_schedule({"name": "dann_warmup", "gamma": "x"}).startswith(
        "objective.nu_schedule.gamma must be a number"
    )


@pytest.mark.parametrize("device", ["gpu", "", "cpu0", "cuda:x", "CPU"])
def test_an_unknown_device_is_refused_by_its_key(device: str) -> None:
    with pytest.raises(FedmmError, match=r"^run\.device .* cannot be used here: ") as refused:
        _ = experiment(tables(run={"device": device})).run.torch_device
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("device", ["meta", "hpu", "privateuseone"])
def test_a_device_that_cannot_compute_is_refused_by_its_key(device: str) -> None:
    with pytest.raises(FedmmError, match=r"^run\.device "):
        _ = experiment(tables(run={"device": device})).run.torch_device


def test_more_threads_than_any_machine_has_are_refused() -> None:
    assert refusal(tables(run={"threads": 1_000_000})).startswith("run.threads must be ")


@pytest.mark.parametrize(
    ("section", "name", "key"),
    [
        ("algorithm", "fedmm", "lr_min"),
        ("objective", "dann", "nu"),
        ("data", "moons", "noise"),
    ],
)
@pytest.mark.parametrize("digits", [400, 5000])  # beyond floats; beyond what Python shows
def test_a_whole_number_beyond_all_floats_is_refused_by_its_key(section: str, name: str, key: str, digits: int) -> None:
    assert refusal(table_of(section, name, **{key: 10**digits})).startswith(f"{section}.{key} must be ")


@pytest.mark.parametrize(
    ("section", "name", "key", "huge"),
    [
        ("model", "mlp", "hidden", [10**12]),
        ("model", "mlp", "task_hidden", [10**12]),
        ("model", "mlp", "adversary_hidden", [10**12]),
        ("model", "small_cnn", "channels", [8, 10**12]),
        ("model", "mobilenet_v2", "bottleneck", 10**12),
        ("data", "moons", "rows", 10**14),
        ("data", "moons", "test_rows", 10**14),
        ("data", "digits", "copies", 10**14),
    ],
)
def test_what_no_memory_could_hold_is_refused_by_its_key(section: str, name: str, key: str, huge: Any) -> None:
    given = table_of(section, name, **{key: huge, **({"kind": "blended"} if name == "digits" else {})})
    assert refusal(given).startswith(f"{section}.{key} must be at most ")


# Presets --------------------------------------------------------------------------------------------------------------


def test_an_unknown_preset_is_refused_with_the_nearest_one() -> None:
    assert refusal(tables(run={"preset": "papers"})).startswith("unknown preset 'papers'; did you mean 'paper'?")
    with pytest.raises(FedmmError, match=r"^unknown preset 'papers'; did you mean 'paper'\?"):
        TrainOptions(preset="papers")


def test_with_a_preset_the_datas_name_is_asked_for_all_the_same() -> None:
    assert refusal(tables(run={"preset": "paper"}, data={})).startswith("data.name must say which one to use")


@pytest.mark.parametrize("section", ["objective", "algorithm"])
def test_with_a_preset_a_name_that_is_none_is_asked_for(section: str) -> None:
    given = tables(run={"preset": "paper"}, **{section: {"name": 5}})
    assert refusal(given).startswith(f"{section}.name must say which one to use")


@pytest.mark.parametrize("preset", PRESETS)
def test_with_a_preset_alone_it_is_the_papers_fedmm(preset: str) -> None:
    alone = experiment({"run": {"preset": preset}, "data": {"name": "digits", "kind": "blended"}})
    named = experiment(
        {
            "run": {"preset": preset},
            "data": {"name": "digits", "kind": "blended"},
            "objective": {"name": "dann"},
            "algorithm": {"name": "fedmm"},
        }
    )
    assert alone == named
    assert alone.algorithm.name == "fedmm"


def test_with_a_preset_options_without_a_name_are_those_of_the_papers_fedmm() -> None:
    built = experiment({"run": {"preset": "paper"}, "data": {"name": "digits"}, "algorithm": {"penalty_min": 3.0}})
    assert isinstance(built.algorithm, FedMM)
    assert (built.algorithm.name, built.algorithm.penalty_min, built.algorithm.penalty_max) == ("fedmm", 3.0, 1.0)


# Anything at all ------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = (
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=True, allow_infinity=True)
    | TEXT
    | st.dates()
    | st.times()
    | st.datetimes()
)
NAMES = st.sampled_from(sorted({*SECTIONS, "run", "name", "*", "features"} | {field.name for *_, field in KEYS}))
VALUES = st.recursive(
    SCALARS | st.sampled_from(["moons", "dann", "fedmm", "mlp", "source_target", "constant"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100)
@given(st.dictionaries(st.sampled_from(["run", *SECTIONS]) | TEXT, VALUES, max_size=6))
def test_whatever_the_tables_are_nothing_but_a_refusal_is_raised(given: dict[str, Any]) -> None:
    accepted_or_refused(given)


@settings(max_examples=400)
@given(st.sampled_from([(s, n, f.name) for s, n, f in KEYS]), VALUES)
def test_whatever_a_key_holds_nothing_but_a_refusal_is_raised(place: tuple[str, str, str], value: Any) -> None:
    section, name, key = place
    accepted_or_refused(table_of(section, name, **{key: value}))


def accepted_or_refused(given: dict[str, Any]) -> None:
    try:
        accepted = experiment(given)
    except FedmmError:
        return
    assert written(accepted) == accepted


def test_no_option_is_of_a_kind_that_these_tests_do_not_know() -> None:
    for _, _, row in ROWS:
        for field in fields(row):
            assert wrong_values(hint_of(row, field))
