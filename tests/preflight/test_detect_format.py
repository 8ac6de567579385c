"""How a table is written, found out from its first lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmm.core.errors import FedmmError
from fedmm.data.readers.table_formats import TableFormat
from fedmm.data.readers.tables import read_table
from fedmm.preflight.detect_format import date_formats, detect_format
from fedmm.preflight.table_checks import odd_header

pandas = pytest.importorskip("pandas", reason="tables need fedmm[tables]")
GERMAN = "Größe;Name (kurz, lang)\r\n1,75;ä\r\n1,80;b\r\n"


def test_dates_are_known_by_all_of_them() -> None:
    assert date_formats(["2024-01-31", "", "2023-12-01"]) == ["%Y-%m-%d"]
    assert date_formats(["31.12.2023"]) == ["%d.%m.%Y"]
    assert date_formats(["01/02/2023", "13/02/2023"]) == ["%d/%m/%Y"]
    assert date_formats(["01/02/2023"]) == ["%d/%m/%Y", "%m/%d/%Y"]
    assert date_formats(["2024-01-31", "later"]) == date_formats([]) == []


@pytest.mark.parametrize(
    ("encoding", "found"), [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("latin-1", "latin-1"), ("utf-16", "utf-16")]
)
def test_a_german_file_is_detected_and_read_in_any_encoding(tmp_path: Path, encoding: str, found: str) -> None:
    (tmp_path / "t.csv").write_bytes(GERMAN.encode(encoding))
    format = detect_format([tmp_path / "t.csv"])
    assert format == TableFormat(separator=";", decimal=",", encoding=found)
    frame = read_table(tmp_path / "t.csv", format)
    assert list(frame.columns) == ["Größe", "Name (kurz, lang)"]
    assert frame["Größe"].tolist() == [1.75, 1.8]


@pytest.mark.parametrize(("encoding", "found"), [("utf-8", "utf-8"), ("latin-1", "latin-1")])
def test_a_first_letter_that_tells_the_encoding_may_come_late(tmp_path: Path, encoding: str, found: str) -> None:
    lines = ["age,town", *(f"{number},Oslo" for number in range(120_000)), "1,Zürich"]
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode(encoding))
    assert detect_format([tmp_path / "t.csv"]).encoding == found


def test_a_comma_after_a_zero_cuts_off_no_thousands(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n0,006;x\n-0,125;y\n12,500;x\n")
    assert detect_format([tmp_path / "t.csv"]).decimal == ","
    (tmp_path / "t.csv").write_text("a;b\n1,006;x\n12,500;x\n")
    assert detect_format([tmp_path / "t.csv"]).decimal == "."


def test_a_column_without_heading_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,,town,\n1,2,Oslo,\n3,4,Rome,\n")
    said = list(odd_header(tmp_path / "t.csv", TableFormat()))
    assert said == [f"column 2 of {tmp_path / 't.csv'} has no heading, so it is left out; give it one to learn from it"]


def test_a_first_line_of_numbers_is_no_header(tmp_path: Path) -> None:
    (tmp_path / "t.data").write_text("63.0,1,?,0\n67.0,0,3,2\n")
    format = detect_format([tmp_path / "t.data"])
    assert not format.header
    assert list(read_table(tmp_path / "t.data", format).columns) == ["c1", "c2", "c3", "c4"]
    named = TableFormat(header=False, names=("age", "sex", "ca", "num"))
    assert read_table(tmp_path / "t.data", named)["ca"].isna().tolist() == [True, False]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("39, State-gov, 7, <=50K\n50, Private, 8, >50K\n38, State-gov, 9, <=50K\n", False),
        ("A11 6 x\nA12 7 y\nA11 8 z\n", False),
        ("site,2019,2020\nA,1,2\nB,3,4\n", True),
        ("site,age\nA,1\nsite,2\n", True),
    ],
)
def test_a_first_line_of_numbers_and_of_words_that_come_again_is_no_header(
    tmp_path: Path, text: str, header: bool
) -> None:
    (tmp_path / "t.data").write_text(text)
    assert detect_format([tmp_path / "t.data"]).header == header


def test_files_that_are_not_written_alike_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,k\n1,2\n")
    (tmp_path / "b.csv").write_text("age;k\n1;2\n")
    with pytest.raises(FedmmError, match="not written alike"):
        detect_format([tmp_path / "a.csv", tmp_path / "b.csv"])
