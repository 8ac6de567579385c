"""What a tuning tries."""

from __future__ import annotations

from typing import Any

import pytest

from fedmm.config.sweep_grid import groups
from fedmm.core.errors import FedmmError
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.tuning.candidates import derive_candidates

TABLES: dict[str, Any] = {
    "run": {"rounds": 20, "label": "mine"},
    "data": {"name": "moons", "rows": 60, "test_rows": 30},
    "model": {"name": "mlp", "hidden": [6]},
    "objective": {"name": "dann", "nu": 0.7},
    "algorithm": {"name": "fedmm_smoothed", "lr_max": 0.02, "local_steps": 2},
}


def test_the_default_grid_varies_algorithm_penalty_rate_and_trade_off_around_what_was_given() -> None:
    found = derive_candidates(TABLES)
    assert [*found][:2] == ["source only", "as given"]
    assert len(found) == 2 + 4 * 18 + 6
    assert found["source only"].source_only
    assert found["as given"].objective.nu == 0.7
    best = found["fedmm lr_max=0.04 nu=0.3 penalty=2"]
    assert best.algorithm.name == "fedmm"
    assert {each.algorithm.name for each in found.values()} == {
        "fedmm_restrained", "fedmm_smoothed", "fedmm", "fedmm_ascent", "fedavg_gda"
    }  # fmt: skip
    assert (best.algorithm.lr_max, best.algorithm.local_steps) == (0.04, 2)
    assert {each.run.label for each in found.values()} == {"mine"}
    assert {each.run.rounds for each in found.values()} == {20}


def test_all_candidates_of_one_field_are_one_program_and_source_only_another() -> None:
    found, cache = list(derive_candidates(TABLES).values()), DataCache()
    programs = groups(found, [prepare(each, cache) for each in found])
    assert [len(program.members) for program in programs] == [1, len(found) - 19, 18]


def test_with_objectives_each_is_tried() -> None:
    found = derive_candidates(TABLES, ["cdan", "mdd"])
    assert {each.objective.name for each in found.values()} == {"source_only", "dann", "cdan", "mdd"}
    assert len(found) == 2 + 2 * 78


def test_a_table_of_ones_own_is_a_grid_as_in_a_sweep_and_what_was_given_is_there_once() -> None:
    grid = {"algorithm.name": ["fedmm_smoothed", "fedavg_gda"], "algorithm": {"lr_max": [0.02, 0.1]}}
    found = derive_candidates({**TABLES, "tune": grid})
    assert [*found] == ["source only", "as given", "fedmm_smoothed lr_max=0.1", "fedavg_gda", "fedavg_gda lr_max=0.1"]


def test_source_only_can_be_built_beside_an_objective_that_scales_the_gradient_of_its_adversary() -> None:
    scaled = {"objective": {**TABLES["objective"], "gradient_scale": {"adversary": 2.0, "*": 1.0}}}
    found = derive_candidates({**TABLES, **scaled})
    assert found["as given"].objective.gradient_scale == {"adversary": 2.0, "*": 1.0}
    for label in ("source only", "as given"):
        prepare(found[label], DataCache())


def test_labels_name_tables_and_losses_readably() -> None:
    grid = {"algorithm.lr_min": [{"*": 0.2, "features": 0.1}], "objective.target_loss": ["mcc", {"name": "im"}]}
    grid["objective.target_loss"].append({"name": "mcc", "temperature": 4.0})
    assert list(derive_candidates({**TABLES, "tune": grid}))[2:] == [
        "fedmm_smoothed lr_min={*: 0.2, features: 0.1} target_loss=mcc",
        "fedmm_smoothed lr_min={*: 0.2, features: 0.1} target_loss=im",
        "fedmm_smoothed lr_min={*: 0.2, features: 0.1} target_loss=mcc(temperature=4)",
    ]


def test_rates_for_groups_are_scaled_one_by_one() -> None:
    rates = {"algorithm": {**TABLES["algorithm"], "lr_max": {"adversary": 0.02}}}
    found = derive_candidates({**TABLES, **rates})
    assert any(each.algorithm.lr_max == {"adversary": 0.04} for each in found.values())


@pytest.mark.parametrize(
    ("changed", "objectives", "sentence"),
    [
        ({"tune": {}}, (), r"\[tune\] must hold at least one list of values"),
        ({"tune": {"algorithm.lr_max": []}}, (), "tune.algorithm.lr_max must be a list of values to try"),
        ({"tune": {"algorithm.rate": [1]}}, (), "rate"),
        ({"tune": {"data.angle": [1, 2]}}, (), "tune.data.angle cannot be tuned"),
        ({"tune": {"run.seed": [1, 2]}}, (), "tune.run.seed cannot be tuned: --seeds N repeats"),
        ({"tune": {"run": [{}]}}, (), "tune.run cannot be tuned"),
        (
            {"tune": {"objective.name": ["source_only", "dann"]}},
            (),
            r"\[tune\] need not vary source_only, which is always",
        ),
        (
            {"objective": {"name": "source_only"}, "tune": {"algorithm.lr_max": [0.1]}},
            (),
            r'need not vary source_only, .*; list in "objective.name" only what adapts',
        ),
        ({"tune": {"algorithm.lr_max": [0.1]}}, ("cdan",), "--objectives is for files without"),
        ({"sweep": {"run.seed": [0]}}, (), r"\[sweep\] table"),
        ({"transmission": {"name": "gaussian"}}, (), "adds noise to updates"),
        ({"partition": {"name": "target_supervised"}}, (), "learns from the target's labels"),
        ({"run": {"probe_rows": 0}}, (), "probe_rows must be above 0"),
        ({"objective": {"name": "source_only"}}, (), "no adversary; name --objectives"),
        ({}, ("cda",), "unknown objective in --objectives 'cda'"),
        ({}, ("source_only",), "need not name source_only"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_a_sentence(
    changed: dict[str, Any], objectives: tuple[str, ...], sentence: str
) -> None:
    with pytest.raises(FedmmError, match=sentence):
        derive_candidates({**TABLES, **changed}, objectives)
