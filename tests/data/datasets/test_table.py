"""Tables as data."""

from __future__ import annotations

import datetime
import math
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import torch

from fedmm.core.errors import FedmmError
from fedmm.data.columns import Column
from fedmm.data.datasets.table import Table
from fedmm.data.domains import DomainPair
from fedmm.data.inputs import TableInput, build_input, input_table
from fedmm.data.labels import UNLABELLED

pytest.importorskip("pandas", reason="tables need fedmm[tables]")

HEAD = ["pid", "site", "age", "city", "sick"]
ROWS = [
    [f"p{n}", "abc"[n % 3], str(20 + n), ("Oslo", "Rome", "")[n % 3], ("no", "yes")[n % 2] if n % 3 < 2 else ""]
    for n in range(24)
]


def csv(rows: list[list[str]], head: list[str] | None = None) -> str:
    return "".join(",".join(row) + "\n" for row in [head or HEAD, *rows])


def load(folder: Path, text: str = csv(ROWS), **options: Any) -> DomainPair:
    (folder / "t.csv").write_text(text)
    return Table(**{"file": str(folder / "t.csv"), "label": "sick", "id": "pid", "site": "site", **options}).load()


def refusal(folder: Path, text: str = csv(ROWS), **options: Any) -> str:
    with pytest.raises(FedmmError) as refused:
        load(folder, text, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def columns(pair: DomainPair) -> dict[str, Column]:
    assert isinstance(pair.input, TableInput)
    return {column.name: column for column in pair.input.columns}


def test_rows_without_label_are_the_target(tmp_path: Path) -> None:
    pair = load(tmp_path)
    assert pair.class_names == ("no", "yes")
    assert len(pair.source.y) + len(pair.source_test.y) == 16
    assert pair.target.y.tolist() == [UNLABELLED] * 8
    assert pair.target_test is None
    assert pair.sites is not None
    assert pair.sites.names == ("a", "b", "c")
    assert set(pair.sites.source.tolist()) == {0, 1}
    assert set(pair.sites.target.tolist()) == {2}


def test_numbers_are_standardised_by_the_training_rows_alone(tmp_path: Path) -> None:
    pair = load(tmp_path)
    known = columns(pair)
    assert list(known) == ["age", "city"]
    train = torch.cat([pair.source.x, pair.target.x])[:, 0].double()
    assert float(train.mean()) == pytest.approx(0.0, abs=1e-6)
    assert float(train.std(correction=0)) == pytest.approx(1.0, rel=1e-6)
    restored = torch.cat([train, pair.source_test.x[:, 0].double()]) * known["age"].deviation + known["age"].mean
    assert sorted(restored.round().tolist()) == list(range(20, 44))


def test_words_become_a_number_each_and_one_for_all_others(tmp_path: Path) -> None:
    pair = load(tmp_path)
    assert columns(pair)["city"].levels == ("Oslo", "Rome")
    assert pair.target.x[:, 1:].tolist() == [[0, 0, 1]] * 8
    assert pair.source.x.shape[1] == 4


def test_missing_numbers_are_the_mean_and_say_so(tmp_path: Path) -> None:
    rows = [[*row[:2], "NA" if n == 5 else row[2], *row[3:]] for n, row in enumerate(ROWS)]
    pair = load(tmp_path, csv(rows))
    assert columns(pair)["age"].indicator
    (gap,) = pair.target.x[pair.target.x[:, 1] == 1].tolist()
    assert gap[:2] == [0.0, 1.0]


def test_sites_of_the_target_keep_their_labels_for_testing(tmp_path: Path) -> None:
    labelled = [[*row[:4], "yes" if n % 2 else "no"] for n, row in enumerate(ROWS)]
    pair = load(tmp_path, csv(labelled), target_sites=("c",))
    assert len(pair.target.y) == 8
    assert pair.target_test is not None
    assert torch.equal(pair.target_test.x, pair.target.x)
    held = load(tmp_path, csv(labelled), target_sites=("c",), target_held_out=0.25)
    assert held.target_test is not None
    assert (len(held.target.y), len(held.target_test.y)) == (6, 2)


def test_a_column_may_say_which_rows_are_the_target(tmp_path: Path) -> None:
    head = ["pid", "site", "age", "city", "sick", "part"]
    rows = [[*row[:4], "yes" if n % 4 < 2 else "no", "Target" if n % 2 else "source"] for n, row in enumerate(ROWS)]
    pair = load(tmp_path, csv(rows, head), domain="part")
    assert len(pair.target.y) == 12
    assert pair.sites is not None
    assert set(pair.sites.source.tolist()) == set(pair.sites.target.tolist()) == {0, 1, 2}


def test_another_table_may_be_tested_on(tmp_path: Path) -> None:
    (tmp_path / "test.csv").write_text("sick,city,age\nyes,Oslo,30\nno,Kyiv,\n")
    pair = load(tmp_path, target_test=str(tmp_path / "test.csv"))
    assert pair.target_test is not None
    assert pair.target_test.y.tolist() == [1, 0]
    age = columns(pair)["age"]
    first = [(30 - age.mean) / age.deviation, 1, 0, 0]
    assert pair.target_test.x[0].tolist() == pytest.approx(first, rel=1e-6)
    assert pair.target_test.x[1].tolist() == [0, 0, 0, 1]


def test_a_table_reads_the_same_again_as_an_input(tmp_path: Path) -> None:
    pair = load(tmp_path)
    assert pair.input is not None
    rows = pair.input.read(tmp_path / "t.csv")
    assert rows.names == tuple(row[0] for row in ROWS)
    assert rows.y is not None
    assert torch.equal(rows.x[rows.y == UNLABELLED], pair.target.x)


def test_parquet_holds_the_same_rows(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pair = load(tmp_path)
    pandas.read_csv(tmp_path / "t.csv").to_parquet(tmp_path / "t.parquet")
    again = load(tmp_path, file=str(tmp_path / "t.parquet"))
    assert torch.equal(again.source.x, pair.source.x)
    assert again.input == pair.input


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    head = [*HEAD, "none", "same", "word"]
    pair = load(tmp_path, csv([[*row, "", "7", "x"] for row in ROWS], head))
    assert list(columns(pair)) == ["age", "city"]


def test_kinds_that_are_not_guessed(tmp_path: Path) -> None:
    assert columns(load(tmp_path, categorical=("age",)))["age"].levels[:2] == ("20", "21")
    assert list(columns(load(tmp_path, drop=("age",)))) == ["city"]
    assert "column 'city' holds Oslo in row 1, which is not a number" in refusal(tmp_path, numeric=("city",))


def test_a_class_called_none_is_a_class(tmp_path: Path) -> None:
    rows = [[*row[:4], row[4].replace("no", "None")] for row in ROWS]
    assert load(tmp_path, csv(rows)).class_names == ("None", "yes")


def test_whole_numbers_as_labels_are_written_as_such(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame(ROWS, columns=HEAD)
    frame["sick"] = [math.nan if row[4] == "" else 10.0 if row[4] == "no" else 9.0 for row in ROWS]
    frame.to_parquet(tmp_path / "t.parquet")
    assert load(tmp_path, file=str(tmp_path / "t.parquet"), drop=("age",)).class_names == ("9", "10")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": ""}, "data.label must name the column of classes"),
        ({"file": ""}, "data.file must name"),
        ({"file": "gone.csv"}, "gone.csv is not a file"),
        ({"label": "sik"}, "no column 'sik', which data.label names; did you mean 'sick'? (columns: pid, site, age"),
        ({"drop": ("nothing",)}, "no column 'nothing', which data.drop names"),
        ({"site": "sick"}, "named as two of label, site, domain and id"),
        ({"site": "city"}, "names no site in row 3 of column 'city'"),
        ({"target_sites": ("d",)}, "no row of the site 'd', which data.target_sites names (sites: a, b, c)"),
        ({"target_sites": ("a",)}, "no label in row 3, which belongs to the source"),
        ({"domain": "city"}, "says 'oslo' in column 'city', row 1; it must say 'source' or 'target'"),
        ({"label": "city"}, "no column to learn from"),
        ({"id": ""}, "column 'pid' holds 22 different words, such as p0, more than most_levels = 20"),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    extra = {"drop": ("age", "sick")} if options == {"label": "city"} else {}
    assert words in refusal(tmp_path, **{"most_levels": 20, **options, **extra})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda n, row: [*row[:4], "yes" if n % 3 < 2 else ""], "has only one class, 'yes'"),
        (lambda n, row: [*row[:4], "yes"], "no row of the target: no row lacks a label"),
        (lambda n, row: [*row[:4], ""], "no row of the source"),
        (lambda n, row: [*row[:4], f"{n}.5" if n else ""], "23 different labels in 23 rows"),
        (lambda n, row: [*row[:2], "inf", *row[3:]], "'age' is infinite in row 1"),
    ],
)
def test_tables_that_cannot_be_used_are_refused(tmp_path: Path, change: Any, words: str) -> None:
    assert words in refusal(tmp_path, csv([change(n, row) for n, row in enumerate(ROWS)]))


