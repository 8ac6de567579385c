"""Grids of experiments, and which of them make one program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedmm.config.schema import experiment
from fedmm.config.sweep_grid import grid, groups
from fedmm.config.toml import read_tables, read_toml
from fedmm.core.errors import FedmmError
from fedmm.core.target_losses import TARGET_LOSSES
from fedmm.objectives import CDAN
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.comparison import folder_names

EXAMPLE = Path(__file__).parents[2] / "examples" / "sweep.toml"

SMALL: dict[str, Any] = {
    "run": {"rounds": 2, "batch_size": 8},
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4]},
    "objective": {"name": "dann"},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}


def swept(**sweep: Any) -> dict[str, Any]:
    return {**SMALL, "sweep": sweep}


def test_the_example_is_two_algorithms_with_three_seeds() -> None:
    found = [(each.algorithm.name, each.run.seed) for each in grid(read_toml(EXAMPLE))]
    assert sorted(found) == [(name, seed) for name in ("fedavg_gda", "fedmm") for seed in range(3)]


def test_the_example_of_target_losses_is_each_of_them_with_three_seeds() -> None:
    experiments = grid(read_tables(EXAMPLE.parent / "target_losses.toml"))
    found = [(each.objective.target_loss.name, each.run.seed) for each in experiments]
    assert sorted(found) == [(name, seed) for name in sorted(TARGET_LOSSES) for seed in range(3)]


def test_every_combination_of_the_lists_is_run() -> None:
    experiments = grid(swept(**{"run.seed": [0, 1], "algorithm": [{"name": "fedsgda"}, {"name": "fedmm"}]}))
    assert [(e.run.seed, e.algorithm.name) for e in experiments] == [
        (0, "fedsgda"), (0, "fedmm"), (1, "fedsgda"), (1, "fedmm"),
    ]  # fmt: skip


def test_nested_tables_and_dotted_keys_say_the_same() -> None:
    assert grid(swept(**{"objective.nu": [0.5, 1.0]})) == grid(swept(objective={"nu": [0.5, 1.0]}))


def test_labels_tell_settings_apart_and_leave_seeds_to_the_spread() -> None:
    labels = [each.label for each in grid(swept(**{"objective.nu": [0.5, 1.0], "run.seed": [0, 1]}))]
    assert labels == ["fedmm nu=0.5", "fedmm nu=0.5", "fedmm nu=1.0", "fedmm nu=1.0"]


def test_without_an_algorithm_the_label_is_that_of_the_default() -> None:
    tables = {section: table for section, table in swept(**{"objective.nu": [0.5]}).items() if section != "algorithm"}
    assert [each.label for each in grid(tables)] == ["fedmm_restrained nu=0.5"]


@pytest.mark.parametrize("section", ["run", "data"])
def test_a_section_that_is_no_table_is_named(section: str) -> None:
    with pytest.raises(FedmmError, match=rf"^{section} must be a section of its own: \[{section}\]$"):
        grid({**swept(**{"objective.nu": [0.5]}), section: 3})


def test_a_key_that_is_there_twice_is_named() -> None:
    with pytest.raises(FedmmError, match=r"^sweep\.run\.seed occurs twice; give one list of values$"):
        grid(swept(**{"run.seed": [0], "run": {"seed": [1]}}))


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({}, r"\[sweep\] must hold at least one list of values"),
        ({"run.seed": 3}, "sweep.run.seed must be a list of values to try, not 3"),
        ({"run.seed": []}, "sweep.run.seed must be a list of values"),
        ({"algorithm": ["fedmm"]}, r"sweep.algorithm must be a list of tables for \[algorithm\]"),
        ({"run.sed": [1]}, r"unknown key in \[run\] 'sed'; did you mean 'seed'"),
        ({"run.seed": list(range(101)), "objective.nu": [float(i) for i in range(100)]}, "has 10100 runs"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_sentence(sweep: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError, match=words) as refused:
        grid(swept(**sweep))
    assert "\n" not in str(refused.value)


def members(**sweep: Any) -> list[int]:
    experiments = grid(swept(**sweep))
    cache = DataCache()
    return sorted(len(group.members) for group in groups(experiments, [prepare(each, cache) for each in experiments]))


@pytest.mark.parametrize(
    "sweep",
    [
        {"run.seed": [0, 1]},
        {"objective.nu": [0.5, 1.0]},
        {"algorithm.lr_min": [0.01, 0.02]},
        {"algorithm": [{"name": "fedmm"}, {"name": "scaffold_gda", "local_steps": 3}]},
        {"partition": [{"name": "p_split", "p": 1.0}, {"name": "source_target"}]},
        {"data.angle": [10.0, 35.0]},
    ],
    ids=lambda sweep: next(iter(sweep)),
)
def test_runs_of_one_shape_make_one_program(sweep: dict[str, Any]) -> None:
    assert members(**sweep) == [2]


@pytest.mark.parametrize(
    "sweep",
    [
        {"model.hidden": [[4], [5]]},
        {"objective": [{"name": "dann"}, {"name": "mdd"}]},
        {"objective": [{"name": "mdd", "gamma": 1.0}, {"name": "mdd", "gamma": 4.0}]},
        {"run.batch_size": [8, 9]},
        {"run.rounds": [2, 3]},
        {"partition.target_clients": [1, 2]},
        {"run.dtype": ["float32", "float64"]},
    ],
    ids=lambda sweep: next(iter(sweep)),
)
def test_runs_of_other_shapes_make_programs_of_their_own(sweep: dict[str, Any]) -> None:
    assert members(**sweep) == [1, 1]


def test_runs_of_one_algorithm_stand_together_in_a_program() -> None:
    experiments = grid(swept(**{"run.seed": [0, 1], "algorithm": [{"name": "fedsgda"}, {"name": "fedmm"}]}))
    cache = DataCache()
    (group,) = groups(experiments, [prepare(each, cache) for each in experiments])
    assert [experiments[number].algorithm.name for number in group.members] == ["fedmm"] * 2 + ["fedsgda"] * 2


def test_replicas_share_the_rows_of_one_data_set() -> None:
    experiments = grid(swept(**{"run.seed": [0, 1]}))
    cache = DataCache()
    first, second = (prepare(each, cache).client_data[0].source for each in experiments)
    assert first is not None
    assert second is not None
    assert first.x.data_ptr() == second.x.data_ptr()  # type: ignore[attr-defined]


def test_objectives_are_swept_by_their_names() -> None:
    experiments = grid(swept(**{"objective.name": ["dann", "cdan", "source_only"], "run.seed": [0, 1]}))
    found = [(each.label, each.objective.name, each.run.seed) for each in experiments]
    assert found == [
        ("fedmm dann", "dann", 0), ("fedmm dann", "dann", 1),
        ("fedmm cdan", "cdan", 0), ("fedmm cdan", "cdan", 1),
        ("source only", "source_only", 0), ("source only", "source_only", 1),
    ]  # fmt: skip
    assert len(set(folder_names(experiments))) == 6


def test_options_of_one_objective_go_to_that_one_alone() -> None:
    tables = swept(**{"objective.name": ["dann", "cdan"]}) | {"objective": {"random_dim": 16, "nu": 0.5}}
    dann, cdan = (each.objective for each in grid(tables))
    assert isinstance(cdan, CDAN)
    assert (dann.nu, cdan.nu, cdan.random_dim) == (0.5, 0.5, 16)


def test_terms_of_a_sweep_are_for_the_objectives_that_have_a_use_for_them() -> None:
    tables = swept(**{"objective.name": ["dann", "mdd", "source_only"], "objective.target_loss": ["none", "mcc"]})
    tables["objective"] = {"domain_smoothing": 0.1, "target_weight": 0.2}
    found = [(e.objective.name, e.objective.target_loss.name, e.objective.domain_smoothing) for e in grid(tables)]
    assert found == [
        ("dann", "none", 0.1),
        ("dann", "mcc", 0.1),
        ("mdd", "none", 0.0),
        ("mdd", "mcc", 0.0),
        ("source_only", "none", 0.0),
    ]


def test_an_option_that_source_only_has_no_use_for_does_not_run_it_twice() -> None:
    found = [
        each.label for each in grid(swept(**{"objective.name": ["dann", "source_only"], "objective.nu": [0.5, 1.0]}))
    ]
    assert found == ["fedmm dann nu=0.5", "fedmm dann nu=1.0", "source only"]


def test_an_option_that_no_objective_has_is_refused() -> None:
    with pytest.raises(FedmmError, match="unknown key in \\[objective\\] 'gama'"):
        grid(swept(**{"objective.name": ["dann", "mdd"], "objective.gama": [1.0]}))
    with pytest.raises(FedmmError, match=r"unknown objective\.name 'dan'; did you mean 'dann'"):
        grid(swept(**{"objective.name": ["dan", "mdd"]}))


def test_options_of_one_algorithm_go_to_that_one_alone() -> None:
    experiments = grid(swept(**{"algorithm.name": ["fedavg_gda", "fedmm"], "algorithm.penalty_min": [0.5, 1.0]}))
    assert [each.label for each in experiments] == ["fedavg_gda", "fedmm penalty_min=0.5", "fedmm penalty_min=1.0"]


def test_a_label_of_ones_own_is_told_apart_by_what_is_swept() -> None:
    tables = swept(**{"objective.name": ["dann", "source_only"], "algorithm.name": ["fedavg_gda", "fedmm"]})
    tables["run"] = {**SMALL["run"], "label": "mine"}
    assert [each.label for each in grid(tables)] == [
        "mine dann fedavg_gda", "mine dann fedmm", "mine source_only fedavg_gda", "mine source_only fedmm",
    ]  # fmt: skip


def test_what_adapts_nothing_is_called_source_only_but_not_what_learns_the_targets_labels() -> None:
    plain = experiment({**SMALL, "objective": {"name": "source_only"}})
    assert plain.label == "source only"
    supervised = experiment({**SMALL, "objective": {"name": "source_only"}, "partition": {"name": "target_supervised"}})
    assert supervised.label == "fedmm"
