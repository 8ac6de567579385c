"""Reading and writing TOML, and changes from the command line."""

from __future__ import annotations

import datetime
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedmm import FedmmError
from fedmm.config.toml import read_toml, set_values, write_toml

# Reading --------------------------------------------------------------------------------------------------------------


def refused(path: Path) -> str:
    with pytest.raises(FedmmError) as refusal:
        read_toml(path)
    assert "\n" not in str(refusal.value)
    return str(refusal.value)


def test_a_file_is_read_as_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[run]\nlabel = "é"\nclient_weights = { a = 1 }', encoding="utf-8")
    assert read_toml(path) == {"run": {"label": "é", "client_weights": {"a": 1}}}


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "nowhere.toml") == f"there is no file {tmp_path / 'nowhere.toml'}"


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert refused(tmp_path) == f"{tmp_path} is a folder; give a TOML file"


@pytest.mark.parametrize(
    "text", ["[run", "rounds", "a = ", "a = 1\na = 2", '"a', "a = [1, 2", "a = 2021-13-40", "[a]\n[a]", "a = 01"]
)
def test_a_file_that_is_not_toml_is_named_with_the_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(text, encoding="utf-8")
    sentence = refused(path)
    assert sentence.startswith(f"{path} is not valid TOML: ")
    assert "(at " in sentence


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refused(path).startswith(f"{path} cannot be read: ")


@pytest.mark.parametrize("value", ["1" * 5000, "[" * 3000], ids=["digits", "brackets"])
def test_a_value_that_tomllib_cannot_take_is_refused(tmp_path: Path, value: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(f"a = {value}", encoding="utf-8")
    assert refused(path).startswith(f"{path} is not valid TOML: ")


# Writing --------------------------------------------------------------------------------------------------------------


def back(tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return tomllib.loads(write_toml(tables))


def test_tables_are_written_as_a_person_would_write_them() -> None:
    tables = {
        "run": {"label": 'a "b"', "rounds": 3, "progress": True},
        "algorithm": {"lr_min": {"features": 0.001, "*": 0.01}, "hidden": [8, 4], "none": [], "empty": {}},
    }
    assert write_toml(tables) == (
        "[run]\n"
        'label = "a \\"b\\""\n'
        "rounds = 3\n"
        "progress = true\n"
        "\n"
        "[algorithm]\n"
        'lr_min = { features = 0.001, "*" = 0.01 }\n'
        "hidden = [8, 4]\n"
        "none = []\n"
        "empty = {}\n"
    )
    assert back(tables) == tables


LETTERS = st.characters(exclude_categories=["Cs"])
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text(LETTERS, max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(LETTERS, max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(LETTERS), st.dictionaries(st.text(LETTERS), VALUES, max_size=4), max_size=4))
def test_all_tables_come_back(tables: dict[str, dict[str, Any]]) -> None:
    assert back(tables) == tables


@given(st.floats(allow_nan=False))
def test_a_float_comes_back_to_the_bit_and_as_a_float(value: float) -> None:
    came = back({"a": {"b": value}})["a"]["b"]
    assert isinstance(came, float)
    assert math.copysign(1.0, came) == math.copysign(1.0, value)
    assert came == value


def test_not_a_number_comes_back() -> None:
    assert math.isnan(back({"a": {"b": float("nan")}})["a"]["b"])


@pytest.mark.parametrize("text", ["", " ", "\n", "\t", "\r\n", "\\", '"', "'", "#", "\x00\x1f\x7f", "é", "[a]"])
def test_odd_text_comes_back(text: str) -> None:
    assert back({"a": {text: text}}) == {"a": {text: text}}


@pytest.mark.parametrize("table", [{"label": "\udcff"}, {"\ud800": 1}, {"names": ["a", {"\udfff": 1}]}], ids=repr)
def test_text_that_is_not_utf8_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(FedmmError, match=r"^text must be UTF-8 to be written to a file, not '"):
        write_toml({"a": table})


@pytest.mark.parametrize("text", ["\N{GRINNING FACE}", "\N{MATHEMATICAL BOLD SMALL MU}"])
def test_letters_beyond_the_first_65536_come_back(text: str) -> None:
    assert back({"a": {"label": text}}) == {"a": {"label": text}}


# Changing -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("50", 50),
        ("-1", -1),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("inf", math.inf),
        ('"50"', "50"),
        ("'a b'", "a b"),
        ("[8, 4]", [8, 4]),
        ("[]", []),
        ('{ features = 0.1, "*" = 1.0 }', {"features": 0.1, "*": 1.0}),
        ('{ name = "cosine_decay", final = 0.1 }', {"name": "cosine_decay", "final": 0.1}),
        (" 7 ", 7),
        ("dann_warmup", "dann_warmup"),
        ("two words", "two words"),
        ("a=b", "a=b"),
        ("", ""),
        ("[1, 2", "[1, 2"),
        ("True", "True"),
        ("C:\\runs", "C:\\runs"),
        ("1\nx = 2", "1\nx = 2"),
        ("1" * 5000, "1" * 5000),
    ],
)
def test_a_value_is_toml_or_else_text(text: str, value: Any) -> None:
    assert set_values({}, [f"run.key={text}"]) == {"run": {"key": value}}


