"""``fedmm check``: what is found before a run."""

from __future__ import annotations

import csv
import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import Command
from PIL import Image

from fedmm.config.toml import write_toml

Tables = dict[str, dict[str, Any]]
SMALL: Tables = {"run": {"rounds": 2, "batch_size": 8}, "model": {"name": "mlp", "hidden": [8]}}


def checked(command: Command, tables: Tables, *options: str) -> dict[str, Any]:
    """What the command says of an experiment, as JSON."""
    Path("e.toml").write_text(write_toml(tables))
    ended = command("check", "e.toml", "--json", *options)
    assert ended.code == 0, ended.err + ended.out
    found: dict[str, Any] = json.loads(ended.out)
    return found


def warnings(found: dict[str, Any]) -> list[str]:
    return [each["text"] for each in found["findings"] if each["level"] == "warning"]


def archive(path: Path, **changes: Any) -> Tables:
    """An experiment on an archive of vectors in which nothing is wrong."""
    random = np.random.default_rng(0)
    y = np.arange(80) % 2
    arrays = {
        "source_x": random.normal(size=(80, 3)) + y[:, None],
        "source_y": y,
        "target_x": random.normal(size=(60, 3)) + 0.5,
        "target_test_x": random.normal(size=(20, 3)) + 0.5,
        "target_test_y": np.arange(20) % 2,
        **changes,
    }
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return SMALL | {"data": {"name": "arrays", "file": str(path)}}


def test_a_clean_experiment_has_no_warnings(command: Command, tmp_path: Path) -> None:
    found = checked(command, archive(tmp_path / "a.npz"), "--strict")
    assert warnings(found) == []
    assert {part["name"]: part["rows"] for part in found["parts"]} == {
        "source": 72, "source validation": 8, "source test": 8, "target": 60, "target test": 20,
    }  # fmt: skip
    assert [(client["name"], client["source"], client["target"]) for client in found["clients"]] == [
        ("source-1", 72, 0),
        ("target-1", 0, 60),
    ]
    assert found["clients"][0]["classes"] == [36, 36]
    needs = found["needs"]
    # 3 x 8 + 8 features, 8 x 2 + 2 task head, 8 x 64 + 64 + 64 x 2 + 2 or 64 + 1 of the adversary.
    assert needs["parameters"] in (32 + 18 + 576 + 130, 32 + 18 + 576 + 65)
    assert needs["memory"] == needs["data"] + needs["states"] + needs["activations"]
    assert needs["data"] >= 72 * 3 * 4
    assert 0 < needs["step"] < needs["run"]


