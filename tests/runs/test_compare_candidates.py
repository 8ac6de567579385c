"""What is compared: methods that differ in nothing but what they are."""

from __future__ import annotations

from typing import Any

import pytest

from fedmm.core.errors import FedmmError
from fedmm.data.datasets.per_site import PerSite
from fedmm.runs.compare import derive_candidates

TABLES: dict[str, Any] = {
    "run": {"rounds": 7, "seed": 4, "batch_size": 8, "stop_by": "dev_risk", "best_by": "oracle_target_accuracy"},
    "data": {"name": "moons", "rows": 40},
    "model": {"name": "mlp", "hidden": [6]},
    "objective": {"name": "mdd", "nu": 0.3, "nu_schedule": "dann_warmup", "gamma": 2.0},
    "algorithm": {"name": "fedmm", "lr_min": 0.03, "penalty_min": 2.0, "local_steps": 3},
}


def by_label(tables: dict[str, Any], *objectives: str) -> dict[str, Any]:
    return {found.label: found.experiments[0] for found in derive_candidates(tables, objectives or ("dann",), 1)}


def test_the_methods_of_a_file_and_their_order() -> None:
    assert list(by_label(TABLES, "dann", "mdd")) == [
        "source only",
        "per-site standardisation",
        "fedavg_gda + dann",
        "fedavg_gda + mdd",
        "fedmm + dann",
        "fedmm + mdd",
    ]


def test_the_default_is_the_restrained_fedmm_and_another_algorithm_of_the_file_is_compared_too() -> None:
    plain = {section: table for section, table in TABLES.items() if section != "algorithm"}
    assert list(by_label(plain))[2:] == ["fedavg_gda + dann", "fedmm_restrained + dann"]
    scaffold = by_label({**TABLES, "algorithm": {"name": "scaffold_gda", "lr_min": 0.03}})
    assert list(scaffold)[2:] == ["fedavg_gda + dann", "fedmm_restrained + dann", "scaffold_gda + dann"]
    assert {found.algorithm.lr_min for found in scaffold.values()} == {0.03}


def test_all_share_data_model_rounds_batches_and_what_they_know_of_the_options() -> None:
    found = by_label(TABLES, "dann", "mdd")
    data = found["source only"].data
    for label, each in found.items():
        assert (each.run.rounds, each.run.seed, each.run.batch_size, each.model) == (
            7,
            4,
            8,
            found["source only"].model,
        )
        assert each.data == (PerSite(data) if label == "per-site standardisation" else data)
        assert (each.algorithm.lr_min, each.algorithm.local_steps) == (0.03, 3)
    assert found["fedmm + mdd"].objective.gamma == 2.0
    assert found["fedmm + dann"].objective.nu == found["fedavg_gda + mdd"].objective.nu == 0.3
    assert found["fedmm + dann"].algorithm.penalty_min == 2.0


def test_no_run_ends_early_or_is_chosen_by_what_only_some_have_or_by_labels() -> None:
    for found in by_label(TABLES).values():
        assert (found.run.stop_by, found.run.best_by) == ("", "target_information")


def test_seeds_count_from_the_files_own() -> None:
    found = derive_candidates(TABLES, ("dann",), 3)[2].experiments
    assert [each.run.seed for each in found] == [4, 5, 6]


def test_a_preset_fills_in_what_each_method_needs() -> None:
    found = by_label({"run": {"preset": "paper"}, "data": {"name": "mnist_m"}}, "dann", "mdd")
    assert list(found)[4:] == ["fedmm + dann", "fedmm + mdd"]
    assert found["fedmm + mdd"].objective.name == "mdd"


@pytest.mark.parametrize(
    ("changes", "objectives", "seeds", "sentence"),
    [
        ({}, ["dan"], 3, "unknown objective in --objectives 'dan'"),
        ({}, ["source_only"], 3, "which is always compared"),
        ({}, [], 3, "--objectives must name at least one"),
        ({}, ["dann"], 0, "--seeds must be from 1 to 100, not 0"),
        ({"sweep": {"run.seed": [0, 1]}}, ["dann"], 3, r"a file with a \[sweep\] table"),
        ({"partition": {"name": "target_supervised"}}, ["dann"], 3, "learns from the target's labels"),
        ({"run": {"probe_rows": 0}}, ["dann"], 3, "run.probe_rows must be above 0"),
        (
            {"data": {"name": "moons", "standardise_per_site": True}},
            ["dann"],
            3,
            "one of the methods that are compared",
        ),
        ({"transmission": {"name": "gaussian"}}, ["dann"], 3, "adds noise to updates"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_a_sentence(
    changes: dict[str, Any], objectives: list[str], seeds: int, sentence: str
) -> None:
    with pytest.raises(FedmmError, match=sentence):
        derive_candidates({**TABLES, **changes}, objectives, seeds)
