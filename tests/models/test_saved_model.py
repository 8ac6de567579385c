"""A model on disk: what ``save`` writes, ``load_model`` reads back, and it refuses what is something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from problems import CLASSES, WIDTH, adapt, generator, network, rows, untrained
from safetensors.torch import save_file
from torch import nn

import fedmm
from fedmm import CDAN, DANN, MDD, FedmmError, SourceOnly, load_model

MODELS = {
    "plain": network,
    "centred": lambda: network(centre="train_mean"),
    "dropout": lambda: network(task_hidden=(5,), head_dropout=0.5),
    "averaged statistics": lambda: network(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6)),
    "local statistics": lambda: network(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6), batch_norm="local"),
    "frozen layer": lambda: network(nn.Linear(WIDTH, 6).requires_grad_(False), nn.Linear(6, 6)),
}


@pytest.mark.parametrize("objective", [DANN(), CDAN(), CDAN(random_dim=7), MDD(), SourceOnly()], ids=repr)
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_saved_model_predicts_the_same(tmp_path: Path, model: Any, objective: Any) -> None:
    path = tmp_path / "model.safetensors"
    given = model()
    adapted = adapt(model=given, objective=objective)
    adapted.save(path)
    loaded = load_model(path, given)
    x = rows(8)
    assert torch.equal(loaded.predict_proba(x), adapted.predict_proba(x))
    assert torch.equal(loaded.predict(x), adapted.predict(x))
    assert torch.equal(loaded.features(x), adapted.features(x))


def test_a_fresh_copy_of_the_network_may_have_any_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    adapted = adapt()
    adapted.save(path)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        other = network(nn.Linear(WIDTH, 6), nn.Tanh())
    assert torch.equal(load_model(path, other).predict_proba(rows(8)), adapted.predict_proba(rows(8)))


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("plain"),
        pytest.param(
            "averaged statistics",
        ),
    ],
)
def test_a_model_of_double_precision_predicts_the_same(tmp_path: Path, model: str) -> None:
    path = tmp_path / "model.safetensors"
    given = MODELS[model]()
    adapted = adapt(model=given, dtype=torch.float64)
    adapted.save(path)
    x = rows(8)
    torch.testing.assert_close(load_model(path, given).predict_proba(x), adapted.predict_proba(x), rtol=0, atol=0)


def test_bytes_predict_the_same_after_loading(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    pixels = torch.randint(0, 256, (6, WIDTH), generator=generator(0), dtype=torch.uint8)
    given = network(centre="train_mean")
    adapted = adapt(model=given)
    adapted.save(path)
    assert torch.equal(load_model(path, given).predict_proba(pixels), adapted.predict_proba(pixels))


def test_a_model_that_saw_crops_remembers_how(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    pixels = torch.randint(0, 256, (12, 1, 6, 8), generator=generator(0), dtype=torch.uint8)
    given = network(nn.Flatten(), nn.Linear(16, 6))
    clients = [fedmm.Client(source=(pixels, torch.arange(12) % CLASSES)), fedmm.Client(target=pixels)]
    crop = fedmm.CropAndFlip(4)
    adapted = adapt(clients, given, view=crop, validation=(pixels, torch.arange(12) % CLASSES))
    adapted.save(path)
    loaded = load_model(path, given)
    expected = adapted.predict_proba(crop.evaluate(pixels))
    for model in (adapted, loaded):
        assert torch.equal(model.predict_proba(pixels), expected)
        assert torch.equal(model.predict_proba(pixels[..., 1:5, 2:6]), expected)
        with pytest.raises(FedmmError, match=r"\(1, 6, 8\) or \(1, 4, 4\)"):
            model.predict(pixels[..., :5])


# Refusals -------------------------------------------------------------------------------------------------------------


def saved(folder: Path, model: fedmm.Network | None = None) -> Path:
    path = folder / "model.safetensors"
    adapt(model=model or network()).save(path)
    return path


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: network(nn.Linear(WIDTH, 7), nn.Tanh()), r"tensor 'features\.0\.weight' of .* has shape \(6, 4\)"),
        (lambda: network(task_hidden=(5,)), "lacks the tensor|has shape"),
        (lambda: fedmm.Network(network().features, CLASSES + 1), r"tensor 'task_head\.0\.weight' of .* has shape"),
        (lambda: network(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6)), "lacks the tensor|has shape"),
        (lambda: network(nn.Conv1d(1, 2, 1)), "does not take a batch of shape"),
        pytest.param(
            lambda: network(nn.Linear(WIDTH, 6), centre="train_mean"),
            "centre",
        ),
    ],
    ids=["width", "deeper head", "classes", "normalisation", "other inputs", "centring"],
)
def test_another_network_is_refused(tmp_path: Path, other: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        load_model(saved(tmp_path), other())


def test_a_network_that_is_a_part_of_the_saved_one_is_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, network(nn.Linear(WIDTH, 6), nn.ReLU(), nn.Linear(6, 6)))
    with pytest.raises(FedmmError, match=r"features\.2"):
        load_model(path, network(nn.Linear(WIDTH, 6)))


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=r"missing\.safetensors cannot be read"):
        load_model(tmp_path / "missing.safetensors", network())


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a model")
    with pytest.raises(FedmmError, match="cannot be read as a safetensors file"):
        load_model(tmp_path / "notes.txt", network())


def test_a_safetensors_file_of_someone_else_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(FedmmError, match="is not a model saved by fedmm"):
        load_model(tmp_path / "other.safetensors", network())


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="the model could not be written to"):
        adapt().save(tmp_path / "no" / "such" / "folder.safetensors")


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(3, WIDTH + 1), rf"takes rows of shape \({WIDTH},\), not \({WIDTH + 1},\)"),
        (torch.full((3, WIDTH), torch.nan), "NaN or infinite"),
        ([1.0, 2.0], r"takes rows of shape \(4,\), not \(\)"),
    ],
    ids=["shape", "NaN", "list"],
)
def test_inputs_a_model_cannot_take_are_refused(x: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        untrained().predict(x)
