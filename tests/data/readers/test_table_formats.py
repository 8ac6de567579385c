"""Cells and files as people write them."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import pytest

from fedmm.core.errors import FedmmError
from fedmm.data.readers.table_formats import TableFormat, read_cell
from fedmm.data.readers.tables import is_numeric, numbers, read_table, read_tables

pandas = pytest.importorskip("pandas", reason="tables need fedmm[tables]")


@pytest.mark.parametrize(
    ("text", "decimal", "value", "kind"),
    [
        ("1.5", ".", 1.5, "number"),
        ("1,5", ",", 1.5, "number"),
        ("1.234,5", ",", 1234.5, "number"),
        ("1.234", ",", 1234.0, "number"),
        ("1,234.5", ".", 1234.5, "number"),
        ("1,234,567", ".", 1234567.0, "number"),
        ("1 234,5", ",", 1234.5, "number"),
        ("1'234.5", ".", 1234.5, "number"),
        ("\N{MINUS SIGN}3", ".", -3.0, "number"),
        ("<0.5", ".", 0.5, "censored"),
        ("< 0,5", ",", 0.5, "censored"),
        (">=100", ".", 100.0, "censored"),
        ("<LOD", ".", math.nan, "censored"),
        ("12 %", ".", 12.0, "percent"),
        ("?", ".", math.nan, "missing"),
        ("1,234", ".", math.nan, "word"),  # thousands or decimals: nobody knows
        ("1,5", ".", math.nan, "word"),
        ("1.5", ",", math.nan, "word"),
        ("inf", ".", math.nan, "word"),
        ("40-60", ".", math.nan, "word"),
        ("1_11", ".", math.nan, "word"),  # a code, as 11_1 is another
        ("2023_1", ".", math.nan, "word"),
    ],
)
def test_a_cell_is_read_as_it_is_meant_or_not_at_all(text: str, decimal: str, value: float, kind: str) -> None:
    cell = read_cell(text, decimal)
    assert cell.kind == kind
    assert cell.value == value or (math.isnan(value) and math.isnan(cell.value))


def test_limits_are_numbers_among_numbers_and_words_among_limits() -> None:
    assert is_numeric(pandas.Series(["1", "2.5", "<0.5", "<LOD", "3"]))
    assert not is_numeric(pandas.Series(["<40", ">=40", "<40", "41"]))


def test_a_number_with_the_other_decimal_mark_is_refused_with_what_to_say() -> None:
    with pytest.raises(FedmmError, match=r"holds 1,5 in row 1, which is not a number with '.' .*data.decimal = ','"):
        numbers(pandas.Series(["1,5"]), "t.csv: column 'k'")


@pytest.mark.parametrize(("bad", "told"), [(math.inf, "is infinite in row 6"), ("six", "holds six in row 6")])
def test_a_bad_cell_is_named_by_its_row_in_the_file_though_rows_before_it_are_left_out(bad: object, told: str) -> None:
    column = pandas.Series([1.0, 2.0, 3.0, 4.0, 5.0, bad])
    with pytest.raises(FedmmError, match=told):
        numbers(column.iloc[[1, 3, 5]], "t.csv: column 'k'")


GERMAN = "Größe;Name (kurz, lang)\r\n1,75;ä\r\n1,80;b\r\n"


def test_a_file_in_another_encoding_is_refused_with_what_to_say(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(GERMAN.encode("latin-1"))
    with pytest.raises(FedmmError, match=r"not written in utf-8; set data.encoding = 'latin-1'"):
        read_table(tmp_path / "t.csv", TableFormat(separator=";"))


def test_a_file_without_header_may_have_one_and_may_lack_its_label(tmp_path: Path) -> None:
    format = TableFormat(header=False, names=("age", "sex", "num"))
    (tmp_path / "headed.csv").write_text("sex,age\n1,63\n")
    assert read_table(tmp_path / "headed.csv", format)["age"].tolist() == [63]
    (tmp_path / "new.csv").write_text("63,1\n67,0\n")
    assert read_table(tmp_path / "new.csv", format, may_lack="num")["sex"].tolist() == [1, 0]
    with pytest.raises(FedmmError, match="has 2 cells, but 3 columns are named"):
        read_table(tmp_path / "new.csv", format)


def test_what_stands_for_nothing_is_nothing(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b,c\n-9,0,x\n1,0,none\n0,5,-9\n")
    frame = read_table(tmp_path / "t.csv", TableFormat(missing=("-9", "none"), zero_missing=("b",)))
    assert frame.isna().to_numpy().tolist() == [[True, True, False], [False, True, True], [False, False, True]]


def test_cells_beyond_the_columns_are_refused_unless_they_are_empty(tmp_path: Path) -> None:
    for name, opening in (("t.csv", open), ("t.csv.gz", gzip.open)):
        with opening(tmp_path / name, "wt") as file:
            file.write("a,b\n1,5,2\n3,4\n")
        with pytest.raises(FedmmError, match="has 3 cells in line 2, but 2 columns"):
            read_table(tmp_path / name)
    (tmp_path / "u.csv").write_text("a,b\n1,5,,\n3,4,,\n")
    assert read_table(tmp_path / "u.csv")["b"].tolist() == [5, 4]


def test_tables_of_sites_are_joined_by_their_columns(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,ca,label\n1,,x\n2,,y\n")
    (tmp_path / "b.csv").write_text("label,age,extra\ny,3.5,q\n")
    joined = read_tables({"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"})
    assert joined.sites == ["a", "a", "b"]
    assert joined.lacking == {"a": ("extra",), "b": ("ca",)}
    assert joined.frame["age"].tolist() == [1, 2, 3.5]
    assert joined.frame["age"].dtype.kind == "f"


def test_a_workbook_is_read_by_its_sheet(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl", reason="Excel files need fedmm[excel]")
    frame = pandas.DataFrame({"age": [1.5, None], "label": ["a", "b"]})
    frame.to_excel(tmp_path / "one.xlsx", index=False)
    assert read_table(tmp_path / "one.xlsx", texts=["label"])["age"].isna().tolist() == [False, True]
    with pandas.ExcelWriter(tmp_path / "two.xlsx") as book:
        frame.to_excel(book, sheet_name="first", index=False)
        frame.assign(age=7).to_excel(book, sheet_name="second", index=False)
    with pytest.raises(FedmmError, match=r"several sheets; set data.sheet to one of: first, second"):
        read_table(tmp_path / "two.xlsx")
    assert read_table(tmp_path / "two.xlsx", TableFormat(sheet="second"))["age"].tolist() == [7, 7]
