"""The objective ``auc`` on a table, from the experiment file to predictions."""

from __future__ import annotations

import csv
import html
import json
import math
import shutil
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli.commands import Command
from problems import generator
from safetensors.torch import load_file

import fedmm
from fedmm import AUC
from fedmm.config.toml import write_toml
from fedmm.runs import sweep as sweeping
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned


def table(folder: Path) -> dict[str, Any]:
    """Three hospitals, of which one has no patient of class "ill", and a fourth to predict for."""
    random = generator(1)
    lines = ["hospital,ill,age,pulse"]
    for hospital, share in (("a", 0.5), ("b", 0.0), ("c", 0.3), ("d", 0.4)):
        for number in range(40):
            ill = number < 40 * share
            age, pulse = (torch.randn(2, generator=random) + 2.0 * ill).tolist()
            lines.append(f"{hospital},{'yes' if ill else 'no'},{age},{pulse}")
    (folder / "patients.csv").write_text("\n".join(lines) + "\n")
    return {
        "run": {"rounds": 6, "batch_size": 8, "checkpoint_every": 1, "checkpoint_seconds": 0.0, "threads": 1},
        "data": {
            "name": "table", "file": str(folder / "patients.csv"), "label": "ill", "site": "hospital",
            "target_sites": ["d"],
        },
        "partition": {"name": "by_site"},
        "model": {"name": "mlp", "hidden": [4]},
        "objective": {"name": "auc", "margin": 0.9},
        "algorithm": {"name": "codasca", "local_steps": 3},
    }  # fmt: skip


def test_an_experiment_comes_back_from_its_tables(tmp_path: Path) -> None:
    each = fedmm.experiment(table(tmp_path))
    assert each.objective == AUC(margin=0.9)
    assert fedmm.experiment(each.tables()) == each
    assert not each.adapts
    assert not each.source_only


@pytest.mark.parametrize("engine", ["in_process", "batched"])
@pytest.mark.parametrize("max_fpr", [1.0, 0.3])
def test_a_run_that_stopped_goes_on_to_the_same_bits(tmp_path: Path, engine: str, max_fpr: float) -> None:
    tables = table(tmp_path)
    tables["objective"]["max_fpr"] = max_fpr
    each = fedmm.experiment({**tables, "run": {**tables["run"], "engine": engine}})
    fedmm.run_experiment(each, tmp_path / "whole", progress=False)

    def stop(row: Any) -> None:
        if row["round"] == 3:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fedmm.run_experiment(each, tmp_path / "broken", progress=False, on_round=stop)
    fedmm.run_experiment(each, tmp_path / "broken", progress=False, resume=True)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert one.keys() == other.keys() >= {"levels.weight", "adversary.weight"}
    assert one["levels.weight"].shape == (2 + (max_fpr < 1.0),)
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_commands_run_evaluate_predict_and_export(tmp_path: Path, command: Command) -> None:
    file, folder = tmp_path / "auc.toml", tmp_path / "run"
    file.write_text(write_toml(table(tmp_path)))
    ran = command("run", file, "--out", folder)
    assert ran.code == 0
    assert "adaptation" not in ran.out + ran.err
    assert json.loads((folder / "summary.json").read_text())["tested_rows_trained_on"] == 0
    assert command("check", file).code == 0
    assert command("evaluate", folder, "test").code == 0
    assert command("predict", folder, tmp_path / "patients.csv", "--out", tmp_path / "predictions.csv").code == 0
    kept = (tmp_path / "patients.csv").read_text()
    over = command("predict", folder, tmp_path / "patients.csv", "--out", tmp_path / "patients.csv")
    assert (over.code, over.err.count("\n")) == (2, 1)
    assert "is there and holds something else than predictions; name another file" in over.err
    assert (tmp_path / "patients.csv").read_text() == kept
    for kind in ("safetensors", "torchscript"):
        assert command("export", folder, "--format", kind, "--out", tmp_path / f"model.{kind}").code == 0
    for name, reason in (("patients.csv", "would be a table by its name"), ("run/model.safetensors", "that the run")):
        over = command("export", folder, "--format", "safetensors", "--overwrite", "--out", tmp_path / name)
        assert (over.code, over.err.count("\n"), reason in over.err) == (2, 1, True)
    held = load_file(tmp_path / "model.safetensors")
    assert not [name for name in held if name.startswith(("levels", "adversary"))]
    predictor = fedmm.load_model(
        folder / "model.safetensors", fedmm.experiment(table(tmp_path)).model.build((2,), 2, 0)
    )
    assert predictor.predict_proba(torch.zeros(3, 2)).shape == (3, 2)
    refused = command("compare", file, "--objectives", "auc")
    assert "--objectives must name objectives that adapt to the target; auc does not" in refused.err
    assert "to which auc does not adapt" in command("tune", file, "--minutes", "1").err


