"""Frozen layers are computed once, and nothing else changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedmm import Network
from fedmm.config.schema import Experiment, experiment
from fedmm.models import MobileNetV2
from fedmm.models.frozen_prefix import split_frozen_part
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run import run_experiment

ROW = torch.zeros(1, 3, 48, 48, dtype=torch.uint8)


@pytest.fixture
def pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDMM_CACHE", str(tmp_path / "cache"))
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (48, 3, 48, 48), dtype=np.uint8)
    y = np.arange(24) % 3
    np.savez(tmp_path / "pictures.npz", source_x=x[:24], source_y=y, target_x=x[24:], target_y=y)
    return tmp_path / "pictures.npz"


def on(pictures: Path, **changes: dict[str, Any]) -> Experiment:
    tables: dict[str, dict[str, Any]] = {
        "run": {"rounds": 2, "batch_size": 6, "probe_rows": 12},
        "data": {"name": "arrays", "file": str(pictures), "held_out": 0.2},
        "model": {"name": "mobilenet_v2", "frozen_blocks": 19, "bottleneck": 8, "adversary_hidden": [4]},
        "algorithm": {"name": "fedmm", "local_steps": 2, "lr_min": 0.1, "lr_max": 0.1},
    }
    return experiment({name: {**table, **changes.get(name, {})} for name, table in tables.items()})


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")),
    ],
)
def test_what_is_trained_is_the_same_and_so_is_the_model(
    device: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = on(pictures, run={"device": device})
    once = prepare(there, DataCache())
    assert once.function.input_shape == (1280,)
    with monkeypatch.context() as patch:
        patch.setattr("fedmm.runs.build.split_frozen_part", lambda *_: None)
        every_time = prepare(there, DataCache())
    assert every_time.function.input_shape == (3, 48, 48)
    ours, theirs = once.run()[0], every_time.run()[0]
    assert float((ours.state.z - every_time.function.start).norm()) > 1e-3
    torch.testing.assert_close(ours.state.z, theirs.state.z, rtol=1e-5, atol=1e-6)
    x = DataCache().pair(on(pictures), torch.device("cpu")).target.x
    torch.testing.assert_close(ours.predict_proba(x), theirs.predict_proba(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(once.before().features(x), every_time.before().features(x), rtol=1e-5, atol=1e-6)
    assert ours.tensors().keys() == theirs.tensors().keys()


def test_a_second_run_reads_what_the_first_has_computed(pictures: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(on(pictures), DataCache())
    monkeypatch.setattr("fedmm.models.frozen_prefix.FrozenPart.of_all", lambda *_: pytest.fail("computed again"))
    prepare(on(pictures), DataCache())


def test_its_folder_holds_the_whole_model(pictures: Path, tmp_path: Path) -> None:
    from fedmm.inference.load_run import open_run

    run_experiment(on(pictures), tmp_path / "run")
    x = DataCache().pair(on(pictures), torch.device("cpu")).target.x
    probabilities = open_run(tmp_path / "run").predictor.predict_proba(x)
    assert probabilities.shape == (24, 3)


@pytest.mark.parametrize("changes", [{"frozen_blocks": 14}, {"centre": "image_mean"}])
def test_layers_that_are_trained_or_see_centred_rows_stay_where_they_are(changes: dict[str, Any]) -> None:
    model = MobileNetV2(**{"frozen_blocks": 19, **changes})
    assert split_frozen_part(model.build((3, 48, 48), 3, 0), ROW) is None


def sequence(*layers: nn.Module, **options: Any) -> Network:
    return Network(nn.Sequential(*layers), 3, **options)


def frozen(layer: nn.Module) -> nn.Module:
    return layer.requires_grad_(False)


def test_the_network_keeps_its_own_layers() -> None:
    network = MobileNetV2(frozen_blocks=19).build((3, 48, 48), 3, 0)
    found = split_frozen_part(network, ROW)
    assert found is not None
    found[0].to(torch.float64)
    assert {parameter.dtype for parameter in network.features.parameters()} == {torch.float32}


def test_rows_may_not_grow() -> None:
    wide = sequence(frozen(nn.Conv2d(3, 8, 3)), nn.Flatten(), nn.Linear(8 * 46 * 46, 4))
    assert split_frozen_part(wide, ROW) is None


def test_layers_that_draw_or_learn_statistics_are_not_frozen() -> None:
    small = frozen(nn.Conv2d(3, 1, 3, stride=6))
    for layer, options in ((nn.Dropout(0.5), {}), (nn.BatchNorm2d(1, affine=False), {"batch_norm": "averaged"})):
        found = split_frozen_part(sequence(small, layer, nn.Flatten(), nn.Linear(64, 4), **options), ROW)
        assert found is not None
        assert len(found[0].layers) == 1
    found = split_frozen_part(sequence(small, nn.ReLU(), nn.Flatten(), nn.Linear(64, 4)), ROW)
    assert found is not None
    assert len(found[0].layers) == 3