def test_classes_of_the_target_that_the_source_lacks_are_refused(tmp_path: Path) -> None:
    rows = [[*row[:4], ("no", "yes", "perhaps")[n % 3]] for n, row in enumerate(ROWS)]
    assert "target rows of the class 'perhaps'" in refusal(tmp_path, csv(rows), target_sites=("c",))


@pytest.mark.parametrize(
    "options",
    [
        {"separator": ""},
        {"most_levels": 1},
        {"target_sites": ("a",), "domain": "b", "site": "c"},
        {"target_sites": ("a",)},
        {"numeric": ("a",), "categorical": ("a",)},
    ],
)
def test_options_that_exclude_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FedmmError):
        Table(**options)


def test_rows_to_choose_by_are_apart_from_those_to_train_and_to_test_on(tmp_path: Path) -> None:
    rows = [[f"p{n}", "abc"[n % 3], str(n), "Oslo", ("no", "yes")[n // 3 % 2]] for n in range(60)]
    options = {"labelled_only": True, "scaling": "none", "held_out": 0.2, "validation_share": 0.3}
    pair = load(tmp_path, csv(rows), **options)
    assert pair.source_validation is not None
    assert pair.sites is not None
    parts = [pair.source, pair.source_validation, pair.source_test]
    holders = [pair.sites.source, pair.sites.source_validation, pair.sites.source_test]
    numbers = [part.x[:, 0].long() for part in parts]
    assert [len(part.y) for part in parts] == [30, 18, 12]
    assert torch.cat(numbers).sort().values.tolist() == list(range(60))
    for part, number, holder in zip(parts, numbers, holders, strict=True):
        assert torch.equal(part.y, number // 3 % 2)
        assert holder is not None
        assert torch.equal(holder, number % 3)


def test_a_site_with_one_row_keeps_it(tmp_path: Path) -> None:
    rows = [[row[0], f"only {n}", *row[2:]] for n, row in enumerate(ROWS)]
    message = refusal(tmp_path, csv(rows))
    assert "no row of the source can be held out" in message
    for number in (3, 6, 9, 12):
        rows[number][1] = rows[0][1]
    pair = load(tmp_path, csv(rows), held_out=0.9)
    assert pair.sites is not None
    assert len(set(pair.sites.source.tolist())) == 12
    assert len(pair.source_test.y) == 4


FRAMES: dict[str, tuple[Any, ...]] = {
    "whole numbers with gaps": ("array", [1, None, 3], "Int64"),
    "truth values with gaps": ("array", [True, None, False], "boolean"),
    "categories": ("Categorical", ["1 a", "2", None]),
    "decimals": ("array", [Decimal("0.5"), Decimal(1), None], "object"),
}


@pytest.mark.parametrize("name", FRAMES)
def test_columns_of_other_kinds(tmp_path: Path, name: str) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    make, values, *dtype = FRAMES[name]
    frame = pandas.DataFrame(ROWS, columns=HEAD).drop(columns=["age", "city"])
    frame["it"] = getattr(pandas, make)(values * 8, *dtype)
    frame.to_parquet(tmp_path / "t.parquet")
    it = columns(load(tmp_path, file=str(tmp_path / "t.parquet")))["it"]
    assert it.levels == (("2", "1 a") if name == "categories" else ())
    assert it.indicator == (name != "categories")


@pytest.mark.parametrize("value", [datetime.date(2021, 10, 15), datetime.datetime(2021, 10, 15), [1, 2], {"a": 1}])
def test_columns_of_dates_and_lists_are_refused(tmp_path: Path, value: object) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.DataFrame(ROWS, columns=HEAD).assign(it=[value] * 24).to_parquet(tmp_path / "t.parquet")
    assert "column 'it' holds dates, times or lists" in refusal(tmp_path, file=str(tmp_path / "t.parquet"))


def test_a_column_without_a_name_is_left_out(tmp_path: Path) -> None:
    rows = [[str(n), *row] for n, row in enumerate(ROWS)]
    assert list(columns(load(tmp_path, csv(rows, ["", *HEAD])))) == ["age", "city"]


def test_numbers_too_large_to_be_standardised_are_refused(tmp_path: Path) -> None:
    rows = [[*row[:2], f"{-1 if n % 2 else 1}e308", *row[3:]] for n, row in enumerate(ROWS)]
    assert "too large to be standardised" in refusal(tmp_path, csv(rows))
    pair = load(tmp_path)
    (tmp_path / "new.csv").write_text("age,city\n1e300,Oslo\n")
    assert pair.input is not None
    with pytest.raises(FedmmError, match="in row 1 that is far too large"):
        pair.input.read(tmp_path / "new.csv")


def test_labels_that_another_program_wrote_with_a_point_are_whole_numbers(tmp_path: Path) -> None:
    rows = [[*row[:4], row[4].replace("no", "0.0").replace("yes", "1.0")] for row in ROWS]
    assert load(tmp_path, csv(rows)).class_names == ("0", "1")


# Several files, ids, dates, scaling -----------------------------------------------------------------------------------


def test_a_file_for_each_site(tmp_path: Path) -> None:
    files = {}
    for site in "abc":
        path = tmp_path / f"{site}.data"
        path.write_text("".join(f"{20 + n},{n % 5 * 0.5},{n % 3 if site != 'c' else ''}\n" for n in range(20)))
        files[site] = str(path)
    named: dict[str, Any] = {"header": False, "columns": ("age", "dose", "num")}
    pair = Table(files=files, label="num", **named, classes={"0": "well", "1": "ill", "2": "ill"}).load()
    assert pair.class_names == ("well", "ill")
    assert pair.sites is not None
    assert pair.sites.names == ("a", "b", "c")
    assert set(pair.sites.target.tolist()) == {2}
    assert pair.input is not None
    (tmp_path / "new.data").write_text("30,1.5\n")
    assert pair.input.read(tmp_path / "new.data").x.shape == (1, 2)
    (tmp_path / "labelled.data").write_text("30,1.5,2\n31,1,0\n")
    y = pair.input.read(tmp_path / "labelled.data").y
    assert y is not None
    assert y.tolist() == [1, 0]
    with pytest.raises(FedmmError, match=r"has the label '2' in column 'num', which data.classes does not name"):
        Table(files=files, label="num", **named, classes={"0": "well", "1": "ill"}).load()


def test_rows_of_one_id_are_not_torn_apart(tmp_path: Path) -> None:
    rows = [
        [f"p{n // 6}", "abc"[n % 3], str(20 + n), "x", ("no", "yes")[n % 2] if n % 3 < 2 else ""] for n in range(90)
    ]
    pair = load(tmp_path, csv(rows), held_out=0.3)
    age = columns(pair)["age"]

    def patients(x: torch.Tensor) -> set[int]:
        return {
            int((value - 20) // 6) * 3 + int(value - 20) % 3 for value in (x[:, 0] * age.deviation + age.mean).round()
        }

    assert len(pair.source_test.x) > 0
    assert not patients(pair.source.x) & patients(pair.source_test.x)


def test_dates_become_days(tmp_path: Path) -> None:
    rows = [[*row[:2], f"{1 + n:02d}.02.2023", *row[3:]] for n, row in enumerate(ROWS)]
    pair = load(tmp_path, csv(rows), dates={"age": "%d.%m.%Y"})
    assert pair.input is not None
    (tmp_path / "new.csv").write_text("age,city\n01.02.2023,Oslo\n03.02.2023,Oslo\n")
    x = pair.input.read(tmp_path / "new.csv").x[:, 0] * columns(pair)["age"].deviation
    assert float(x[1] - x[0]) == pytest.approx(2.0, rel=1e-5)
    (tmp_path / "new.csv").write_text("age,city\n2023-02-01,Oslo\n")
    with pytest.raises(FedmmError, match="column 'age' holds 2023-02-01 in row 1, which is not a date of the form"):
        pair.input.read(tmp_path / "new.csv")


def test_free_text_is_not_made_categories(tmp_path: Path) -> None:
    rows = [[*row[:3], f"patient {n} came late", row[4]] for n, row in enumerate(ROWS)]
    assert "column 'city' holds free text" in refusal(tmp_path, csv(rows))
    assert len(columns(load(tmp_path, csv(rows), categorical=("city",)))["city"].levels) > 20


def test_robust_scaling_is_not_moved_by_one_number(tmp_path: Path) -> None:
    rows = [[*row[:2], "1e6" if n == 5 else row[2], *row[3:]] for n, row in enumerate(ROWS)]
    age = columns(load(tmp_path, csv(rows), scaling="robust"))["age"]
    assert 25 < age.mean < 40
    assert 5 < age.deviation < 15
    none = columns(load(tmp_path, csv(rows), scaling="none"))["age"]
    assert (none.mean, none.deviation) == (0.0, 1.0)


def test_each_site_may_be_scaled_by_its_own_rows(tmp_path: Path) -> None:
    rows = [[*row[:2], str(n + 1000 * (n % 3)), *row[3:]] for n, row in enumerate(ROWS)]
    pair = load(tmp_path, csv(rows), scaling="per_site")
    assert pair.sites is not None
    for site in range(3):
        held = torch.cat([pair.source.x[pair.sites.source == site], pair.target.x[pair.sites.target == site]])[:, 0]
        assert float(held.double().mean()) == pytest.approx(0.0, abs=1e-5)
        assert float(held.double().std(correction=0)) == pytest.approx(1.0, rel=1e-4)
    kind = pair.input
    assert isinstance(kind, TableInput)
    (tmp_path / "new.csv").write_text("age,city\n2011,Oslo\n")
    with pytest.raises(FedmmError, match="use --site with one of: a, b, c"):
        kind.read(tmp_path / "new.csv")
    at_c = replace(kind, at="c").read(tmp_path / "new.csv").x
    (tmp_path / "new.csv").write_text("age,city,site\n2011,Oslo,c\n")
    assert torch.equal(kind.read(tmp_path / "new.csv").x, at_c)
    with pytest.raises(FedmmError, match="names the site of each row; leave out --site"):
        replace(kind, at="a").read(tmp_path / "new.csv")
    assert build_input(input_table(kind)) == kind
    (tmp_path / "new.csv").write_text("age,city,site\n2011,Oslo,d\n")
    with pytest.raises(FedmmError, match="1 rows of the site 'd', which was not in training"):
        kind.read(tmp_path / "new.csv")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "a.csv", "files": {"a": "a.csv"}}, "file and files exclude each other"),
        ({"files": {"a": "a.csv"}, "site": "s"}, "site is not needed with files"),
        ({"columns": ("a",)}, "set header = false"),
        ({"encoding": "klingon"}, "encoding must be a text encoding such as utf-8"),
        ({"encoding": "base64"}, "encoding must be a text encoding such as utf-8"),
        ({"decimal": ";"}, "decimal must be one of"),
        ({"scaling": "per_site"}, "scaling = 'per_site' needs files, or site"),
    ],
)
def test_formats_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError) as refused:
        Table(**options)
    assert words in str(refused.value)
