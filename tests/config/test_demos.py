"""The comparisons that ``fedmm demo`` runs."""

from __future__ import annotations

import pytest

from fedmm import FedmmError
from fedmm.config.demos import DEMOS, demo_experiments
from fedmm.config.schema import experiment

METHODS = {
    "source only": ("source_only", "fedavg_gda"),
    "FedAvgGDA": ("dann", "fedavg_gda"),
    "FedProxGDA": ("dann", "fedprox_gda"),
    "FedMM": ("dann", "fedmm"),
}

each_demo = pytest.mark.parametrize("name", DEMOS)


@each_demo
def test_a_demo_compares_four_methods_in_order(name: str) -> None:
    assert {e.label: (e.objective.name, e.algorithm.name) for e in demo_experiments(name, 1)} == METHODS
    assert [e.label for e in demo_experiments(name, 1)] == list(METHODS)


@each_demo
def test_every_method_has_every_seed(name: str) -> None:
    runs = [(e.label, e.run.seed) for e in demo_experiments(name, 3)]
    assert len(runs) == len(set(runs)) == 12
    assert {seed for _, seed in runs} == {0, 1, 2}


@each_demo
def test_the_methods_differ_in_nothing_else(name: str) -> None:
    tables = [e.tables() for e in demo_experiments(name, 1)]
    for table in tables[1:]:
        assert {**table["run"], "label": ""} == {**tables[0]["run"], "label": ""}
        for section in ("data", "partition", "model"):
            assert table[section] == tables[0][section]
        for key in ("lr_min", "lr_max", "local_steps", "lr_schedule"):
            assert table["algorithm"][key] == tables[0]["algorithm"][key]
    averaged, proximal, fedmm = tables[1:]
    assert averaged["objective"] == proximal["objective"] == fedmm["objective"]
    for key in ("penalty_min", "penalty_max"):
        assert proximal["algorithm"][key] == fedmm["algorithm"][key]


@each_demo
def test_a_demo_runs_on_one_thread_and_comes_back_from_its_file(name: str) -> None:
    for each in demo_experiments(name, 1):
        assert each.run.threads == 1
        assert experiment(each.tables()) == each


def test_an_unknown_demo_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(FedmmError, match=r"^unknown demo 'digit'; did you mean 'digits'\? \(known: digits, moons\)$"):
        demo_experiments("digit", 1)
