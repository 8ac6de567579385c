"""Columns that tell the label."""

from __future__ import annotations

import torch

from fedmm.preflight.leaks import filled_for_a_class, telling_columns


def test_a_copy_of_the_label_is_found_and_an_honest_column_is_not() -> None:
    y = torch.arange(300) % 3
    copy = torch.nn.functional.one_hot((y + 1) % 3, 3).float()
    honest = torch.randn(300, 1) + y[:, None]
    found = telling_columns(torch.cat([honest, copy], dim=1), y, {"honest": slice(0, 1), "copy": slice(1, 4)})
    assert found == {"copy": 1.0}


def test_a_number_that_every_row_has_for_itself_tells_nothing() -> None:
    x = torch.stack([torch.randperm(300).float(), torch.randn(300)], dim=1)
    assert telling_columns(x, torch.arange(300) % 2, {"id": slice(0, 1), "other": slice(1, 2)}) == {}


def test_what_a_column_tells_is_seen_against_the_balance_of_classes() -> None:
    y = (torch.arange(1000) % 50 == 0).long()  # 98 % are of one class
    noise = torch.stack([torch.randperm(1000).float(), torch.randn(1000)], dim=1)
    columns = {"a": slice(0, 1), "b": slice(1, 2), "copy": slice(2, 3)}
    found = telling_columns(torch.cat([noise, y[:, None].float()], dim=1), y, columns)
    assert found == {"copy": 1.0}


def test_nothing_is_said_of_classes_with_few_rows_or_where_rows_are_few() -> None:
    x, y = torch.randn(100, 2), torch.zeros(100, dtype=torch.int64)
    y[:5] = 1
    columns = {"a": slice(0, 1), "b": slice(1, 2)}
    assert telling_columns(x, y, columns) == {}
    assert telling_columns(x[:10], y[:10], columns) == {}


def test_a_column_that_is_filled_for_one_class_alone_is_found() -> None:
    y = (torch.arange(400) % 4 == 0).long()  # 100 rows of class 1
    late = torch.ones(400, dtype=torch.bool)
    late[y.nonzero().flatten()[:30]] = False
    late[1] = False
    at_random = torch.arange(400) % 5 != 0
    assert filled_for_a_class(y, {"late": late, "at_random": at_random, "full": late & False}) == {"late": (1, 30, 31)}
    rare = torch.arange(400) % 50 == 0  # a column that hardly anybody fills says nothing
    assert filled_for_a_class(y, {"rare": ~(rare & (y == 1))}) == {}