def whole_table(folder: Path, rare: str = "fraud") -> Path:
    """Transactions of three banks, all with labels; the rare class may come first or last in the alphabet."""
    random = generator(2)
    lines = ["bank,amount,hour,kind"]
    for bank, share in (("a", 0.1), ("b", 0.0), ("c", 0.2)):
        for number in range(60):
            positive = number < 60 * share
            amount, hour = (torch.randn(2, generator=random) + 2.0 * positive).tolist()
            lines.append(f"{bank},{amount},{hour},{rare if positive else 'legit'}")
    (folder / "banks.csv").write_text("\n".join(lines) + "\n")
    return folder / "banks.csv"


def test_init_counts_the_rows_that_a_client_trains_on(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    options = ("--label", "kind", "--site", "bank", "--metric", "auc", "--out", tmp_path / "x.toml")
    assert command("init", whole_table(tmp_path), *options).code == 0
    assert "the smallest client trains on about 36" in (tmp_path / "x.toml").read_text()  # of 60, less 2 x 20 %


@pytest.mark.parametrize("heading", ["bank", "kanton"])
@pytest.mark.parametrize("empty", [0, 2])
def test_init_says_that_a_column_may_hold_sites(tmp_path: Path, command: Command, heading: str, empty: int) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    table = whole_table(tmp_path)
    first, *lines = table.read_text().splitlines()
    lines[:empty] = [line[1:] for line in lines[:empty]]
    table.write_text("\n".join([first.replace("bank", heading), *lines]))
    made = command("init", table, "--label", "kind", "--metric", "auc", "--out", tmp_path / "x.toml")
    assert made.code == 0
    fill = ", after filling its 2 empty cells" if empty else ""
    said = f"column 'bank' (3 values) may hold sites; if it does, pass --site bank{fill}\n"
    assert (said in made.out) == (heading == "bank")
    assert "may hold sites" in made.out or heading == "kanton"
    assert not empty or command("init", table, "--label", "kind", "--site", heading, "--overwrite").code == 2


@pytest.mark.parametrize("rare", ["fraud", "odd"])
def test_init_proposes_auc_for_a_table_without_a_target(tmp_path: Path, command: Command, rare: str) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    table, file, folder = whole_table(tmp_path, rare), tmp_path / "banks.toml", tmp_path / "run"
    plain = command("init", table, "--label", "kind", "--site", "bank", "--out", file)
    assert plain.code == 2
    suits = f"--metric auc suits ('{rare}' is rare, 18 of 180 rows); the others are accuracy and worst_site"
    assert f"without a target at all, {suits}" in plain.err
    assert command("init", table, "--label", "kind", "--site", "bank", "--metric", "auc", "--out", file).code == 0
    checked = command("check", file)
    assert checked.code == 0
    assert "there is no target" in " ".join(checked.out.split())
    assert "unbalanced" not in checked.out
    assert f"AUROC is mostly chance with 4 rows of {rare!r} among those to test on" in " ".join(checked.out.split())
    ran = command("run", file, "--set", "run.rounds=20", "--out", folder)
    assert ran.code == 0
    assert "AUROC" in ran.out
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best"]["by"] == "validation_auroc"
    assert summary["source_auroc"] > 0.8
    evaluated = command("evaluate", folder, "source-test", "--out", tmp_path / "evaluation.json")
    assert f"of {rare!r}: AUROC" in evaluated.out
    grouped = command("evaluate", folder, "source-test", "--group", "site", "--out", tmp_path / "evaluation.json")
    assert "worst" in grouped.out
    found = json.loads((tmp_path / "evaluation.json").read_text())["grouped"]
    assert {group["name"] for group in found["groups"]} == {"a", "b", "c"}
    assert sum(group["rows"] for group in found["groups"]) == summary["tested_rows"]["source"]
    by_column = command("evaluate", folder, "source-test", "--group", "bank", "--out", tmp_path / "by_bank.json")
    assert "the run was trained on" not in by_column.out
    again = json.loads((tmp_path / "by_bank.json").read_text())["grouped"]
    assert again["groups"] == found["groups"]
    nowhere = command("evaluate", folder, "source-test", "--group", "nix")
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1)
    assert "'nix', which --group names" in nowhere.err
    trained = command("evaluate", folder, table, "--group", "bank")
    assert trained.code == 0
    assert "the run was trained on rows of this file" in trained.out
    assert "the run was trained on" not in grouped.out
    unknown = command("evaluate", folder, table, "--group", "nix")
    assert unknown.code == 2
    assert "'nix', which --group names" in unknown.err
    assert command("predict", folder, table, "--out", tmp_path / "p.csv").code == 0
    before, (headings, *lines) = table.read_text(), table.read_text().splitlines()
    by_amount = sorted(lines, key=lambda line: (line.split(",")[0], line.split(",")[3], line))
    for changed in (f"{before}a,0.5,0.5,legit\n", "\n".join([headings, *by_amount])):  # rows are dealt anew
        table.write_text(changed)
        for words in (("source-test",), (table, "--calibrate-on", "source-validation")):
            ended = command("evaluate", folder, *words)
            assert (ended.code, ended.err.count("\n")) == (2, 1)
            assert "has other source rows now, or deals them otherwise, than when it was trained" in ended.err
        assert command("evaluate", folder, table).code == 0
    table.write_text(before)
    assert command("evaluate", folder, "source-test").code == 0


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda line: [str(100.0 * float(line[0])), *line[1:]], "column 'paid' has mean"),
        (lambda line: [line[0], {"card": "Card"}.get(line[1], line[1]), line[2]], "its columns, their words or its"),
        (lambda line: [*line[:2], {"yes": "ja", "no": "ein"}[line[2]]], "its c"),
    ],
)
def test_what_a_whole_column_means_must_stay(tmp_path: Path, command: Command, change: Any, reason: str) -> None:
    """Encoded rows are the same then, so that only the encoding shows it."""
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    file, whole = tmp_path / "paid.csv", tmp_path / "whole.csv"
    rows = [[f"{n % 7 + n / 9}", ("card", "cash", "cheque")[n % 3], ("yes", "no")[n % 2]] for n in range(90)]
    whole.write_text("\n".join(["paid,how,outcome", *map(",".join, rows)]))
    file.write_text(whole.read_text())
    folder = small_run(tmp_path, command, file, held_out=0.3)
    assert command("evaluate", folder, "source-test").code == 0
    assert command("run", tmp_path / "e.toml", "--out", folder, "--resume").code == 0
    kept, before = (folder / "input.json").read_text(), command("evaluate", folder, whole).out
    file.write_text("\n".join(["paid,how,outcome", *(",".join(change(row)) for row in rows)]))
    own = command("evaluate", folder, "source-test")
    assert (own.code, own.err.count("\n")) == (2, 1)
    assert "is not what the model was trained on: " + reason in own.err
    resumed = command("run", tmp_path / "e.toml", "--out", folder, "--resume")
    assert (resumed.code, resumed.err.count("\n"), "the data has changed since" in resumed.err) == (2, 1, True)
    assert (folder / "input.json").read_text() == kept
    assert command("evaluate", folder, whole).out == before


