"""What is done with a finished run: predict, evaluate, export."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import Command, Ended
from PIL import Image

from fedmm.config.schema import experiment
from fedmm.core.signals.groups import EVALUATION
from fedmm.inference.evaluate import rows_named
from fedmm.inference.load_run import open_run
from fedmm.inference.predict import predict_rows
from fedmm.runs.run import run_experiment

SMALL: dict[str, dict[str, Any]] = {
    "run": {"rounds": 2, "batch_size": 8, "label": "small"},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}
MOONS = SMALL | {
    "data": {"name": "moons", "rows": 40, "test_rows": 30},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
}


@pytest.fixture(scope="module")
def moons(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("moons") / "run"
    run_experiment(experiment(MOONS), folder, progress=False)
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on pictures of two classes, in ``run`` beside ``source`` and ``target``."""
    here = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for domain in ("source", "target"):
        for shade, name in ((40, "dark"), (200, "light")):
            (here / domain / name).mkdir(parents=True)
            for number in range(4):
                pixels = random.integers(shade - 30, shade + 30, (10, 12, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(here / domain / name / f"{number}.png")
    where = {domain: str(here / domain) for domain in ("source", "target")}
    data = {"name": "image_folder", "image_size": 8, "stored_size": 10, **where}
    tables = SMALL | {"data": data, "model": {"name": "small_cnn", "channels": [4, 4]}}
    run_experiment(experiment(tables), here / "run", progress=False)
    return here


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def refused(ended: Ended, words: str) -> None:
    """Exit code 2, and one sentence without a traceback."""
    assert ended.code == 2
    assert ended.err.count("\n") == 1
    assert ended.err.startswith("error: ")
    assert words in ended.err


# Predict --------------------------------------------------------------------------------------------------------------


def test_rows_of_an_archive_are_predicted_to_standard_output(command: Command, moons: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "new.npz", x=np.random.default_rng(0).normal(size=(5, 2)))
    ended = command("predict", moons, "new.npz")
    assert ended.code == 0
    rows = rows_of(ended.out)
    assert [row["row"] for row in rows] == list("01234")
    for row in rows:
        shares = {name: float(row[f"p_{name}"]) for name in ("upper", "lower")}
        assert sum(shares.values()) == pytest.approx(1.0, abs=1e-5)
        assert row["predicted"] == max(shares, key=lambda name: shares[name])


def test_a_folder_of_pictures_is_predicted_by_their_names(command: Command, pictures: Path, tmp_path: Path) -> None:
    ended = command("predict", pictures / "run", pictures / "target" / "dark", "--out", "found.csv")
    assert ended.code == 0, ended.err
    assert "4 rows, 2 classes" in ended.out
    rows = rows_of((tmp_path / "found.csv").read_text())
    assert [row["row"] for row in rows] == [f"{number}.png" for number in range(4)]
    assert list(rows[0]) == ["row", "predicted", "p_dark", "p_light"]


def test_bad_pictures_are_all_named_or_skipped(command: Command, pictures: Path, tmp_path: Path) -> None:
    new = tmp_path / "new" / "dark"
    shutil.copytree(pictures / "target" / "dark", new)
    for name in ("bad.png", "worse.png"):
        (new / name).write_text("no picture")
    ended = command("predict", pictures / "run", new)
    refused(ended, "2 pictures are bad: ")
    assert "bad.png" in ended.err
    assert "worse.png" in ended.err
    assert "--skip-bad" in ended.err
    ended = command("predict", pictures / "run", new, "--skip-bad", "--out", "found.csv")
    assert ended.code == 0
    assert "2 bad pictures were skipped: " in ended.err
    assert "4 rows" in ended.out
    ended = command("evaluate", pictures / "run", new.parent, "--skip-bad")
    assert ended.code == 0, ended.err
    assert "on 4 labelled rows" in ended.out


def test_parquet_and_compressed_csv_hold_the_same(command: Command, pictures: Path, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for name in ("found.parquet", "found.csv.gz"):
        assert command("predict", pictures / "run", pictures / "target", "--out", name).code == 0
    one, other = pandas.read_parquet("found.parquet"), pandas.read_csv("found.csv.gz")
    assert list(one.columns) == list(other.columns)
    assert one["row"].tolist() == other["row"].tolist()
    np.testing.assert_allclose(one["p_dark"], other["p_dark"], atol=1e-6)
    assert not list(tmp_path.glob(".*"))


def test_rows_of_another_shape_are_refused(command: Command, moons: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((3, 5)))
    refused(command("predict", moons, "wide.npy", "--out", "p.csv"), "rows of shape [5]; the model was trained on [2]")
    assert not (tmp_path / "p.csv").exists()


def test_what_cannot_be_predicted_is_said_in_one_sentence(command: Command, moons: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    np.save(tmp_path / "bad.npy", np.full((3, 2), np.nan))
    (tmp_path / "text.npz").write_text("no archive")
    refused(command("predict", moons, "nothing.npy"), "there is no file or folder nothing.npy")
    refused(command("predict", moons, "bad.npy"), "NaN or infinite in row 0")
    refused(command("predict", moons, "text.npz"), "cannot be read as .npz or .npy")
    refused(command("predict", moons, tmp_path), "takes rows of shape [2]: give a .npy or .npz file")
    refused(command("predict", moons, "x.npy", "--out", "p.xls"), "must end in .csv, .csv.gz or .parquet")
    refused(command("predict", moons, "x.npy", "--model", "first"), "--model must be one of best, last")
    refused(command("predict", moons, "x.npy", "--device", "abacus"), "--device 'abacus' cannot be used here")
    refused(command("predict", tmp_path, "x.npy"), "is not the folder of one run")
    refused(command("predict", "nowhere", "x.npy"), "there is no folder nowhere")


def test_a_damaged_run_is_refused(command: Command, moons: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    shutil.copytree(moons, tmp_path / "copy")
    (tmp_path / "copy" / "input.json").write_text('{"format": "fedmm-input-1", "class_names": ["one"], "input": null}')
    refused(command("predict", "copy", "x.npy"), "names 1 classes, but the model has 2")
    (tmp_path / "copy" / "input.json").unlink()  # as runs of older versions: the data set's own names
    assert "p_upper" in command("predict", "copy", "x.npy").out
    (tmp_path / "copy" / "model.safetensors").unlink()
    refused(command("predict", "copy", "x.npy"), "holds no model.safetensors yet")


# Evaluate -------------------------------------------------------------------------------------------------------------


def test_the_runs_own_test_rows_give_the_accuracy_of_its_summary(command: Command, moons: Path, tmp_path: Path) -> None:
    ended = command("evaluate", moons, "test", "--out", "e.json", "--picture", "e.png")
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "e.json").read_text())
    summary = json.loads((moons / "summary.json").read_text())
    assert found["accuracy"] == pytest.approx(summary["target_accuracy"])
    assert found["rows"] == 30
    assert f"accuracy {found['accuracy']:.1%}" in ended.out
    assert (tmp_path / "e.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((moons / "summary.json").read_text()) == summary


def test_the_start_of_the_roc_curve_is_measured_if_asked_for(command: Command, moons: Path, tmp_path: Path) -> None:
    from sklearn.metrics import roc_auc_score

    assert command("evaluate", moons, "test", "--out", "e.json").code == 0
    found = json.loads((tmp_path / "e.json").read_text())
    assert (found["max_fpr"], found["partial_auc"]) == (None, None)
    ended = command("evaluate", moons, "test", "--out", "e.json", "--max-fpr", "0.25")
    found = json.loads((tmp_path / "e.json").read_text())
    assert f"up to a false positive rate of 0.25: {found['partial_auc']:.3f}, standardised" in ended.out
    run = open_run(moons)
    (rows,) = rows_named(run, "test").parts
    predicted = predict_rows(run, rows)
    odds = predicted.logarithms.double()
    expected = roc_auc_score(predicted.y, odds[:, 1] - odds[:, 0], max_fpr=0.25)
    assert found["partial_auc"] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_other_pictures(command: Command, moons: Path, tmp_path: Path, ending: str) -> None:
    assert command("evaluate", moons, "source-test", "--picture", f"e.{ending}").code == 0
    assert (tmp_path / f"e.{ending}").stat().st_size > 1000


def test_labels_of_a_folder_and_those_the_model_does_not_know(command: Command, pictures: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(pictures / "target", tmp_path / "more")
    shutil.copytree(pictures / "target" / "dark", tmp_path / "more" / "green")
    ended = command("evaluate", pictures / "run", "more", "--out", "e.json")
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "e.json").read_text())
    assert (found["rows"], found["left_out"], found["unknown_labels"]) == (8, 4, ["green"])
    assert "labels that the model does not know: green" in ended.out
    hits = round(8 * found["accuracy"])
    assert (found["labelled_rows"], found["unknown_rows"]) == (12, 4)
    assert found["accuracy_of_all"] == pytest.approx(hits / 12)
    assert f"accuracy of all 12 labelled rows {hits / 12:.1%}" in ended.out
    assert "8 of 12 rows whose class it knows" in ended.out
    assert np.asarray(found["confusion"]).sum(axis=1).tolist() == [4, 4]


def test_classes_that_no_row_has_are_named_and_rows_without_label_counted(
    command: Command, moons: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "xy.npz", x=np.zeros((5, 2)), y=np.array([0, 0, 0, -1, 9]))
    ended = command("evaluate", moons, "xy.npz", "--out", "e.json", "--picture", "e.png")
    assert ended.code == 0, ended.err
    found = json.loads((tmp_path / "e.json").read_text())
    assert (found["rows"], found["left_out"], found["unknown_rows"]) == (3, 2, 1)
    assert found["absent_classes"] == ["lower"]
    assert found["auc"] is None
    assert "1 rows without a label are left out" in ended.out
    assert "no row has the class lower, which the model knows" in ended.out
    assert "always 'upper' would have 100.0%" in ended.out


def test_results_replace_neither_data_nor_files_of_a_run(command: Command, moons: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    shutil.copytree(moons, tmp_path / "run")
    (tmp_path / "run" / "rounds.png").write_bytes(b"its own")
    (tmp_path / "package.json").write_text("{}")
    own = "is there and holds something else than an evaluation; name another file"
    refused(command("evaluate", "run", "test", "--out", "e.csv"), "--out e.csv must end in .json")
    refused(command("evaluate", "run", "test", "--out", "run/summary.json"), own)
    refused(command("evaluate", "run", "test", "--out", "package.json"), own)
    refused(
        command("evaluate", "run", "test", "--picture", "run/rounds.png"),
        "something else than a picture by fedmm evaluate",
    )
    for _ in range(2):  # an older evaluation may be replaced
        assert command("evaluate", "run", "test", "--out", "run/e.json").code == 0
    assert (tmp_path / "package.json").read_text() == "{}"
    assert (tmp_path / "run" / "rounds.png").read_bytes() == b"its own"


def test_what_may_be_replaced_is_asked_before_a_row_is_read(command: Command, moons: Path, tmp_path: Path) -> None:
    outputs = [
        ("evaluate", "test", "--out", "e.json"), ("evaluate", "test", "--picture", "e.png"),
        ("predict", "rows.npy", "--out", "p.csv"),
    ]  # fmt: skip
    for name, data, option, file in outputs:
        (tmp_path / file).mkdir()
        for rows in (data, "nowhere.npy"):  # which is not looked for
            refused(command(name, moons, rows, option, file), f"{file} is a folder; name a file to write")
        (tmp_path / file).rmdir()
        (tmp_path / file).write_bytes(b"")
    np.save(tmp_path / "rows.npy", np.zeros((3, 2)))
    for name, data, option, file in outputs:
        assert command(name, moons, data, option, file).code == 0
        assert (tmp_path / file).stat().st_size


@pytest.mark.parametrize("name", ["p.csv", "p.csv.gz", "p.parquet", "P.CSV"])
def test_predictions_replace_predictions_alone(command: Command, moons: Path, tmp_path: Path, name: str) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    (tmp_path / name).write_bytes(b"patient,sick\n1,0\n")
    refused(command("predict", moons, "x.npy", "--out", name), f"--out {name} is there and holds something else than")
    assert (tmp_path / name).read_bytes() == b"patient,sick\n1,0\n"
    if name.endswith("csv"):
        (tmp_path / name).write_bytes(b"row,predicted_by_doctor,age\n1,sick,30\n")
        refused(command("predict", moons, "x.npy", "--out", name), "something else than predictions")
    (tmp_path / name).write_bytes(b"")
    for _ in range(2):
        assert command("predict", moons, "x.npy", "--out", name).code == 0


@pytest.mark.parametrize("name", ["e.png", "e.svg", "e.pdf", "E.PNG"])
def test_a_picture_replaces_one_of_an_evaluation_alone(
    command: Command, moons: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / name).write_bytes(b"a patient")
    refused(
        command("evaluate", moons, "test", "--picture", name), f"--picture {name} is there and holds something else"
    )
    assert (tmp_path / name).read_bytes() == b"a patient"
    (tmp_path / name).unlink()
    for _ in range(2):
        assert command("evaluate", moons, "test", "--picture", name).code == 0


def test_what_cannot_be_evaluated_is_said_in_one_sentence(command: Command, moons: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((3, 2)))
    np.savez(tmp_path / "xy.npz", x=np.zeros((3, 2)), y=np.array([7, 8, 9]))
    refused(command("evaluate", moons, "x.npz"), "has no labels of the model's classes (upper, lower, ...)")
    refused(command("evaluate", moons, "xy.npz"), "only unknown ones such as 7, 8, 9")
    refused(command("evaluate", moons, "test", "--bins", "0"), "--bins must be at least 1")
    for rate in ("0", "1.5", "nan"):
        refused(command("evaluate", moons, "test", "--max-fpr", rate), "--max-fpr must be")
    np.savez(tmp_path / "one.npz", x=np.zeros((3, 2)), y=np.zeros(3, dtype=int))
    both = "--max-fpr needs a model of two classes and labelled rows of both"
    refused(command("evaluate", moons, "one.npz", "--max-fpr", "0.1"), both)
    refused(command("evaluate", moons, "test", "--picture", "e.gif"), "must end in .png, .svg, .pdf")


# Export ---------------------------------------------------------------------------------------------------------------


def test_an_export_says_what_it_takes_and_gives(command: Command, pictures: Path, tmp_path: Path) -> None:
    ended = command("export", pictures / "run", "--format", "torchscript", "--out", "model.pt")
    assert ended.code == 0, ended.err
    assert ended.err == ""
    assert "takes x [rows, 3, 10, 10] uint8" in ended.out
    assert "compared on 14 rows" in ended.out
    assert (tmp_path / "model.pt").exists()


def test_what_cannot_be_exported_is_said_in_one_sentence(command: Command, moons: Path, tmp_path: Path) -> None:
    refused(command("export", moons, "--format", "tflite"), "--format must be one of onnx, torchscript, safetensors")
    refused(command("export", moons, "--format", "torchscript", "--out", tmp_path), "is a folder; name a file")
    (tmp_path / "file").write_text("")
    refused(command("export", moons, "--format", "safetensors", "--out", "file/model"), "cannot be written")


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("predict", "RUN", "x.npy", "--out", "FILE"), "p.csv"),
        (("evaluate", "RUN", "test", "--out", "FILE"), "e.json"),
        (("evaluate", "RUN", "test", "--picture", "FILE"), "e.png"),
        (("export", "RUN", "--format", "torchscript", "--overwrite", "--out", "FILE"), "m.pt"),
        (("report", "RUN", "--out", "FILE"), "r.html"),
        (("report", "RUN", "--out", "FILE"), "r.pdf"),
        (("report", "RUN", "--out", "FILE"), "r.png"),
        (("init", "all.npz", "--overwrite", "--out", "FILE"), "i.toml"),
    ],
)
def test_a_full_disk_leaves_an_older_file_as_it_was(
    command: Command, moons: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], file: str
) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    x = np.random.default_rng(0).normal(size=(20, 2))
    np.savez(tmp_path / "all.npz", source_x=x, source_y=np.arange(20) % 2, target_x=x)
    older = f"row,predicted\nan older file: {EVALUATION} fedmm evaluate\n"
    (tmp_path / file).write_text(older)

    def full(number: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ended = command(*({"RUN": moons, "FILE": file}.get(word, word) for word in words))
    refused(ended, f"cannot be written{' to .' if file == 'e.json' else ''}: {os.strerror(errno.ENOSPC)}")
    assert (tmp_path / file).read_text() == older
    assert not list(tmp_path.glob(".*"))


def test_export_does_not_overwrite(command: Command, moons: Path, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_text("mine")
    words = ("export", moons, "--format", "safetensors", "--out", "m.safetensors")
    refused(command(*words), "m.safetensors already exists; pass --overwrite to replace it")
    assert (tmp_path / "m.safetensors").read_text() == "mine"
    assert command(*words, "--overwrite").code == 0


def test_what_is_said_names_the_model(command: Command, moons: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2)))
    best = json.loads((moons / "summary.json").read_text())["best"]["round"]
    by_default, last = f"round {best}, best by target_information", "round 2, last"
    assert command("predict", moons, "x.npy").err == f"model: {by_default}\n"
    assert by_default in command("predict", moons, "x.npy", "--out", "p.csv").out
    assert by_default in command("evaluate", moons, "test").out
    assert last in command("evaluate", moons, "test", "--model", "last").out
    ended = command("export", moons, "--format", "safetensors", "--model", "last", "--out", "m.safetensors")
    assert last in ended.out
