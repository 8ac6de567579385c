"""What a run keeps to be looked at later."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, set_values
from fedmm.runs.report_data import _confusion, _principal, _small
from fedmm.runs.run import run_experiment

EXAMPLES = Path(__file__).parents[2] / "examples"


def small(data: str, *settings: str) -> Experiment:
    shrunken = ["run.rounds=2", "run.batch_size=8", "model.hidden=[8]", "model.adversary_hidden=[4]"]
    return experiment(set_values(read_toml(EXAMPLES / f"{data}.toml"), [*shrunken, *settings]))


@pytest.mark.parametrize("engine", ["in_process", "batched"])
def test_a_run_keeps_maps_samples_and_confusions(tmp_path: Path, engine: str) -> None:
    summary = run_experiment(small("digits", "data.test_rows=300", f"run.engine={engine}"), tmp_path, progress=False)
    kept = load_file(tmp_path / "exhibits.safetensors")
    assert kept["map_domain"].tolist() == [0] * 150 + [1] * 150
    assert kept["map_before"].shape == kept["map_after"].shape == (300, 8)
    assert not torch.equal(kept["map_before"], kept["map_after"])
    assert kept["sample_x"].shape == (36, 1, 8, 8)
    assert kept["sample_x"].dtype == torch.uint8
    assert kept["sample_class"].shape == kept["sample_probability"].shape == (36, 3)
    confusion = kept["confusion_target"]
    assert int(confusion.sum()) == 300
    assert int(confusion.diagonal().sum()) / 300 == pytest.approx(summary["target_accuracy"])
    assert (tmp_path / "exhibits.safetensors").stat().st_size < 100_000


def test_points_are_kept_as_numbers(tmp_path: Path) -> None:
    run_experiment(small("moons", "data.rows=40", "data.test_rows=20"), tmp_path, progress=False)
    kept = load_file(tmp_path / "exhibits.safetensors")
    assert kept["sample_x"].shape == (20, 2)
    assert kept["map_label"].shape == (40,)


def test_principal_axes_keep_distances() -> None:
    """40 rows in 5 dimensions have 5 axes, so that nothing is lost: distances are those of the features."""
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.pdist(_principal(features)), torch.pdist(features), rtol=1e-4, atol=1e-5)
    assert _principal(torch.randn(60, 300, generator=torch.Generator().manual_seed(0))).shape == (60, 50)
    assert _principal(torch.randn(3, 300, generator=torch.Generator().manual_seed(0))).shape == (3, 3)


def test_large_images_shrink_and_standardised_ones_become_bytes() -> None:
    assert _small(torch.zeros(2, 3, 128, 64, dtype=torch.uint8)).shape == (2, 3, 64, 32)
    bytes_ = _small(torch.tensor([-2.0, 0.0, 2.0, 2.0]).view(1, 1, 2, 2))
    assert bytes_.flatten().tolist() == [0, 128, 255, 255]
    assert _small(torch.zeros(2, 5, 8, 8)).shape == (2, 1, 8, 8)


def test_confusion_counts_known_labels_alone() -> None:
    y, predicted = torch.tensor([0, 0, 1, -1]), torch.tensor([0, 1, 1, 0])
    assert _confusion(y, predicted, 2).tolist() == [[1, 1], [0, 1]]
