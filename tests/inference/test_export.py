"""Models as files for other programs: the same probabilities for every built-in network in every format."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from fedmm import FedmmError, load_model
from fedmm.config.schema import experiment
from fedmm.inference import export as exporting
from fedmm.inference.export import FORMATS, export_model
from fedmm.inference.load_run import FinishedRun, open_run
from fedmm.models import MODELS
from fedmm.runs.run import run_experiment

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch 2.10 prefers torch.export

SMALL: dict[str, dict[str, Any]] = {
    "run": {"rounds": 1, "batch_size": 4, "probe_rows": 8, "checkpoint_every": 1},
    "data": {"name": "digits", "kind": "blended", "size": 28, "copies": 1, "test_rows": 8},
    "algorithm": {"name": "fedmm", "local_steps": 1},
}
MOONS: dict[str, dict[str, Any]] = {
    "run": {"rounds": 3, "batch_size": 8, "best_by": "target_information"},
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}


def finished(folder: Path, tables: dict[str, dict[str, Any]]) -> FinishedRun:
    run_experiment(experiment(tables), folder, progress=False)
    return open_run(folder)


@pytest.fixture(scope="module")
def moons(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    return finished(tmp_path_factory.mktemp("moons") / "run", MOONS)


def about_onnx(path: Path) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    about: dict[str, Any] = json.loads(session.get_modelmeta().custom_metadata_map["fedmm"])
    return about


def onnx_outputs(path: Path, x: Tensor) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    outputs: list[np.ndarray[Any, Any]] = session.run(["probabilities", "logits"], {"x": x.numpy()})
    return outputs


BUILT_IN = [name for name in MODELS if name not in ("backbone", "factory", "timm", "torchvision")]


@pytest.mark.parametrize("model", BUILT_IN)
def test_every_network_gives_the_same_probabilities_in_every_format(model: str, tmp_path: Path) -> None:
    run = finished(tmp_path / "run", SMALL | {"model": {"name": model}})
    x = torch.rand(5, *run.predictor.show.stored)
    ours = run.predictor.predict_proba(x)
    for format, kind in FORMATS.items():
        path = tmp_path / f"model{kind.ending}"
        done = export_model(run, format, path)
        assert done.difference <= kind.tolerance
        assert done.about["class_names"] == list("0123456789")
        if format == "onnx":
            probabilities, logits = onnx_outputs(path, x)
            np.testing.assert_allclose(probabilities, ours, atol=kind.tolerance)
            np.testing.assert_allclose(logits, run.predictor.logits(x), atol=1e-3)
        elif format == "torchscript":
            torch.testing.assert_close(torch.jit.load(path)(x)[0], ours, atol=kind.tolerance, rtol=0.0)
        else:
            network = MODELS[model]().build(run.predictor.show.shapes[-1], 10, 0)
            assert torch.equal(load_model(path, network).predict_proba(x), ours)


def test_a_picture_is_cropped_and_scaled_inside(tmp_path: Path) -> None:
    from PIL import Image

    for domain in ("source", "target"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / domain / name).mkdir(parents=True)
            for row in range(3):
                pixels = np.random.default_rng(9 * number + row).integers(0, 255, (12, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / domain / name / f"{row}.png")
    tables = MOONS | {
        "data": {
            "name": "image_folder",
            "source": str(tmp_path / "source"),
            "target": str(tmp_path / "target"),
            "image_size": 8,
            "stored_size": 12,
        },
        "model": {"name": "small_cnn", "channels": [4, 4]},
    }
    run = finished(tmp_path / "run", tables)
    path = tmp_path / "model.onnx"
    about = export_model(run, "onnx", path).about
    assert about["takes"]["shape"] == ["rows", 3, 12, 12]
    assert about["takes"]["dtype"] == "uint8"
    assert [step.split()[0] for step in about["takes"]["inside"]] == ["the", "bytes", "the"]
    assert about["class_names"] == ["cat", "dog"]
    assert about_onnx(path) == about
    x = torch.randint(0, 255, (7, 3, 12, 12), dtype=torch.uint8)
    cropped = x[:, :, 2:10, 2:10].float() / 255
    np.testing.assert_allclose(onnx_outputs(path, x)[0], run.predictor.predict_proba(cropped), atol=1e-5)


def test_files_say_nothing_of_the_machine_they_come_from(moons: FinishedRun, tmp_path: Path) -> None:
    for format, kind in FORMATS.items():
        export_model(moons, format, tmp_path / f"model{kind.ending}")
        content = (tmp_path / f"model{kind.ending}").read_bytes()
        assert str(Path(exporting.__file__).parents[2]).encode() not in content
        assert str(moons.folder).encode() not in content


def test_calibrated_probabilities_are_inside_and_the_threshold_is_told(moons: FinishedRun, tmp_path: Path) -> None:
    calibrated = replace(moons, temperature=0.4, bias=-1.5, log_odds_threshold=0.7)
    x = torch.rand(5, *moons.predictor.show.stored)
    odds = moons.predictor.logits(x).double()
    expected = (odds / 0.4 + torch.tensor([0.0, -1.5])).softmax(dim=1)
    for format in ("onnx", "torchscript"):
        path = tmp_path / f"calibrated-{format}"
        about = export_model(calibrated, format, path).about["calibration"]
        assert about == {"temperature": 0.4, "bias": -1.5, "threshold": pytest.approx(1 / (1 + np.exp(-0.7)))}
        given = onnx_outputs(path, x)[0] if format == "onnx" else torch.jit.load(path)(x)[0].detach()
        np.testing.assert_allclose(given, expected, atol=1e-5)
    with pytest.raises(FedmmError, match="calibrated probabilities need --format onnx or torchscript"):
        export_model(calibrated, "safetensors", tmp_path / "weights.safetensors")
    assert export_model(moons, "safetensors", tmp_path / "own.safetensors").about["calibration"] == {}


def test_the_best_model_is_used_unless_the_last_is_asked_for(moons: FinishedRun, tmp_path: Path) -> None:
    announced = json.loads((moons.folder / "summary.json").read_text())["best"]
    best, last = open_run(moons.folder), open_run(moons.folder, "last")
    assert (best.checkpoint, best.round, best.chosen_by) == ("best", announced["round"], "target_information")
    assert best.model_name == f"round {announced['round']}, best by target_information"
    assert last.model_name == "round 3, last"
    for run, file in ((best, "model-best.safetensors"), (last, "model.safetensors")):
        kept = load_file(moons.folder / file)
        assert all(torch.equal(tensor, kept[name]) for name, tensor in run.predictor.tensors().items())
    done = export_model(best, "torchscript", tmp_path / "model.pt")
    assert done.about["round"] == best.round
    extra = {"fedmm.json": ""}
    torch.jit.load(tmp_path / "model.pt", _extra_files=extra)
    assert json.loads(extra["fedmm.json"]) == done.about


def test_a_best_state_of_the_last_round_is_the_last_model(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", MOONS | {"run": {**MOONS["run"], "rounds": 1}})
    x, last = torch.rand(4, 2), open_run(run.folder, "last")
    assert torch.equal(last.predictor.predict_proba(x), run.predictor.predict_proba(x))


def test_a_choice_with_target_labels_is_called_so(tmp_path: Path) -> None:
    run = finished(tmp_path / "run", MOONS | {"run": {**MOONS["run"], "best_by": "oracle_target_accuracy"}})
    assert run.checkpoint == "oracle best"
    assert run.model_name.endswith("oracle best by oracle_target_accuracy, chosen with labels of the target")
    none = finished(tmp_path / "none", MOONS | {"run": {**MOONS["run"], "best_by": ""}})
    assert none.checkpoint == "last"
    with pytest.raises(FedmmError, match="keeps no best model"):
        open_run(none.folder, "best")


def test_a_file_whose_probabilities_differ_is_not_left_behind(
    moons: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = replace(FORMATS["torchscript"], read=lambda path, run: lambda x: torch.full((len(x), 2), 0.5))
    monkeypatch.setitem(exporting.FORMATS, "torchscript", wrong)
    path = tmp_path / "model.pt"
    path.write_text("an older file")
    with pytest.raises(FedmmError, match=r"differ by .*, above 1e-05"):
        export_model(moons, "torchscript", path, overwrite=True)
    assert path.read_text() == "an older file"
    assert [each.name for each in tmp_path.iterdir()] == ["model.pt"]


def test_what_is_missing_for_onnx_is_said_in_one_sentence(
    moons: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(FedmmError, match=r"pip install 'fedmm\[export\]'"):
        export_model(moons, "onnx", tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_the_metadata_of_a_safetensors_file_names_the_network(moons: FinishedRun, tmp_path: Path) -> None:
    export_model(moons, "safetensors", tmp_path / "model.safetensors")
    with safe_open(tmp_path / "model.safetensors", framework="pt") as file:
        names, about = set(file.keys()), json.loads(file.metadata()["fedmm"])
    assert not any(name.startswith("adversary") for name in names)
    assert about["model"]["name"] == "mlp"
    assert about["class_names"] == ["upper", "lower"]


DAY = np.datetime64("2020-03-01")


def test_the_onnx_model_of_a_table_prepares_its_columns(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    frame = pandas.DataFrame(
        {
            "age in years": np.where(np.arange(60) % 7 == 0, np.nan, random.normal(50, 10, 60)),
            "x": random.normal(1e6, 3, 60),  # called as the input of other models
            "colour": np.array(["red", "green", "blue"])[np.arange(60) % 3],
            "admitted": np.where(np.arange(60) % 9 == 0, "", np.datetime_as_string(DAY + np.arange(60) % 30)),
            "site": np.array(["here", "there"])[np.arange(60) % 2],
            "ill": np.where(np.arange(60) % 2 == 0, np.arange(60) % 4 // 2, np.nan),
        }
    )
    frame.to_csv(tmp_path / "t.csv", index=False)
    tables = {
        "run": {"rounds": 1, "batch_size": 8, "keep_rows": False},
        "data": {"name": "table", "file": str(tmp_path / "t.csv"), "label": "ill", "site": "site"}
        | {"dates": {"admitted": "%Y-%m-%d"}},
        "partition": {"name": "by_site"},
        "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    }
    run = finished(tmp_path / "run", tables)
    done = export_model(run, "onnx", tmp_path / "t.onnx")
    assert done.about["takes"]["columns"] == {
        "age in years": "float64", "x": "float64", "colour": "string", "admitted": "float64"
    }  # fmt: skip
    new = pandas.DataFrame({"age in years": [np.nan, 44.5, 60.0], "x": [1000001.5, np.nan, 999998.0]})
    new["colour"] = ["violet", "", "red"]
    new["admitted"] = ["", "2020-03-01", "2020-03-02"]
    new.to_csv(tmp_path / "new.csv", index=False)
    assert run.input is not None
    wanted = run.predictor.predict_proba(run.input.read(tmp_path / "new.csv").x)
    session = onnxruntime.InferenceSession(str(tmp_path / "t.onnx"), providers=["CPUExecutionProvider"])
    given = {name: new[[name]].to_numpy() for name in ("age in years", "x")}
    given["colour"] = new[["colour"]].to_numpy(dtype=object)
    given["admitted"] = np.array([[np.nan], [DAY.astype(float)], [DAY.astype(float) + 1.0]])  # days since 1970
    np.testing.assert_allclose(session.run(["probabilities"], given)[0], wanted, atol=1e-5)