def test_a_setting_replaces_or_adds_and_leaves_the_rest() -> None:
    tables = {"run": {"rounds": 3, "seed": 1}}
    changed = set_values(tables, ["run.rounds=5", "run.label=x", "data.name=moons"])
    assert changed == {"run": {"rounds": 5, "seed": 1, "label": "x"}, "data": {"name": "moons"}}


def test_the_tables_given_are_left_as_they_are() -> None:
    tables = {"run": {"client_weights": {"a": 1.0}}}
    set_values(tables, ["run.client_weights.a=2.0", "run.rounds=1"])
    assert tables == {"run": {"client_weights": {"a": 1.0}}}


def test_settings_reach_into_tables_and_make_them() -> None:
    tables = {"algorithm": {"lr_min": {"*": 0.1}}}
    changed = set_values(tables, ["algorithm.lr_min.features=0.01", "run.client_weights.source-1=2.0"])
    assert changed == {
        "algorithm": {"lr_min": {"*": 0.1, "features": 0.01}},
        "run": {"client_weights": {"source-1": 2.0}},
    }


def test_the_last_setting_of_a_key_counts() -> None:
    assert set_values({}, ["run.rounds=1", "run.rounds=2"]) == {"run": {"rounds": 2}}


def test_spaces_around_the_parts_do_not_matter() -> None:
    assert set_values({}, [" run . rounds = 5 "]) == {"run": {"rounds": 5}}
    assert set_values({}, [' run . " a.b " = 5 ']) == {"run": {" a.b ": 5}}


@pytest.mark.parametrize(
    "setting", ["", "run", "run.rounds", "rounds=5", "=5", ".=5", "run.=5", ".rounds=5", 'run."a=5', 'run.""=5']
)
def test_a_setting_of_another_form_is_refused(setting: str) -> None:
    with pytest.raises(FedmmError) as refusal:
        set_values({}, [setting])
    assert str(refusal.value) == (f"--set {setting!r} must have the form section.key=value, for example run.rounds=50")


@pytest.mark.parametrize(
    "setting", ["a..b=5", ".a.b=5", "a.b.=5", "a. .b=5", 'a."b"c=5', 'a.b"c"=5', 'a."b" c=5', 'a."b""c"=5', '"a"b.c=5']
)
def test_a_key_that_is_not_well_formed_is_refused(setting: str) -> None:
    with pytest.raises(FedmmError, match=r"must have the form section\.key=value"):
        set_values({}, [setting])


@pytest.mark.parametrize("setting", ["run.rounds.x=5", "run.rounds.x.y=5"])
def test_a_setting_inside_a_value_is_refused(setting: str) -> None:
    with pytest.raises(FedmmError, match="'rounds' is a value, not a section"):
        set_values({"run": {"rounds": 3}}, [setting])


@pytest.mark.parametrize("key", ["features.0", "*", "a=b", "two words", ".", "é"])
def test_a_quoted_key_may_hold_anything_but_quotes(key: str) -> None:
    changed = set_values({}, [f'algorithm.lr_min."{key}"=0.1', f'algorithm."{key}"="x=y"'])
    assert changed == {"algorithm": {"lr_min": {key: 0.1}, key: "x=y"}}


def test_without_settings_tables_stay_what_they_are() -> None:
    tables = {"run": {"label": datetime.date(2021, 10, 15)}}
    assert set_values(tables, []) == tables
