"""``fedmm init``: from data that lies somewhere to an experiment that runs."""

from __future__ import annotations

import csv
import json
import shutil
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import Command, Ended
from PIL import Image

from fedmm.config.sites import RowsElsewhere
from fedmm.sites.config import read_site
from fedmm.sites.experiments import deployed_experiment


def written(command: Command, *arguments: str | Path) -> dict[str, Any]:
    """What was written for some data; ``fedmm check`` must take it as it is."""
    ended = command("init", *arguments, "--out", "e.toml", "--overwrite")
    assert ended.code == 0, ended.err
    assert "wrote e.toml; next: fedmm check e.toml" in ended.out
    checked = command("check", "e.toml")
    assert checked.code == 0, checked.err
    return tomllib.loads(Path("e.toml").read_text())


def refused(ended: Ended, words: str) -> None:
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert words in ended.err


def pictures(folder: Path, classes: Sequence[str], count: int = 9, side: int = 20) -> None:
    """Pictures in class folders; without classes, right in the folder."""
    for number, name in enumerate(classes or [""]):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for row in range(count):
            pixels = np.random.default_rng(100 * number + row).integers(0, 255, (side, side + 3, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{row}.png")


def table(path: Path, columns: str, rows: Sequence[Sequence[Any]], mark: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=mark)
        writer.writerow(columns.split())
        writer.writerows(rows)


# Pictures -------------------------------------------------------------------------------------------------------------


def test_two_folders_become_an_experiment_that_runs_to_a_model_that_predicts(command: Command, tmp_path: Path) -> None:
    pictures(tmp_path / "sorted", ["cat", "dog"])
    pictures(tmp_path / "phone", [])
    tables = written(command, "sorted", "--target", "phone")
    assert tables["data"] == {
        "name": "image_folder", "source": "sorted", "target": "phone", "stored_size": 20, "image_size": 18,
    }  # fmt: skip
    assert tables["model"]["name"] == "small_cnn"
    assert tables["partition"]["name"] == "source_target"
    assert tables["run"]["batch_size"] == 8
    assert "# target_test = " in Path("e.toml").read_text()
    assert command("run", "e.toml", "--set", "run.rounds=1", "--out", "run").code == 0
    assert command("predict", "run", "phone", "--out", "found.csv").code == 0
    assert len((tmp_path / "found.csv").read_text().splitlines()) == 10


def test_a_folder_with_source_and_target_is_two_folders(command: Command, tmp_path: Path) -> None:
    for name in ("source", "target", "target_test"):
        pictures(tmp_path / "both" / name, ["cat", "dog"], side=12)
    tables = written(command, "both")
    assert tables["data"]["target_test"] == "both/target_test"


def test_photographs_get_a_frozen_backbone_and_what_is_missing_for_it_is_said(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    pictures(tmp_path / "a", ["cat", "dog"], count=2, side=300)
    pictures(tmp_path / "b", [], count=2, side=300)
    ended = command("init", "a", "--target", "b")
    assert ended.code == 0, ended.err
    assert "needs torchvision, which is not installed: pip install 'fedmm[vision]'" in ended.out
    assert "the first run downloads them (14 MB)" in ended.out
    tables = tomllib.loads(Path("a.toml").read_text())
    assert tables["data"]["image_size"] == 224
    assert tables["data"]["augment"] is False
    assert tables["model"] == {"name": "mobilenet_v2", "weights": "imagenet", "frozen_blocks": 19}


def test_weights_in_the_data_folder_are_proposed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path / "data"))
    (tmp_path / "data" / "mobilenetv2").mkdir(parents=True)
    (tmp_path / "data" / "mobilenetv2" / "mobilenet_v2_imagenet_keras.safetensors").write_bytes(b"")
    pictures(tmp_path / "a", ["cat", "dog"], count=2, side=300)
    pictures(tmp_path / "b", [], count=2, side=300)
    assert command("init", "a", "--target", "b").code == 0
    tables = tomllib.loads(Path("a.toml").read_text())
    assert tables["model"]["weights"] == "mobilenetv2/mobilenet_v2_imagenet_keras.safetensors"
    assert tables["model"]["normalise"] == "half"


def test_bad_pictures_do_not_keep_a_file_from_being_written(command: Command, tmp_path: Path) -> None:
    pictures(tmp_path / "a", ["cat", "dog"], count=2, side=12)
    pictures(tmp_path / "b", [], count=2, side=12)
    (tmp_path / "b" / "notes.png").write_text("no picture")
    tables = written(command, "a", "--target", "b")
    assert tables["data"]["skip_bad"] is True
    assert command("run", "e.toml", "--set", "run.rounds=1", "--out", "run").code == 0


def test_sites_in_folders_become_clients(command: Command, tmp_path: Path) -> None:
    pictures(tmp_path / "all" / "north", ["ill", "well"], side=12)
    pictures(tmp_path / "all" / "south", ["ill", "well"], side=12)
    refused(command("init", "all"), "name the target with --target-site: north, south")
    tables = written(command, "all", "--target-site", "south")
    assert tables["data"]["target_sites"] == ["south"]
    assert tables["partition"]["name"] == "by_site"
    pictures(tmp_path / "all" / "west", [], side=12)
    assert "target_sites" not in written(command, "all")["data"]
    refused(command("init", "all", "--target-site", "east"), "has no site 'east'")


def test_folders_that_say_too_little(command: Command, tmp_path: Path) -> None:
    pictures(tmp_path / "one", ["cat", "dog"], count=1)
    pictures(tmp_path / "loose", [], count=1)
    (tmp_path / "nothing").mkdir()
    refused(command("init", "one"), "name the target's folder with --target")
    refused(command("init", "nothing"), "holds no folders")
    refused(command("init", "loose", "--target", "one"), "then swap the two")
    refused(command("init", "one", "--target", "one/cat/0.png"), "so must --target be")
    refused(command("init", "one", "--target", "missing"), "there is no file or folder missing")
    refused(command("init", "one", "--target", "loose", "--label", "y"), "--label is for tables")


# Archives -------------------------------------------------------------------------------------------------------------


def test_archives_of_one_and_of_two_files(command: Command, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    np.savez(tmp_path / "all.npz", source_x=x, source_y=y, target_x=x + 1, source_site=y, target_site=y)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.save(tmp_path / "b.npy", x + 1)
    tables = written(command, "all.npz")
    assert (tables["data"]["file"], tables["partition"]["name"]) == ("all.npz", "by_site")
    tables = written(command, "a.npz", "--target", "b.npy")
    assert (tables["data"]["source"], tables["data"]["target"]) == ("a.npz", "b.npy")
    assert tables["model"]["name"] == "mlp"
    refused(command("init", "a.npz"), "has no array 'source_x' (it has x, y)")
    refused(command("init", "all.npz", "--target-site", "1"), "--target-site is for tables and folders of sites")
    refused(command("init", "b.npy", "--target", "a.npz"), "must hold arrays x and y; it has x")


# Tables ---------------------------------------------------------------------------------------------------------------


def patients(random: np.random.Generator, known: Callable[[str], bool]) -> list[list[Any]]:
    rows = []
    for row in range(90):
        site, ill = ("north", "south", "west")[row % 3], ("no", "yes")[row % 2]
        rows.append([f"p{row}", site, round(float(random.normal()), 3), "mf"[row % 7 % 2], ill if known(site) else ""])
    return rows


def test_columns_of_a_table_are_known_by_name_and_content(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = patients(np.random.default_rng(0), lambda site: site != "west")
    table(tmp_path / "t.csv", "patient_id hospital age sex diagnosis", rows)
    tables = written(command, "t.csv")
    assert tables["data"] == {
        "name": "table", "file": "t.csv", "label": "diagnosis", "site": "hospital", "id": "patient_id",
    }  # fmt: skip
    assert tables["partition"]["name"] == "by_site"


def test_with_all_labels_known_the_target_must_be_named(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    table(
        tmp_path / "t.csv", "id hospital age sex diagnosis", patients(np.random.default_rng(0), lambda site: True), ";"
    )
    refused(command("init", "t.csv"), "pass --target-site with one of: north, south, west")
    tables = written(command, "t.csv", "--target-site", "west")
    assert tables["data"]["target_sites"] == ["west"]
    assert tables["data"]["separator"] == ";"
    refused(command("init", "t.csv", "--target-site", "east"), "has no 'east'; it has north, south, west")


def test_a_column_may_say_source_and_target(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = [[row, ("source", "target")[row % 2], row * 0.1, "ab"[row % 3 % 2]] for row in range(40)]
    table(tmp_path / "t.csv", "id domain value label", rows)
    tables = written(command, "t.csv")
    assert tables["data"]["domain"] == "domain"
    assert tables["partition"]["name"] == "source_target"


def test_what_cannot_be_guessed_is_asked_for_with_candidates(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = [[row * 0.1, "ab"[row % 2], "xyz"[row % 3], "mn"[row % 5 % 2]] for row in range(60)]
    table(tmp_path / "t.csv", "value first second third", rows)
    refused(command("init", "t.csv"), "pass --label with one of: first (2 values), second (3 values), third (2 values)")
    refused(
        command("init", "t.csv", "--label", "first"),
        "nothing says which rows are the target; pass --site and --target-site",
    )
    tables = written(command, "t.csv", "--label", "first", "--site", "second", "--target-site", "z")
    assert (tables["data"]["label"], tables["data"]["site"]) == ("first", "second")
    refused(command("init", "t.csv", "--label", "fourth"), "has no column 'fourth' for --label; it has value, first")
    table(tmp_path / "u.csv", "value site hospital label", rows)
    refused(command("init", "u.csv"), "pass --site with one of: site (2 values), hospital (3 values)")
    refused(command("init", "t.csv", "--target", "u.csv"), "a table holds both domains in one file")


def test_columns_of_no_use_are_dropped(command: Command, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    rows = [[row % 7 * 0.5, f"note {row // 2}", "ab"[row % 2] if row > 150 else ""] for row in range(400)]
    table(tmp_path / "t.csv", "value remark label", rows)
    assert written(command, "t.csv")["data"]["drop"] == ["remark"]


# Files ----------------------------------------------------------------------------------------------------------------


def test_a_file_is_never_overwritten_unless_asked(command: Command, tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
    np.savez(tmp_path / "all.npz", source_x=x, source_y=y, target_x=x + 1)
    assert command("init", "all.npz").code == 0
    (tmp_path / "all.toml").write_text("mine")
    refused(command("init", "all.npz"), "all.toml already exists; pass --overwrite to replace it")
    assert (tmp_path / "all.toml").read_text() == "mine"
    assert command("init", "all.npz", "--overwrite").code == 0
    refused(command("init", "all.npz", "--out", "all.npz", "--overwrite"), "--out all.npz must end in .toml")
    assert tomllib.loads((tmp_path / "all.toml").read_text())["data"]["file"] == "all.npz"


def test_odd_names_are_written_so_that_they_are_read_back(command: Command, tmp_path: Path) -> None:
    folder = 'a "b" \\ ü#\n'
    x, y = np.random.default_rng(0).normal(size=(20, 4)), np.arange(20) % 2
    np.savez(tmp_path / "plain.npz", source_x=x, source_y=y, target_x=x + 1)
    (tmp_path / folder).mkdir()
    shutil.copy(tmp_path / "plain.npz", tmp_path / folder / "x.npz")
    assert written(command, tmp_path / folder / "x.npz")["data"]["file"] == str(tmp_path / folder / "x.npz")


def test_what_is_no_data_is_refused(command: Command, tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("hello")
    (tmp_path / "bad.npz").write_text("hello")
    (tmp_path / "bad.csv").write_bytes(b"\xff\xfe\x00")
    refused(command("init", "missing"), "there is no file or folder missing")
    refused(command("init", "notes.md"), "is neither a folder of pictures, nor a .npz archive, nor a table")
    refused(command("init", "bad.npz"), "cannot be read as .npz or .npy")
    refused(command("init", "bad.csv"), "cannot be read as a table")
    assert json.dumps([each.name for each in tmp_path.glob("*.toml")]) == "[]"


def test_the_table_of_one_site_becomes_its_file_and_an_experiment_for_all(command: Command, tmp_path: Path) -> None:
    lines = ["id,age,ward,admitted,outcome"]
    for n in range(60):
        lines.append(f"p{n},{30 + n % 40},{'abc'[n % 3]},{1 + n % 28:02d}.01.2023,{'ill' if n % 4 else 'well'}")
    (tmp_path / "ours.csv").write_text("\n".join(lines))
    ended = command("init", "ours.csv", "--as-site", "north", "--with-site", "south", "--out", "all.toml")
    assert ended.code == 0, ended.err
    site = read_site(tmp_path / "north.toml")
    assert (site.site.name, site.data.kind, site.data.domain, site.data.label) == (
        "north",
        "table",
        "source",
        "outcome",
    )
    assert site.data.features == ("age", "ward", "admitted")
    data = deployed_experiment(tomllib.loads((tmp_path / "all.toml").read_text())).data
    assert isinstance(data, RowsElsewhere)
    assert (data.sites, data.classes, data.features) == (("north", "south"), ("ill", "well"), site.data.features)
    assert (dict(data.categories), dict(data.dates)) == ({"ward": ["a", "b", "c"]}, {"admitted": "%d.%m.%Y"})
    assert not site.data.validation_rows
    for words, reason in (
        (("ours.csv", "--as-site", "all", "--out", "all.toml"), "would be the experiment and the site's file"),
        (("ours.csv", "--with-site", "south"), "--with-site is for --as-site"),
        (("ours.csv", "--as-site", "north", "--site", "ward"), "takes only that site's table"),
        ((".", "--as-site", "north"), "is not a file"),
        (("ours.csv", "--as-site", "north", "--out", "all.toml"), "already exists"),
    ):
        refused(command("init", *words), reason)


@pytest.mark.parametrize("metric", ["accuracy", "auc", "worst_site"])
def test_the_table_of_one_site_without_a_target_anywhere(command: Command, tmp_path: Path, metric: str) -> None:
    lines = [f"{30 + n % 40},{'ill' if n % 9 == 0 else 'well'}" for n in range(150)]
    (tmp_path / "ours.csv").write_text("\n".join(["age,outcome", *lines]))
    words = ("init", "ours.csv", "--as-site", "north", "--with-site", "south", "--metric", metric, "--out", "all.toml")
    ended = command(*words)
    assert ended.code == 0, ended.err
    assert read_site(tmp_path / "north.toml").data.validation_rows == 30
    refused(command("check", "all.toml"), "rows stay at sites; run the file with `fedmm deploy run`")
    each = deployed_experiment(tomllib.loads((tmp_path / "all.toml").read_text()))
    assert isinstance(each.data, RowsElsewhere)
    assert each.data.classes == ("well", "ill")
    assert (each.objective.name, each.algorithm.weighs_clients) == {
        "accuracy": ("source_only", False),
        "auc": ("auc", False),
        "worst_site": ("source_only", True),
    }[metric]


@pytest.mark.parametrize("metric", ["accuracy", "auc", "worst_site"])
def test_the_experiment_for_all_does_not_tell_how_rare_a_class_is_at_the_site(
    command: Command, tmp_path: Path, metric: str
) -> None:
    texts = set()
    for ill in (3, 50):
        lines = [f"{30 + n % 40},{'ill' if n < ill else 'well'}" for n in range(150)]
        (tmp_path / "ours.csv").write_text("\n".join(["age,outcome", *lines]))
        words = ("--as-site", "north", "--with-site", "south", "--metric", metric, "--out", "all.toml", "--overwrite")
        assert command("init", "ours.csv", *words).code == 0
        texts.add((tmp_path / "all.toml").read_text())
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--metric", "f1"), "--metric must be one of accuracy, auc, worst_site, not 'f1'"),
        (
            ("--metric", "auc"),
            "needs two classes, and column 'outcome' of ours.csv has 3: a, b, c; let a site",
        ),
        (("--metric", "worst_site"), "needs other sites; name them with --with-site"),
    ],
)
def test_metrics_that_do_not_fit_a_site_are_refused(
    command: Command, tmp_path: Path, words: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "ours.csv").write_text("\n".join(["age,outcome", *(f"{n % 20},{'abc'[n % 3]}" for n in range(60))]))
    refused(command("init", "ours.csv", "--as-site", "north", "--out", "all.toml", *words), reason)


def test_of_a_site_both_files_are_written_or_none(command: Command, tmp_path: Path) -> None:
    lines = [f"{n % 20},{'ab'[n % 2]}" for n in range(60)]
    (tmp_path / "ours.csv").write_text("\n".join(["age,outcome", *lines, "3,", "4,"]))
    words = ("init", "ours.csv", "--label", "outcome", "--as-site", "north", "--out", "all.toml")
    refused(
        command(*words, "--metric", "auc"), "every row has a label; label or remove the 2 rows of ours.csv without one"
    )
    (tmp_path / "north.toml").write_text("mine")
    refused(command(*words), "north.toml already exists")
    assert not (tmp_path / "all.toml").exists()
    assert (tmp_path / "north.toml").read_text() == "mine"
