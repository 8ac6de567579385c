"""Dataclasses from and to tables of plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import pytest

from fedmm import FedmmError
from fedmm.config.dataclass_io import as_table, build, choose
from fedmm.core.schedules import Constant, DannWarmup, Schedule
from fedmm.core.validation import positive


@dataclass(frozen=True)
class Tea:
    """An option of every kind."""

    name: ClassVar[str] = "tea"

    leaves: int
    grams: float = 2.5
    milk: bool = False
    origin: str = "Assam"
    cup: Literal["small", "large"] = "small"
    minutes: tuple[int, ...] = (3,)
    range: tuple[float, float] = (80.0, 95.0)
    guests: Sequence[str] = ()
    sugar: Mapping[str, float] = field(default_factory=dict)
    pots: int | Sequence[int] | Mapping[str, int] = 1
    warmth: Schedule = field(default=Constant(), kw_only=True)

    def __post_init__(self) -> None:
        positive("grams", self.grams)


@dataclass(frozen=True)
class Water:
    name: ClassVar[str] = "water"


DRINKS: dict[str, type[Any]] = {"tea": Tea, "water": Water}
FULL = {
    "leaves": 12,
    "grams": 3.0,
    "milk": True,
    "origin": "Ceylon",
    "cup": "large",
    "minutes": [3, 5],
    "range": [70.0, 90.0],
    "guests": ["Ada", "Emmy"],
    "sugar": {"Ada": 1.5},
    "pots": {"Ada": 2},
    "warmth": {"name": "dann_warmup", "gamma": 5.0},
}


def refusal(table: Mapping[str, Any]) -> str:
    with pytest.raises(FedmmError) as refused:
        build(Tea, table, "drink")
    return str(refused.value)


def test_a_table_becomes_the_dataclass_with_its_defaults() -> None:
    assert build(Tea, {"leaves": 3}, "drink") == Tea(3)


def test_every_kind_of_option_is_taken() -> None:
    assert build(Tea, FULL, "drink") == Tea(
        12, 3.0, True, "Ceylon", "large", (3, 5), (70.0, 90.0), ("Ada", "Emmy"), {"Ada": 1.5}, {"Ada": 2},
        warmth=DannWarmup(5.0),
    )  # fmt: skip


def test_the_table_of_a_dataclass_makes_it_again() -> None:
    tea = build(Tea, FULL, "drink")
    assert as_table(tea) == {"name": "tea", **FULL}
    assert choose(DRINKS, as_table(tea), "drink") == tea


def test_a_table_is_a_copy() -> None:
    tea = build(Tea, FULL, "drink")
    as_table(tea)["sugar"]["Ada"] = 9.0
    assert tea.sugar == {"Ada": 1.5}


def test_name_selects_the_row() -> None:
    assert choose(DRINKS, {"name": "water"}, "drink") == Water()


def test_a_schedule_is_given_by_its_name_alone_or_with_options() -> None:
    assert build(Tea, {"leaves": 1, "warmth": "dann_warmup"}, "drink").warmth == DannWarmup()


def test_numbers_become_floats_where_floats_are_asked_for() -> None:
    grams = build(Tea, {"leaves": 1, "grams": 2}, "drink").grams
    assert grams == 2.0
    assert isinstance(grams, float)


@pytest.mark.parametrize(
    ("key", "wrong", "words"),
    [
        ("leaves", 1.0, "a whole number, not 1.0"),
        ("leaves", True, "a whole number, not True"),
        ("grams", "1", "a number, not '1'"),
        ("milk", 1, "true or false, not 1"),
        ("origin", 1, "text, not 1"),
        ("cup", "huge", "one of 'small', 'large', not 'huge'"),
        ("cup", ["small"], "one of 'small', 'large', not ['small']"),
        ("minutes", 3, "a list of whole numbers, not 3"),
        ("minutes", [3, 1.5], "a list of whole numbers, not [3, 1.5]"),
        ("range", [80.0], "a list of 2 numbers, not [80.0]"),
        ("range", [80.0, "x"], "a list of 2 numbers, not [80.0, 'x']"),
        ("guests", "Ada", "a list of words, not 'Ada'"),
        ("sugar", {"Ada": "much"}, "a table of numbers, not {'Ada': 'much'}"),
        ("pots", "x", "a whole number or a list of whole numbers or a table of whole numbers, not 'x'"),
    ],
)
def test_a_wrong_type_is_refused_by_its_key_in_words(key: str, wrong: Any, words: str) -> None:
    assert refusal({"leaves": 1, key: wrong}) == f"drink.{key} must be {words}"


@pytest.mark.parametrize(
    ("key", "huge"),
    [
        ("leaves", 2**63), ("leaves", -(2**63) - 1), ("grams", 10**400), ("minutes", [3, 10**5000]),
        ("sugar", {"Ada": 10**5000}), ("pots", {"Ada": 2**63}), ("origin", 10**5000),
        ("warmth", {"name": "dann_warmup", "gamma": 10**5000}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_whole_number_of_more_than_64_bits_is_refused_by_its_key(key: str, huge: Any) -> None:
    assert refusal({"leaves": 1, key: huge}) == f"drink.{key} must be within 64 bits, as TOML's whole numbers are"


@pytest.mark.parametrize(
    ("key", "text"), [("origin", "a\udcff"), ("guests", ["Ada", "\udcff"]), ("sugar", {"\udcff": 1.0})]
)
def test_text_that_no_file_can_hold_is_refused_by_its_key(key: str, text: Any) -> None:
    sentence = refusal({"leaves": 1, key: text})
    assert sentence.startswith(f"drink.{key} must be text in UTF-8, not '")
    sentence.encode()  # the sentence itself can be shown


def test_a_schedule_of_the_wrong_type_is_refused_by_its_key() -> None:
    words = "drink.warmth must be a schedule's name, or a table with its name and options"
    assert refusal({"leaves": 1, "warmth": 5}) == words
    assert refusal({"leaves": 1, "warmth": ["constant"]}) == words


def test_what_the_dataclass_refuses_is_refused_by_its_key() -> None:
    assert refusal({"leaves": 1, "grams": -1}) == "drink.grams must be above 0, not -1.0"


def test_a_required_option_is_missed() -> None:
    assert refusal({"grams": 1.0}) == "drink.leaves is missing"


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    assert refusal({"leaves": 1, "gram": 1.0}).startswith("unknown key in [drink] 'gram'; did you mean 'grams'?")
    assert "did you mean" not in refusal({"leaves": 1, "xyzzy": 1.0})


def test_the_class_variable_name_is_no_option() -> None:
    assert refusal({"leaves": 1, "name": "tea"}).startswith("unknown key in [drink] 'name'")


@pytest.mark.parametrize("table", [{}, {"name": 5}, {"name": None}])
def test_a_missing_name_is_asked_for(table: dict[str, Any]) -> None:
    with pytest.raises(FedmmError, match=r"^drink\.name must say which one to use: tea, water$"):
        choose(DRINKS, table, "drink")


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(FedmmError, match=r"^unknown drink\.name 'tee'; did you mean 'tea'\? \(known: tea, water\)$"):
        choose(DRINKS, {"name": "tee"}, "drink")