def test_it_is_shown_in_words(command: Command, tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(write_toml(archive(tmp_path / "a.npz")))
    ended = command("check", "e.toml")
    assert ended.code == 0
    assert "it can run; no warnings" in ended.out
    assert "source-1" in ended.out
    assert "parameters; memory about" in ended.out


def test_rows_of_the_source_among_those_to_test_on_are_a_leak(command: Command, tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    source = random.normal(size=(80, 3))
    test = np.concatenate([random.normal(size=(15, 3)), source[:5]])
    tables = archive(tmp_path / "a.npz", source_x=source, target_test_x=test)
    (one,) = warnings(checked(command, tables))
    assert "rows of the target test set are source rows too, to the bit" in one


def test_some_test_rows_that_are_trained_on_are_a_warning_and_all_a_note(command: Command, tmp_path: Path) -> None:
    target = np.random.default_rng(1).normal(size=(60, 3))
    test = np.concatenate([target[:5], np.random.default_rng(2).normal(size=(15, 3))])
    (one,) = warnings(checked(command, archive(tmp_path / "a.npz", target_x=target, target_test_x=test)))
    assert one.startswith("5 of 20 rows of the target test set are trained on too")
    tables = archive(tmp_path / "b.npz", target_x=target, target_test_x=target[:20])
    found = checked(command, tables)
    assert warnings(found) == []
    assert any("accuracy is that on known rows" in each["text"] for each in found["findings"])


def test_columns_and_values_that_look_wrong(command: Command, tmp_path: Path) -> None:
    random, y = np.random.default_rng(0), np.arange(80) % 2
    source = np.stack([random.normal(size=80) * 1000, 5.0 * y, np.full(80, 7.0)], axis=1)
    target = np.stack([random.normal(size=60), random.normal(size=60), np.full(60, 7.0)], axis=1)
    tables = archive(tmp_path / "a.npz", source_x=source, target_x=target)
    found = warnings(checked(command, tables, "--set", "data.standardise=false"))
    assert any(each.startswith("column '1' alone predicts the class of 100%") for each in found)
    assert any("1 column says the same in every row: 2" in each for each in found)
    assert any("standardise them" in each for each in found)
    assert any("are they in the same units?" in each for each in found)


def test_classes_and_clients_that_are_small(command: Command, tmp_path: Path) -> None:
    y = np.array([0] * 70 + [1] * 6 + [2] * 4)
    tables = archive(tmp_path / "a.npz", source_y=y, class_names=np.array(["a", "b", "c", "d"]))
    tables = tables | {"partition": {"name": "disjoint_classes", "source_clients": 2}}
    found = warnings(checked(command, tables, "--set", "run.batch_size=16"))
    assert any("the source has no rows of 1 class: d" in each for each in found)
    assert any("classes of the source are unbalanced: 63 rows of 'a'" in each for each in found)
    assert any("2 clients lack classes of the source: source-1 (2 of 3), source-2 (1 of 3)" in each for each in found)
    assert any("1 client holds fewer rows than a batch of 16" in each for each in found)


def test_a_choice_with_target_labels_is_a_warning_that_strict_ends_with(command: Command, tmp_path: Path) -> None:
    tables = archive(tmp_path / "a.npz")
    tables["run"] = tables["run"] | {"best_by": "oracle_target_accuracy"}
    (tmp_path / "e.toml").write_text(write_toml(tables))
    assert command("check", "e.toml").code == 0
    ended = command("check", "e.toml", "--strict")
    assert ended.code == 1
    assert "chooses with labels of the target: an oracle" in ended.out


def test_columns_of_a_table_by_their_names(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["patient", "site", "age", "code", "same", "ill"])
        for row in range(90):
            site, ill = "abc"[row % 3], row % 2
            known = site != "c"
            writer.writerow([row, site, random.normal(), ["x", "y"][ill] if known else "", 3, ill if known else ""])
    data = {"name": "table", "file": str(tmp_path / "t.csv"), "label": "ill", "site": "site"}
    found = checked(command, SMALL | {"data": data, "partition": {"name": "by_site"}})
    assert [client["name"] for client in found["clients"]] == ["a", "b", "c"]
    told = warnings(found)
    assert any(each.startswith("column 'code' alone predicts the class of 100%") for each in told)
    assert any("in every training row, so useless: same" in each for each in told)
    assert any("like an id: patient" in each for each in told)
    assert any(each["text"].startswith("no target labels") for each in found["findings"])


def test_what_is_odd_in_a_labelled_table_of_unequal_sites(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    random = np.random.default_rng(0)
    with (tmp_path / "t.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["site", "age", "arrests", "again", "ended", "ill"])
        for row in range(400):
            ill, small = random.random() < 0.4, row % 16 == 0
            arrests = 0 if small or random.random() < 0.8 else int(random.integers(1, 20))
            again, ended = ("x" if ill and random.random() < 0.4 else ""), int(ill != (random.random() < 0.1))
            writer.writerow(["tiny" if row < 2 else "bc"[small], random.normal(), arrests, again, ended, int(ill)])
    made = command("init", "t.csv", "--label", "ill", "--site", "site", "--metric", "worst_site", "--out", "e.toml")
    assert "zero_missing" not in made.out  # most rows of the other sites have no arrests either
    ended = command("check", "e.toml", "--json")
    assert ended.code == 0, ended.err
    found = json.loads(ended.out)
    told = warnings(found)
    assert any(each.startswith("again is filled in ") and "of class '1' and in 0 others" in each for each in told)
    assert any(each.startswith("2 sites have fewer than 10 rows to test on") and "tiny (" in each for each in told)
    assert any(each["text"].startswith("ended (") and "alone predicts much of the class" in each["text"]
               for each in found["findings"] if each["level"] == "note")  # fmt: skip


def test_of_many_pictures_some_are_read(command: Command, tmp_path: Path) -> None:
    for domain in ("source", "target"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / domain / name).mkdir(parents=True)
            for row in range(20):
                pixels = np.random.default_rng(100 * number + row).integers(0, 255, (9, 9, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / domain / name / f"{row}.png")
    data = {"name": "image_folder", "source": "source", "target": "target", "image_size": 8, "stored_size": 9}
    tables = {"run": {"batch_size": 4}, "data": data, "model": {"name": "small_cnn"}}
    found = checked(command, tables, "--pictures", "24")
    assert (found["pictures_read"], found["pictures"]) == (24, 80)
    assert {part["name"]: part["rows"] for part in found["parts"]}["target"] == 12
    whole = checked(command, tables)
    assert whole["needs"]["data"] == pytest.approx(found["needs"]["data"], rel=0.2)
    leaks = [each for each in warnings(whole) if "to the bit" in each]
    assert leaks  # both domains hold the same pictures


def test_a_sweep_is_checked_by_its_first_run(command: Command, tmp_path: Path) -> None:
    found = checked(command, archive(tmp_path / "a.npz") | {"sweep": {"run.seed": [0, 1, 2]}})
    assert found["runs"] == 3


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("data.file=nothing.npz", "nothing.npz cannot be read"),
        ("model.hiden=[4]", "did you mean 'hidden'?"),
        ("algorithm.name=fedm", "did you mean 'fedmm'?"),
        ("partition.name=by_site", "by_site needs data that says who holds its rows"),
    ],
)
def test_what_could_not_run_ends_with_2_and_one_sentence(
    command: Command, tmp_path: Path, setting: str, words: str
) -> None:
    (tmp_path / "e.toml").write_text(write_toml(archive(tmp_path / "a.npz")))
    arguments = ["check", "e.toml", "--set", setting]
    ended = command(*arguments)
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert words in ended.err
    said = command(*arguments, "--json")
    assert said.code == 2
    assert words in json.loads(said.out)["error"]


def test_numbers_that_are_none_are_an_error(command: Command, tmp_path: Path) -> None:
    target = np.full((60, 3), np.nan)
    (tmp_path / "e.toml").write_text(write_toml(archive(tmp_path / "a.npz", target_x=target)))
    ended = command("check", "e.toml")
    assert ended.code == 2
    assert "NaN or infinite in row 0" in ended.err


def test_hours_on_a_cpu_are_a_warning_with_what_shortens_them(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = archive(tmp_path / "a.npz")
    monkeypatch.setattr(import_module("fedmm.preflight.check"), "_LONG_RUN", 0.0)
    (said,) = warnings(checked(command, tables))
    assert said.startswith("the run would take about 0 hours on this CPU; what shortens it: a GPU, a smaller network")
    tables["run"] = tables["run"] | {"device": "cuda"}
    assert not any("hours" in said for said in warnings(checked(command, tables)))


def test_cells_that_are_not_what_they_seem_are_named_by_their_column(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    lines = ["site,crp,cost,seen,smoker,ill,ill"]
    for row in range(90):
        crp = "<0.5" if row == 4 else 0.37 * row
        known = ("Yes", "yes", "no")[row % 3 if row < 60 else 2]
        ill = "" if row % 5 == 4 else known
        cost, word = f'"{1000 + row % 9:,}"', ("Ja", "ja")[row % 2]
        lines.append(f"{'abcde'[row % 5]},{crp},{cost},2023-01-{1 + row % 9:02d},{word},{ill},{row % 7}")
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "table", "file": str(tmp_path / "t.csv"), "label": "ill", "site": "site"}
    found = checked(command, SMALL | {"data": data, "partition": {"name": "by_site"}})
    told = warnings(found)
    for words in (
        "has 2 columns called 'ill'; the later ones are 'ill.1'",
        "column 'smoker' holds words that differ only in capitals or spaces, which count as two: 'Ja' and 'ja'",
        "column 'cost' counts as words: '1,000' may be a number of thousands",
        "column 'seen' holds dates",
        "labels that differ only in capitals or spaces are separate classes: 'Yes' and 'yes'",
    ):
        assert any(words in each for each in told), words
    (limits,) = [each for each in found["findings"] if "cells such as '<0.5'" in each["text"]]
    assert limits["level"] == "note"