def test_predictions_with_columns_of_ones_own_are_rows(tmp_path: Path, command: Command) -> None:
    """They may be learnt from, so that predictions do not replace them."""
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    file, lines = tmp_path / "seen.csv", [f"{n},a,{n / 40},{'ab'[n % 2]}" for n in range(40)]
    file.write_text("\n".join(["row,predicted,p_a,outcome", *lines]))
    folder, over = small_run(tmp_path, command, file), tmp_path / "p.csv"
    over.write_text(file.read_text())
    other = command("predict", folder, file, "--out", over)
    assert (other.code, "holds something else than predictions" in other.err) == (2, True)
    assert command("predict", folder, file, "--out", file).code == 2
    assert file.read_text() == over.read_text()


def small_run(folder: Path, command: Command, file: Path, **data: Any) -> Path:
    """A run of one round on a table whose column ``outcome`` holds the classes."""
    experiment = {
        "run": {"rounds": 1, "batch_size": 8},
        "data": {"name": "table", "file": str(file), "label": "outcome", "labelled_only": True, **data},
        "model": {"name": "mlp", "hidden": [4]},
        "algorithm": {"name": "fedavg_gda"},
        "objective": {"name": "source_only"},
    }
    (folder / "e.toml").write_text(write_toml(experiment))
    assert command("run", folder / "e.toml", "--out", folder / "run").code == 0
    return folder / "run"


