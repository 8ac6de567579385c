"""Rows that stand twice, and columns that tell the label."""

from __future__ import annotations

import pytest
import torch

from fedmm.data.leakage import distinct, fingerprints, shared, telling_columns


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(3,), (2, 5, 5)])
def test_rows_that_are_the_same_share_a_fingerprint_and_others_do_not(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    x = torch.randint(0, 200, (50, *shape)).to(dtype)
    assert (fingerprints(x) == fingerprints(x.clone())).all()
    other = x.clone()
    other.view(50, -1)[:, -1] += 1
    assert shared(fingerprints(x), fingerprints(other)) == 0
    mixed = torch.cat([other[:10], x[:7], other[10:20]])
    assert shared(fingerprints(x), fingerprints(mixed)) == 7
    assert distinct(fingerprints(torch.cat([x, x]))) == pytest.approx(distinct(fingerprints(x)) / 2)


def test_the_order_of_numbers_in_a_row_matters() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    assert shared(fingerprints(x), fingerprints(x.flip(1))) == 0


def test_nothing_and_minus_nothing_are_the_same() -> None:
    assert shared(fingerprints(torch.tensor([[0.0, 1.0]])), fingerprints(torch.tensor([[-0.0, 1.0]]))) == 1


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
