"""Columns that sites agree on by sums: what one process finds in all rows, and what no table can be described by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedmm import FedmmError
from fedmm.data.columns import BINS, AgreedColumns
from fedmm.sites.column_sums import Merged, describe, merge_descriptions, read_description

pandas = pytest.importorskip("pandas", reason="tables need fedmm[tables]")

from fedmm.data.columns import learn_columns, scales_of  # noqa: E402

HALF_ULP = 2.0**-53


def agreed(**more: Any) -> AgreedColumns:
    return AgreedColumns(**{"names": ("x",), "categories": {}, "dates": {}, "ranges": {}, **more})


def merged(parts: list[Any], columns: AgreedColumns, min_rows: int = 1) -> Merged:
    told = {}
    for place, part in enumerate(parts):
        values = np.asarray(part, dtype=np.float64)
        found = describe(columns, {"x": values}, {}, len(values), min_rows)
        told[f"site-{place:02d}"] = read_description(columns, found)
    return merge_descriptions(columns, told)


def of_all(parts: list[Any], scaling: Any = "standard") -> Any:
    frame = pandas.DataFrame({"x": np.concatenate([np.asarray(part, dtype=np.float64) for part in parts])})
    return learn_columns(frame, scaling=scaling, most_levels=10, path="all")


def rounding(parts: list[Any]) -> tuple[float, float]:
    """By how much mean and deviation may differ between two orders of summation.

    A sum of n numbers, in any order, is off by at most g = n u / (1 - n u) of the sum of their absolute values (u is
    2^-53), so that a mean is off by d = (g + 2 u) mean|x|. Squared deviations from such a mean add up to Q + n d^2,
    but for g of it; those of sites bring 2 |m_i - m| d_i more. The deviation is off by what Q is, over 2 sqrt(n Q).
    """
    own = [np.asarray(part, dtype=np.float64) for part in parts]
    x = np.concatenate(own)
    n, mean = len(x), x.mean()
    g = (n + 4) * HALF_ULP / (1 - (n + 4) * HALF_ULP)
    d = (g + 2 * HALF_ULP) * np.abs(x).mean()
    total = np.square(x - mean).sum()
    between = sum(len(part) * (2 * abs(part.mean() - mean) * 2 * worst + 4 * worst**2)
                  for part in own if (worst := d + (g + 2 * HALF_ULP) * np.abs(part).mean()) >= 0)  # fmt: skip
    off = 2 * (g * total + n * d**2) + between
    return 2 * d, off / np.sqrt(n * total) if total else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_mean_and_deviation_are_those_of_all_rows_but_for_the_rounding_of_sums(seed: int) -> None:
    random = np.random.default_rng(seed)
    parts = [random.normal(100 * place, 10.0**place, 40 + 100 * place) for place in range(3)]
    (found,), (expected,) = merged(parts, agreed()).columns, of_all(parts)
    of_mean, of_deviation = rounding(parts)
    assert abs(found.mean - expected.mean) <= of_mean < 1e-10
    assert abs(found.deviation - expected.deviation) <= of_deviation < 1e-9


def test_whole_numbers_have_the_same_mean_to_the_bit_and_one_site_has_all_bits() -> None:
    random = np.random.default_rng(0)
    parts = [random.integers(-50, 900, rows) for rows in (37, 200, 11)]
    assert merged(parts, agreed()).columns[0].mean == of_all(parts)[0].mean
    alone = [random.normal(size=77)]
    assert merged(alone, agreed()).columns == of_all(alone)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.integers(-3, 3)), min_size=1, max_size=8), min_size=1, max_size=4))
def test_constant_empty_and_missing_are_found_as_in_one_process(parts: list[list[int | None]]) -> None:
    rows = [[np.nan if value is None else value for value in part] for part in parts]
    try:
        expected = of_all(rows)
    except FedmmError:
        with pytest.raises(FedmmError, match="no column is left to learn from"):
            merged(rows, agreed())
        return
    (column,) = merged(rows, agreed()).columns
    assert (column.mean, column.indicator) == (expected[0].mean, expected[0].indicator)
    known = [own for part in rows if (own := [value for value in part if not np.isnan(value)])]
    assert abs(column.deviation - expected[0].deviation) <= rounding(known)[1]


def test_each_sites_own_scale_has_the_bits_of_one_process() -> None:
    random = np.random.default_rng(3)
    parts = [random.normal(place, 3.0, 50) for place in range(3)]
    found = merged(parts, agreed(scaling="per_site"))
    for part, scales in zip(parts, found.scales.values(), strict=True):
        assert scales == scales_of(pandas.DataFrame({"x": part}), found.columns, "one")


@pytest.mark.parametrize("min_rows", [1, 20])
def test_quartiles_are_within_the_widths_of_what_is_told(min_rows: int) -> None:
    random = np.random.default_rng(1)
    parts = [np.clip(random.normal(50, 15, rows), 0, 100) for rows in (800, 1300)]
    columns = agreed(scaling="robust", ranges={"x": (0.0, 100.0)})
    (found,), (exact,) = merged(parts, columns, min_rows).columns, of_all(parts, "robust")
    bin_width = 100 / BINS
    assert abs(found.mean - exact.mean) <= 2 * bin_width  # near the quartiles every edge has min_rows between
    assert abs(found.deviation - exact.deviation) <= 4 * bin_width / 1.349


@pytest.mark.parametrize("min_rows", [5, 20])
def test_no_count_of_a_sketch_is_of_fewer_rows_than_the_site_tells(min_rows: int) -> None:
    values = np.concatenate([np.random.default_rng(2).normal(50, 3, 70), [1.0, 99.0]])
    columns = agreed(scaling="robust", ranges={"x": (0.0, 100.0)})
    told = read_description(columns, describe(columns, {"x": values}, {}, len(values), min_rows))["x"].below
    assert np.diff(told[told >= 0]).min() >= min_rows
    assert told[-1] == 72


def test_fixed_ranges_learn_nothing() -> None:
    columns = agreed(scaling="fixed", ranges={"x": (0.0, 200.0)})
    described = describe(columns, {"x": np.array([5.0, np.nan] * 50)}, {}, 100, 1)
    assert not described.any()
    (column,) = merge_descriptions(columns, {"a": read_description(columns, described)}).columns
    assert (column.mean, column.deviation, column.indicator) == (100.0, 100.0, True)


def test_too_few_rows_give_no_sums() -> None:
    words = agreed(names=("x", "w"), categories={"w": ["a", "b"]})
    described = describe(words, {"x": np.arange(19.0)}, {"w": 3}, 19, 20)
    assert described.tolist() == [[2, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, -1]]
    half_filled = describe(words, {"x": np.array([1.0] * 19 + [np.nan] * 81)}, {"w": 47}, 100, 20)
    assert half_filled.tolist() == [[2, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 40]]


# state, missing, known, total, squares, strange
@pytest.mark.parametrize(
    ("row", "words"),
    [
        ([0, 0, np.nan, 0, 0, 0], "not all finite"),
        ([0, 0, 10, np.inf, 0, 0], "not all finite"),
        ([0, 0, -5, 0, 0, 0], "it counts -5 numbers"),
        ([0, 0, 2.5, 3, 0, 0], "it counts 2.5 numbers"),
        ([0, 0, 1e300, 3, 0, 0], r"it counts 1e\+300 numbers"),
        ([0, 0, 10, 50, -1, 0], "10 numbers have squared deviations of -1"),
        ([0, 0, 1, 50, 3, 0], "1 numbers have squared deviations of 3"),
        ([0, 0, 10, 5000, 1, 0], "the mean 500 is outside the agreed range, 0 to 100"),
        ([0, 0, 0, 0, 0, 0], "it has no numbers, but does not report that"),
        ([2, 1, 0, 7, 0, 0], "it has sums, but no numbers"),
        ([1, 1, 5, 7, 0, 0], "it has counts, although it reports none"),
        ([9, 0, 5, 7, 0, 0], r"its state is unknown \(9"),
        ([0, 0, 5, 7, 0, 4], "a numeric column has words that are not agreed categories"),
    ],
)
def test_what_no_table_can_be_described_by_is_refused(row: list[float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        read_description(agreed(ranges={"x": (0.0, 100.0)}), np.array([row], dtype=np.float64))


@pytest.mark.parametrize(
    "below",
    [[0.0] * BINS + [9.0], [0.0, 7.0, 3.0] + [10.0] * (BINS - 2), [3.0] + [10.0] * BINS, [0.5] * BINS + [10.0],
     [-1.0] * (BINS + 1), [0.0, 4.5] + [10.0] * (BINS - 1)],
)  # fmt: skip
def test_counts_that_do_not_grow_are_refused(below: list[float]) -> None:
    columns = agreed(scaling="robust", ranges={"x": (0.0, 100.0)})
    with pytest.raises(ValueError, match="its counts"):
        read_description(columns, np.array([[0, 0, 10, 50, 3, 0, *below]]))


@pytest.mark.parametrize(
    "given_array",
    [np.zeros((1, 5)), np.zeros((2, 6)), np.zeros((1, 6), np.float32), np.zeros((1, 6), "U4"), np.zeros(())],
)
def test_other_shapes_and_kinds_are_refused(given_array: Any) -> None:
    with pytest.raises(ValueError, match="not float64 of"):
        read_description(agreed(), given_array)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"names": ("x", "x")}, "features must name every column once"),
        ({"categories": {"y": ["a"]}}, "categories names the column"),
        ({"categories": {"x": ["a", "a"]}}, "each once"),
        ({"categories": {"x": ["NA"]}}, "without words that stand for missing values"),
        ({"ranges": {"x": (3.0, 3.0)}}, "two numbers, the smaller first"),
        ({"scaling": "robust"}, "needs ranges for all numeric columns"),
        ({"scaling": "log"}, "scaling"),
    ],
)
def test_what_cannot_be_agreed_on_is_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        agreed(**more)