def test_groups_of_own_rows_are_as_they_are_written(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    lines = [f"{n % 7},{'ab'[n % 2]},{('01', '1', 'NA', '')[n % 4]},{'xy'[n // 60]}" for n in range(120)]
    (tmp_path / "all.csv").write_text("\n".join(["age,outcome,region,site", *lines]))
    folder = small_run(tmp_path, command, tmp_path / "all.csv", held_out=0.5, categorical=["region"])
    for column, names in (("region", {"01", "1", "NA", "(empty)"}), ("site", {"x", "y"})):
        for rows in ("source-test", tmp_path / "all.csv"):
            ended = command("evaluate", folder, rows, "--group", column, "--out", tmp_path / "g.json")
            assert ended.code == 0, ended.err
            found = json.loads((tmp_path / "g.json").read_text())["grouped"]["groups"]
            assert {group["name"] for group in found} == names


@pytest.fixture(scope="module")
def banks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A table of three banks, and a finished run of auc on it."""
    folder = tmp_path_factory.mktemp("banks")
    file = whole_table(folder)
    data = {"name": "table", "file": str(file), "label": "kind", "site": "bank", "labelled_only": True}
    tables = {
        "run": {"rounds": 10, "batch_size": 8, "seed": 1},
        "data": data | {"classes": {"legit": "legit", "fraud": "fraud"}},
        "partition": {"name": "by_site"},
        "model": {"name": "mlp", "hidden": [4]},
        "objective": {"name": "auc"},
        "algorithm": {"name": "codasca", "local_steps": 3},
    }
    fedmm.run_experiment(fedmm.experiment(tables), folder / "run", progress=False)
    return file, folder / "run"


def test_the_report_says_what_evaluate_says(banks: tuple[Path, Path], tmp_path: Path, command: Command) -> None:
    folder = banks[1]
    written = ("--model", "last", "--group", "site", "--out", tmp_path / "evaluation.json")
    assert command("evaluate", folder, "source-test", *written).code == 0
    found = json.loads((tmp_path / "evaluation.json").read_text())
    kept = load_file(folder / "exhibits.safetensors")
    areas = [found["classes"][0]["support"], found["classes"][1]["support"], found["auc"], found["average_precision"]]
    assert kept["ranking_source"].tolist() == pytest.approx(areas, abs=1e-12)
    assert kept["roc_source"].tolist() == [pytest.approx(point) for point in found["curves"]["roc"]]
    names = json.loads(bytes(kept["site_names_source"].tolist()))
    groups = {group["name"]: group for group in found["grouped"]["groups"]}
    assert set(names) == set(groups)
    for name, (rows, hits, _, auc) in zip(names, kept["sites_source"].tolist(), strict=True):
        assert (rows, hits / rows) == (groups[name]["rows"], groups[name]["accuracy"])
        assert (None if math.isnan(auc) else auc) == groups[name]["auc"]
    pytest.importorskip("plotly", reason="an HTML report needs fedmm[report]")
    assert command("report", folder, "--out", tmp_path / "r.html").code == 0
    text = (tmp_path / "r.html").read_text()
    assert "There is no target: scores are on labelled rows" in text
    assert "The model is that of the last round." in text  # best_by could not be measured, so nothing chose a round
    low, high = found["intervals"]["auc"]
    assert f"ROC, test rows: AUROC {found['auc']:.3f} ({low:.3f} to {high:.3f})" in text
    worst = found["grouped"]["groups"][0]
    low, high = worst["accuracy_interval"]
    assert f"{worst['accuracy']:.1%} ({low:.1%} to {high:.1%})" in text


def test_the_report_shows_groups_as_evaluate_scored_them(
    banks: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    file, run = banks
    folder, people = tmp_path / "run", tmp_path / "people.csv"
    shutil.copytree(run, folder)
    heading, *lines = file.read_text().splitlines()
    sexes = ["x" if number % 30 == 0 else "fm"[number % 2] for number in range(len(lines))]
    rows = [f"{line},{sex},same" for line, sex in zip(lines, sexes, strict=True)]
    people.write_text("\n".join([f"{heading},sex,country", *rows]) + "\n")
    ended = command("evaluate", folder, people, "--group", "sex", "--out", folder / "by_sex.json")
    assert ended.code == 0, ended.err
    few = "groups with fewer than 10 rows come last and do not count in worst, mean and spread, since their scores"
    assert f"{few} are mostly chance: 'x' (6)" in " ".join(ended.out.split())
    refused = command("evaluate", folder, people, "--group", "country", "--out", folder / "by_country.json")
    assert refused.code == 2
    assert "--group country has one value alone in the labelled rows of" in refused.err
    assert "'same'; groups to compare need two" in refused.err
    assert not (folder / "by_country.json").exists()
    found = json.loads((folder / "by_sex.json").read_text())
    assert not found["training_file"]
    groups = found["grouped"]["groups"]
    assert {group["name"]: group["rows"] for group in groups} == {sex: sexes.count(sex) for sex in "fmx"}
    assert sum(group["hits"] for group in groups) == round(found["accuracy"] * len(rows))
    pytest.importorskip("plotly", reason="an HTML report needs fedmm[report]")
    assert command("report", folder, "--out", tmp_path / "r.html").code == 0
    text = html.unescape((tmp_path / "r.html").read_text())
    assert f"sex in people.csv, {len(rows)} rows<small>" in text
    assert f"round {found['round']} ({found['checkpoint']}); by_sex.json</small>" in text
    for group in groups:
        low, high = group["accuracy_interval"]
        assert f"{group['accuracy']:.1%} ({low:.1%} to {high:.1%})" in text
        low, high = group["auc_interval"]
        assert f"{group['auc']:.3f} ({low:.3f} to {high:.3f})" in text
    assert command("report", folder, "--out", tmp_path / "r.pdf").code == 0


def test_predictions_are_calibrated_and_decided_for_a_recall(
    banks: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    file, folder = banks
    with file.open() as lines:
        positive = [row["kind"] == "fraud" for row in csv.DictReader(lines)]

    def predicted(*options: str) -> tuple[list[float], list[bool]]:
        ended = command("predict", folder, file, "--out", tmp_path / "p.csv", *options)
        assert ended.code == 0, ended.err
        with (tmp_path / "p.csv").open() as lines:
            rows = list(csv.DictReader(lines))
        return [float(row["p_fraud"]) for row in rows], [row["predicted"] == "fraud" for row in rows]

    raw, _ = predicted()
    p, called = predicted("--calibrate-on", str(file), "--recall", "0.9")
    e = 1 / (len(positive) + 2)
    share = e + (1 - 2 * e) * sum(positive) / len(positive)  # of the targets
    assert sum(p) / len(p) == pytest.approx(share, abs=1e-6)
    assert abs(sum(raw) / len(raw) - share) > 0.05  # ranking says nothing of the share
    order = sorted(range(len(p)), key=raw.__getitem__)
    assert all(p[one] <= p[other] for one, other in pairwise(order))
    found = sum(call for call, ill in zip(called, positive, strict=True) if ill)
    assert found == math.ceil(0.9 * sum(positive))
    least = min(value for value, call in zip(p, called, strict=True) if call)
    assert all(call == (value >= least) for value, call in zip(p, called, strict=True))


@pytest.mark.parametrize("recall", ["0.3", "0.9"])
def test_a_threshold_is_a_probability_in_every_file(
    recall: str, banks: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    file, run = banks
    folder, options = tmp_path / "run", ("--calibrate-on", str(file), "--recall", recall)
    shutil.copytree(run, folder)
    ended = command("evaluate", folder, file, "--group", "bank", *options, "--out", folder / "by_bank.json")
    assert ended.code == 0, ended.err
    found = json.loads((folder / "by_bank.json").read_text())
    assert 0 < found["threshold"] < 1
    assert f"'fraud' is predicted from probability {found['threshold']:.4g} on" in " ".join(ended.out.split())
    assert command("predict", folder, file, *options, "--out", tmp_path / "p.csv").code == 0
    with (tmp_path / "p.csv").open() as lines:
        rows = [(float(row["p_fraud"]), row["predicted"] == "fraud") for row in csv.DictReader(lines)]
    clear = [(p, called) for p, called in rows if abs(p - found["threshold"]) > 1e-6]
    assert clear
    assert all(called == (p >= found["threshold"]) for p, called in clear)
    thresholds = found["curves"]["thresholds"]
    assert thresholds == sorted(thresholds, reverse=True)
    assert 0 < thresholds[-1] < thresholds[0] < 1
    assert command("export", folder, "--format", "torchscript", *options, "--out", tmp_path / "m.pt").code == 0
    with zipfile.ZipFile(tmp_path / "m.pt") as packed:
        (about,) = [name for name in packed.namelist() if name.endswith("/fedmm.json")]
        told = json.loads(packed.read(about))["calibration"]["threshold"]
    assert told == pytest.approx(found["threshold"], rel=1e-6)
    assert told < found["threshold"]
    pytest.importorskip("plotly", reason="an HTML report needs fedmm[report]")
    assert command("report", folder, "--out", tmp_path / "r.html").code == 0
    text = html.unescape((tmp_path / "r.html").read_text())
    assert f"second class from probability {found['threshold']:.4g} on" in text
    assert "An evaluation is left out" not in text


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_onnx_model_gives_the_probabilities_of_predict(
    calibrated: bool, banks: tuple[Path, Path], tmp_path: Path, command: Command
) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX needs fedmm[export]")
    pytest.importorskip("onnxscript", reason="ONNX needs fedmm[export]")
    file, folder = banks
    calibrate = ["--calibrate-on", str(file), "--recall", "0.9"] if calibrated else []
    ended = command("export", folder, "--format", "onnx", "--out", tmp_path / "model.onnx", *calibrate)
    assert ended.code == 0, ended.err
    assert command("predict", folder, file, "--out", tmp_path / "p.csv", *calibrate).code == 0
    with file.open() as lines:
        table = list(csv.DictReader(lines))
    given = {name: np.array([[float(row[name])] for row in table]) for name in ("amount", "hour")}
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    probabilities, logits = session.run(["probabilities", "logits"], given)
    with (tmp_path / "p.csv").open() as lines:
        predicted = list(csv.DictReader(lines))
    own = np.array([[float(row["p_legit"]), float(row["p_fraud"])] for row in predicted])
    if calibrated:
        told = json.loads(session.get_modelmeta().custom_metadata_map["fedmm"])["calibration"]["threshold"]
        called = [row["predicted"] == "fraud" for row in predicted]
        clear = np.abs(own[:, 1] - told) > 1e-5
        assert np.array_equal(np.array(called)[clear], (own[:, 1] >= told)[clear])
    np.testing.assert_allclose(probabilities, own, atol=1e-5)
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], np.log(own[:, 1] / own[:, 0]), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--label", "bank", "--metric", "auc"], "--metric auc needs two classes, and column 'bank' of"),
        (
            ["--label", "kind", "--site", "kind", "--metric", "auc"],
            "column 'kind' is the label; the site must be in an",
        ),
        (["--label", "kind", "--metric", "f1"], "--metric must be one of accuracy, auc, worst_site, not 'f1'"),
        (
            ["--label", "kind", "--site", "bank", "--target-site", "a", "--metric", "auc"],
            "--metric is for a table without a target; leave out --target-site",
        ),
    ],
)
def test_init_refuses_a_metric_that_does_not_fit(
    tmp_path: Path, command: Command, options: list[str], sentence: str
) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    refused = command("init", whole_table(tmp_path), *options, "--out", tmp_path / "x.toml")
    assert refused.code == 2
    assert sentence in refused.err
    assert not (tmp_path / "x.toml").exists()


@pytest.mark.parametrize("metric", ["accuracy", "auc", "worst_site", ""])
def test_init_refuses_a_label_of_one_class(tmp_path: Path, command: Command, metric: str) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    table = tmp_path / "one.csv"
    table.write_text("amount,bank,kind\n" + "".join(f"{n},{'ab'[n % 2]},legit\n" for n in range(40)))
    refused = command(
        "init", table, "--label", "kind", "--site", "bank", "--metric", metric, "--out", tmp_path / "x.toml"
    )
    assert refused.code == 2
    assert f"every labelled row of {table} is of one class, 'legit' in column 'kind'; a model needs" in refused.err
    assert not (tmp_path / "x.toml").exists()


def test_init_proposes_weights_of_sites_for_the_worst_of_them(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    table, file, folder = whole_table(tmp_path), tmp_path / "banks.toml", tmp_path / "run"
    few = table.read_text().splitlines()
    table.write_text("\n".join([*few, "d,0.5,0.5,legit", "d,0.1,0.2,fraud", "d,1.5,0.5,legit"]) + "\n")
    given = ("init", table, "--label", "kind", "--metric", "worst_site", "--out", file)
    assert command(*given, "--site", "bank").code == 0
    assert 'name = "worst_site"' in file.read_text()
    refused = command("run", file, "--set", "algorithm.name=fedmm", "--out", folder)
    assert refused.code == 2
    assert "objective.name = 'worst_site' needs an algorithm that weighs its clients" in refused.err
    checked = command("check", file)
    assert "so a weight from its loss is mostly chance: d (" in " ".join((checked.out + checked.err).split())
    alone = [few[0], *(line for line in few if line.startswith("a,"))]
    (tmp_path / "alone.csv").write_text("\n".join(alone) + "\n")
    one = command("check", file, "--set", f"data.file={tmp_path / 'alone.csv'}")
    assert "there is only one client, a, so there is nothing to weigh its loss against" in " ".join(one.out.split())
    ran = command("run", file, "--set", "run.rounds=5", "--out", folder)
    assert ran.code == 0
    weights = json.loads((folder / "summary.json").read_text())["site_weights"]
    assert list(weights) == ["a", "b", "c", "d"]
    assert sum(weights.values()) == pytest.approx(1.0)
    assert "weights of the sites' losses: " in ran.out + ran.err
    grouped = command("evaluate", folder, table, "--group", "bank", "--out", tmp_path / "evaluation.json")
    assert grouped.code == 0
    assert len(json.loads((tmp_path / "evaluation.json").read_text())["grouped"]["groups"]) == 4
    assert "name it with --site" in command(*given, "--overwrite").err


@pytest.mark.parametrize("metric", ["auc", "worst_site"])
def test_a_table_without_a_target_is_compared_and_tuned(
    tmp_path: Path, command: Command, metric: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas", reason="tables need fedmm[tables]")
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
    table, file = whole_table(tmp_path), tmp_path / "banks.toml"
    assert command("init", table, "--label", "kind", "--site", "bank", "--metric", metric, "--out", file).code == 0
    judged = {"auc": "validation_auroc", "worst_site": "validation_worst_accuracy"}[metric]
    compared = command("compare", file, "--rounds", "2", "--seeds", "2", "--out", tmp_path / "compare")
    assert compared.code == 0, compared.err
    found = json.loads((tmp_path / "compare" / "compare.json").read_text())
    assert found["metric"] == metric
    balanced = "federated averaging, balanced classes"
    assert (balanced in [entry["label"] for entry in found["candidates"]]) == (metric == "auc")
    assert judged in found["verdict"]["sentence"]
    assert all(judged in entry["measures"] for entry in found["candidates"])
    shown = (tmp_path / "compare" / "compare.md").read_text()
    assert "measured on test rows, which chose nothing" in shown
    assert "adapt" not in shown + compared.out
    for given, sentence in (
        (("--metric", "f1"), "--metric must be one of accuracy, auc, worst_site, not 'f1'"),
        (("--objectives", "dann"), "--objectives is for experiments with a target, and this one has none"),
    ):
        refused = command("compare", file, *given, "--out", tmp_path / "refused")
        assert refused.code == 2
        assert sentence in refused.err
    lists = '[tune]\n"algorithm.lr_min" = [0.05]\n'
    file.write_text(f"{file.read_text()}\n{lists}")
    tuned = command("tune", file, "--set", "run.rounds=2", "--seeds", "1", "--out", tmp_path / "tune")
    assert tuned.code == 0, tuned.err
    assert judged in " ".join(tuned.out.split())
    assert "adapt" not in tuned.out
    assert command("report", tmp_path / "tune", "--out", tmp_path / "tune.html").code == 0
    assert "adapting" not in (tmp_path / "tune.html").read_text()
    assert command("run", tmp_path / "tune" / "tuned.toml", "--rounds", "1", "--out", tmp_path / "tuned").code == 0
    assert command("evaluate", tmp_path / "tuned", "source-validation", "--group", "site").code == 0
    same = command(
        "tune", file, "--set", "run.rounds=1", "--set", "data.validation_share=0.0", "--seeds", "1", "--out",
        tmp_path / "same",
    )  # fmt: skip
    assert "the choice was made on the test rows, so the test flatters it" in " ".join(same.out.split())
    for words, sentence in (
        (("tune", "--metric", "f1"), "--metric must be one of accuracy, auc, worst_site, not 'f1'"),
        (("tune", "--set", "data.validation_share=0.9"), "held_out and validation_share must sum to less than 1"),
    ):
        refused = command(words[0], file, *words[1:], "--out", tmp_path / "refused")
        assert refused.code == 2
        assert sentence in refused.err
        assert not (tmp_path / "refused").exists()


def test_without_a_target_a_run_is_called_by_its_algorithm(tmp_path: Path) -> None:
    tables = table(tmp_path) | {"objective": {"name": "source_only"}, "algorithm": {"name": "afl", "local_steps": 1}}
    assert fedmm.experiment(tables).label == "source only"
    del tables["data"]["target_sites"]
    tables["data"]["labelled_only"] = True
    assert fedmm.experiment(tables).label == "afl"
