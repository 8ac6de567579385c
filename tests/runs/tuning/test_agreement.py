"""Agreement of a candidate's predictions, where it is known, and of models that runs left."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import fedmm
from fedmm.data.domains import Labelled
from fedmm.runs.build import DataCache
from fedmm.runs.run import run_experiment
from fedmm.runs.tuning.agreement import agreement_of, measure_agreement, target_rows

NEAR = torch.tensor([[1], [0], [3], [2]])


def test_seeds_are_compared_in_pairs_and_rows_with_their_neighbours_at_the_same_client() -> None:
    one, other = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    assert agreement_of([[one], [one]], [NEAR], 2) == {"seed_agreement": 1.0, "neighbour_agreement": 1.0}
    found = agreement_of([[one, one], [one, other]], [NEAR, NEAR], 2)
    assert found["seed_agreement"] == pytest.approx(0.5)  # six of eight agree, four would by chance
    assert found["neighbour_agreement"] == pytest.approx((1.0 + 0.0) / 2)  # all agree with seed 0, half with seed 1
    assert agreement_of([[one]], [NEAR], 2) == {"neighbour_agreement": 1.0}


def test_nothing_is_measured_where_the_rows_are_elsewhere(tmp_path: Path) -> None:
    each = fedmm.experiment({"data": {"name": "moons", "rows": 4, "test_rows": 4}, "model": {"name": "mlp"}})
    cache = DataCache()
    pair = cache.pair(each, torch.device("cpu"))
    none = replace(pair, target=Labelled(pair.target.x[:0], pair.target.y[:0]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "pair", lambda *_: none)
        assert measure_agreement(tmp_path, {"one": ["a"]}, {"one": each}, cache) == {}


def test_models_are_read_from_the_folders_of_runs_and_those_without_any_are_left_out(tmp_path: Path) -> None:
    each = fedmm.experiment(
        {
            "run": {"rounds": 2, "batch_size": 8, "keep_rows": False},
            "data": {"name": "moons", "rows": 40, "test_rows": 10},
            "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4]},
            "algorithm": {"local_steps": 1},
        }
    )
    run_experiment(each, tmp_path / "a", progress=False)
    cache = DataCache()
    held, neighbours = target_rows(each, cache)
    assert [len(x) for x in held] == [40]
    assert [index.shape for index in neighbours] == [(40, 5)]
    found = measure_agreement(tmp_path, {"one": ["a", "a"], "none": ["a", "b"]}, {"one": each, "none": each}, cache)
    assert list(found) == ["one"]
    assert set(found["one"]) == {"seed_agreement", "neighbour_agreement"}
    same = (0.0, pytest.approx(1.0))  # 0 if the model predicts one class alone
    assert found["one"]["seed_agreement"] in same
