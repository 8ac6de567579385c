"""Four hospitals, a file each, without header: from the files to predictions, as a new user goes."""

from __future__ import annotations

import csv
import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from cli.commands import Command
from fabricated import HOSPITALS, like_the_hospitals

pytest.importorskip("pandas", reason="tables need fedmm[tables]")

COLUMNS = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,num"


def heart() -> Path:
    """The real files; without them their tests are skipped."""
    folder = Path(os.environ.get("FEDMM_DATA", "")) / "heart"
    if not os.environ.get("FEDMM_DATA") or not (folder / "processed.va.data").exists():
        pytest.skip("needs the four hospitals of UCI heart disease in FEDMM_DATA/heart")
    return folder


def proposed(command: Command, folder: Path, target: str) -> tuple[dict[str, Any], str]:
    ended = command("init", folder, "--columns", COLUMNS, "--label", "num", "--target-site", target, "--out", "e.toml",
                    "--overwrite")  # fmt: skip
    assert ended.code == 0, ended.err
    return tomllib.loads(Path("e.toml").read_text()), ended.out


CLASSES = 'data.classes={ 0 = "healthy", 1 = "sick", 2 = "sick", 3 = "sick", 4 = "sick" }'


def test_the_whole_way_with_a_file_for_each_hospital(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "hospitals"
    folder.mkdir()
    like_the_hospitals(folder)
    tables, said = proposed(command, folder, "switzerland")
    assert list(tables["data"]["files"]) == list(HOSPITALS)
    assert tables["data"]["header"] is False
    assert tables["partition"]["name"] == "by_site"
    assert "5 classes: 0 (" in said
    assert "column 'chol' is 0 in every row of switzerland that has a value (40)" in said
    assert "va never filled ca" in said
    checked = command("check", "e.toml", "--json", "--set", CLASSES)
    assert checked.code == 0, checked.err
    found = json.loads(checked.out)
    assert found["class_names"] == ["healthy", "sick"]
    warned = [each["text"] for each in found["findings"] if each["level"] == "warning"]
    assert any(each.startswith("column 'chol' alone separates source from target") for each in warned)
    assert any("va never filled ca" in each for each in warned)
    settings = ("--set", CLASSES, "--set", "run.rounds=1", "--set", "data.zero_missing=['chol']")
    assert command("run", "e.toml", *settings, "--out", "run").code == 0
    swiss = folder / "processed.switzerland.data"
    assert "40 labelled rows" in command("evaluate", "run", swiss).out
    assert command("predict", "run", swiss, "--out", "labelled.csv").code == 0
    bare = tmp_path / "bare.data"
    bare.write_text("".join(line.rpartition(",")[0] + "\n" for line in swiss.read_text().splitlines()))
    assert command("predict", "run", bare, "--out", "bare.csv").code == 0
    assert (tmp_path / "bare.csv").read_text() == (tmp_path / "labelled.csv").read_text()
    german = tmp_path / "german.csv"
    text = swiss.read_text().replace(",", ";").replace(".", ",")
    german.write_text(COLUMNS.replace(",", ";") + "\n" + text, encoding="utf-16")
    refused = command("predict", "run", german, "--out", "german.csv.gz")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    asked = ("--separator", ";", "--decimal", ",", "--encoding", "utf-16")
    assert command("predict", "run", german, *asked, "--out", "german-predicted.csv").code == 0
    assert (tmp_path / "german-predicted.csv").read_text() == (tmp_path / "bare.csv").read_text()
    assert command("report", "run", "--out", "report.html").code == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "trestbps" in page
    assert ">x1<" not in page


@pytest.mark.parametrize("target", HOSPITALS)
def test_each_real_hospital_can_be_the_target(command: Command, target: str) -> None:
    folder = heart()
    tables, said = proposed(command, folder, target)
    assert "cleveland (303), hungarian (294), switzerland (123), va (200)" in said
    assert "column 'chol' is 0 in every row of switzerland that has a value (123)" in said
    assert tables["data"]["target_sites"] == [target]
    settings = ("--set", CLASSES, "--set", "run.rounds=1", "--set", "run.best_by=")
    assert command("run", "e.toml", *settings, "--out", "run").code == 0
    file = folder / f"processed.{target}.data"
    assert command("predict", "run", file, "--out", "predicted.csv").code == 0
    with Path("predicted.csv").open() as lines:
        assert len(list(csv.reader(lines))) == 1 + len(file.read_text().splitlines())


def test_what_a_german_table_needs_is_found_and_said(command: Command, tmp_path: Path) -> None:
    head = "Patient;Klinik;Alter;Raucher;CRP;Aufnahme;Bemerkung;Diagnose\r\n"
    lines = [
        f"P{n // 2};{('Köln', 'Bonn')[n // 2 % 2]};{30 + n % 41};{('Ja', 'Nein')[n % 3 % 2]};"
        f"{'<0,5' if n == 4 else '<LOD' if n == 9 else f'{1 + 0.3 * n:.1f}'.replace('.', ',')};"
        f"{1 + n % 28:02d}.01.2023;kam spät mit Beschwerde {n};{(' Krank', 'krank', 'gesund')[n % 3]}\r\n"
        for n in range(80)
    ]
    (tmp_path / "t.csv").write_bytes((head + "".join(lines)).encode("latin-1"))
    ended = command("init", "t.csv", "--target-site", "Köln")
    assert ended.code == 0, ended.err
    data = tomllib.loads((tmp_path / "t.toml").read_text(encoding="utf-8"))["data"]
    assert {key: data[key] for key in ("separator", "decimal", "encoding", "label", "site", "id", "drop", "dates")} == {
        "separator": ";", "decimal": ",", "encoding": "latin-1", "label": "Diagnose", "site": "Klinik",
        "id": "Patient", "drop": ["Bemerkung"], "dates": {"Aufnahme": "%d.%m.%Y"},
    }  # fmt: skip
    assert data["classes"] == {"Krank": "krank", "gesund": "gesund", "krank": "krank"}
    for words in (
        "how it is written: encoding latin-1, cells separated by ';', decimal commas",
        "column 'Patient' is an id of 40 in 80 rows",
        "column 'Bemerkung' is left out: it holds free text",
        "column 'Aufnahme' holds dates (%d.%m.%Y): read as days",
        "column 'CRP' has 2 cells such as '<0,5': 1 read as the limit itself, 1 without a number read as missing",
        "labels that differ only in capitals or spaces are one class: 'Krank'",
    ):
        assert words in ended.out
    assert command("check", "t.toml").code == 0


def test_words_among_numbers_and_labels_are_said_and_not_lost(command: Command, tmp_path: Path) -> None:
    lines = ["id,site,k,cost,smoker,label"]
    for n in range(60):
        label = "NA" if n % 3 == 2 else n % 2
        k = "haemolysed" if n == 7 else n * 0.25
        lines.append(f'{n},{"abc"[n % 3]},{k},"{1000 + 37 * n:,}",{("Yes", "yes ", "no")[n % 3]},{label}')
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    ended = command("init", "t.csv")
    assert ended.code == 0, ended.err
    data = tomllib.loads((tmp_path / "t.toml").read_text())["data"]
    assert (data["missing"], data["drop"]) == (["haemolysed", "NA"], ["cost"])
    assert "column 'k' holds numbers and 'haemolysed' (1 of 60 rows): read as missing" in ended.out
    assert "'NA' in column 'label' is read as no label" in ended.out
    assert "column 'cost' is left out: '1,000' may be a number of thousands or one with decimals" in ended.out
    assert "column 'smoker' holds words that differ only in capitals or spaces" in ended.out
    (tmp_path / "sum.csv").write_text("\n".join([*lines, "Total,,,99000,,"]) + "\n")
    refused = command("init", "sum.csv")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "the last row says 'Total'" in refused.err
