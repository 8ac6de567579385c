"""What a run keeps to be looked at later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from fedmm import Adapted, Client, adapt
from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml, set_values
from fedmm.core.signals.thresholds import Thresholds
from fedmm.data.datasets.moons import Moons
from fedmm.data.domains import OTHER_SITES, DomainPair, Labelled, Sites
from fedmm.inference.evaluate import evaluate, rows_named
from fedmm.inference.load_run import open_run
from fedmm.models import MODELS
from fedmm.runs.report_data import _confusion, _principal, _score_test_rows, _small
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


def test_without_a_target_rows_of_the_source_are_shown(tmp_path: Path) -> None:
    given = {"run": {"rounds": 1, "engine": "in_process"}, "data": {"name": "unbalanced"}, "objective": {"name": "auc"}}
    run_experiment(experiment({**given, "model": {"name": "mlp"}}), tmp_path, progress=False)
    kept = load_file(tmp_path / "exhibits.safetensors")
    assert kept["sample_x"].shape == (36, 12)
    assert set(kept["sample_label"].tolist()) == {0, 1}
    assert "map_domain" not in kept


def test_scores_are_of_the_model_that_predict_uses(tmp_path: Path) -> None:
    given = {
        "run": {"rounds": 6, "engine": "in_process", "best_by": "validation_auroc", "batch_size": 16},
        "data": {"name": "unbalanced", "validation_share": 0.3},
        "objective": {"name": "auc"},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": {"name": "fedmm", "lr_min": 1.0, "lr_max": 1.0},
    }
    summary = run_experiment(experiment(given), tmp_path, progress=False)
    assert summary["best"]["round"] < summary["rounds"]  # else it is no test
    kept = load_file(tmp_path / "exhibits.safetensors")
    assert int(kept["tested_round"]) == summary["best"]["round"]
    assert float(kept["ranking_source"][2]) == pytest.approx(summary["best"]["source_auroc"], abs=2e-3)
    run = open_run(tmp_path)
    found = evaluate(run, "source-test", rows_named(run, "source-test"))
    assert float(kept["ranking_source"][2]) == pytest.approx(found.scores.auc)
    assert kept["confusion_source"].tolist() == [list(row) for row in found.scores.confusion]


@pytest.mark.parametrize("best_by", ["", "oracle_target_accuracy"])
def test_what_labels_of_the_target_chose_is_not_shown(tmp_path: Path, best_by: str) -> None:
    summary = run_experiment(
        small("moons", "data.rows=40", "data.test_rows=20", f'run.best_by="{best_by}"'), tmp_path, progress=False
    )
    assert bool(summary.get("oracle_best")) == bool(best_by)
    assert int(load_file(tmp_path / "exhibits.safetensors")["tested_round"]) == 2


def test_clients_that_are_sites_keep_the_names_of_these(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    lines = [f"{n % 7},{'ab'[n % 2]},{('Süd', 'Île', 'Sud')[n % 3]}" for n in range(90)]
    (tmp_path / "all.csv").write_text("\n".join(["age,outcome,site", *lines]), encoding="utf-8")
    given = {
        "run": {"rounds": 1, "engine": "in_process", "batch_size": 8},
        "data": {
            "name": "table", "file": str(tmp_path / "all.csv"), "label": "outcome", "site": "site",
            "labelled_only": True,
        },
        "model": {"name": "mlp", "hidden": [4]},
        "objective": {"name": "source_only"},
        "algorithm": {"name": "fedavg_gda"},
    }  # fmt: skip
    for name, sites in (("by_site", {"Ile": "Île", "Sud": "Sud", "Sud-2": "Süd"}), ("iid", None)):
        run_experiment(experiment({**given, "partition": {"name": name}}), tmp_path / name, progress=False)
        kept = load_file(tmp_path / name / "exhibits.safetensors").get("client_sites")
        assert (None if kept is None else json.loads(bytes(kept.tolist()))) == sites


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


@pytest.fixture(scope="module")
def moons() -> tuple[Adapted, DomainPair]:
    pair = Moons(rows=40, test_rows=60).load()
    client = Client(source=(pair.source.x, pair.source.y), target=pair.target.x)
    network = MODELS["mlp"]().build((2,), 2, 0)
    return adapt([client], network, rounds=2, batch_size=8, progress=False), pair


def kept_of(moons: tuple[Adapted, DomainPair], x: Tensor, y: Tensor, sites: Tensor | None = None) -> dict[str, Tensor]:
    adapted, pair = moons
    named = Sites(("a", "b", "c"), torch.zeros(40), torch.zeros(40))
    return _score_test_rows(adapted, Labelled(x, y), sites, replace(pair, sites=named), True)


def test_two_classes_keep_their_curves(moons: tuple[Adapted, DomainPair]) -> None:
    adapted, pair = moons
    kept = kept_of(moons, *pair.source_test)
    logits = adapted.logits(pair.source_test.x).double()
    expected = Thresholds.count(pair.source_test.y, logits[:, 1] - logits[:, 0])
    assert kept["ranking"].tolist() == [30, 30, expected.auroc, expected.average_precision]
    assert kept["roc"].shape[1] == kept["precision_recall"].shape[1] == 2
    assert {"sites", "site_names"}.isdisjoint(kept)


def test_sites_are_scored_on_their_own_rows(moons: tuple[Adapted, DomainPair]) -> None:
    adapted, pair = moons
    x, y = pair.source_test
    sites = torch.tensor([0] * 3 + [2] * 50 + [-1] * 7)
    kept = kept_of(moons, x, torch.where(torch.arange(60) == 59, -1, y), sites)
    assert json.loads(bytes(kept["site_names"].tolist())) == ["a", "c", OTHER_SITES]
    assert kept["sites"][:, 0].tolist() == [3, 50, 6]  # a row without a label counts nowhere
    hits = (adapted.predict(x) == y).long()
    assert kept["sites"][:, 1].tolist() == [int(hits[:3].sum()), int(hits[3:53].sum()), int(hits[53:59].sum())]


def test_a_class_without_rows_leaves_no_curve(moons: tuple[Adapted, DomainPair]) -> None:
    _, pair = moons
    kept = kept_of(moons, pair.source_test.x, torch.zeros(60, dtype=torch.int64), torch.zeros(60, dtype=torch.int64))
    assert set(kept) == {"confusion", "sites", "site_names"}
    assert kept["sites"][0, [0, 2]].tolist() == [60, 0]
    assert bool(kept["sites"][0, 3].isnan())


def test_scores_that_are_tied_rank_by_chance_and_nan_is_left_out(moons: tuple[Adapted, DomainPair]) -> None:
    adapted, pair = moons
    x, y = torch.zeros(60, 2), pair.source_test.y
    assert kept_of(moons, x, y)["ranking"].tolist() == [30, 30, 0.5, 0.5]
    x[7] = 3e38  # overflows inside
    assert bool(adapted.logits(x)[7].isnan().any())
    sites = torch.arange(60) % 2
    kept = kept_of(moons, x, y, sites)
    assert set(kept) == {"confusion", "sites", "site_names"}
    assert kept["sites"][:, 3].isnan().tolist() == [False, True]  # row 7 is of the second site


def test_no_labels_keep_nothing_of_sites(moons: tuple[Adapted, DomainPair]) -> None:
    nobody = torch.zeros(60, dtype=torch.int64)
    assert set(kept_of(moons, moons[1].source_test.x, nobody - 1, nobody)) == {"confusion"}
