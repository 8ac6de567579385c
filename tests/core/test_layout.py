from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import FLOAT64
from torch import Tensor

import fedmm
from fedmm import FedmmError
from fedmm.core.layout import Layout, match_groups

shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
sides = st.lists(shapes, min_size=1, max_size=3)


def named(prefix: str, sizes: list[tuple[int, ...]]) -> dict[str, Tensor]:
    return {f"{prefix}{i}": torch.randn(size, dtype=FLOAT64) for i, size in enumerate(sizes)}


@given(sides, sides)
def test_unpacking_gives_back_what_was_packed(omega_shapes: list[Any], psi_shapes: list[Any]) -> None:
    omega, psi = named("w", omega_shapes), named("v", psi_shapes)
    layout = Layout.of(omega, psi)
    z = layout.pack(omega, psi)
    assert z.shape == (layout.size,)
    assert layout.min_size == sum(tensor.numel() for tensor in omega.values())
    for given_side, side in zip((omega, psi), layout.unpack(z), strict=True):
        assert list(side) == list(given_side)
        assert all(torch.equal(side[name], tensor) for name, tensor in given_side.items())


def test_omega_comes_first_and_psi_is_negated_in_the_signed_field() -> None:
    layout = Layout({"w": (2,)}, {"v": (1, 2)}, dtype=FLOAT64)
    gradients = [torch.tensor([1.0, 2.0], dtype=FLOAT64), torch.tensor([[3.0, 4.0]], dtype=FLOAT64)]
    assert layout.signed(gradients).tolist() == [1.0, 2.0, -3.0, -4.0]


def test_a_bare_tensor_comes_back_bare() -> None:
    omega, psi = torch.ones(2), {"v": torch.zeros(1)}
    layout = Layout.of(omega, psi)
    back = layout.unpack(layout.pack(omega, psi))
    assert torch.equal(back[0], omega)
    assert list(back[1]) == ["v"]


def test_packing_copies() -> None:
    omega, psi = torch.ones(2), torch.zeros(1)
    z = Layout.of(omega, psi).pack(omega, psi)
    omega.fill_(5.0)
    assert z.tolist() == [1.0, 1.0, 0.0]


def test_tensors_of_a_stack_keep_the_leading_axes() -> None:
    layout = Layout({"w": (2, 3)}, {"v": ()})
    parts = {block.name: part for block, part in layout.tensors(torch.arange(28.0).reshape(4, 7))}
    assert parts["w"].shape == (4, 2, 3)
    assert parts["v"].tolist() == [6.0, 13.0, 20.0, 27.0]


def test_a_coefficient_is_a_scalar_where_all_agree_and_a_vector_else() -> None:
    layout = Layout({"w": (2,)}, {"v": (1,)}, dtype=FLOAT64)
    assert layout.join(0.5, 0.5).shape == ()
    assert layout.join(0.5, {"v": 0.5}).shape == ()
    assert layout.join(0.5, 0.25).tolist() == [0.5, 0.5, 0.25]
    assert layout.join_all({"w": 1.0, "*": 2.0}).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"*": 1.0}, [1.0, 1.0, 1.0, 1.0]),
        ({"features": 1.0, "*": 2.0}, [1.0, 1.0, 1.0, 2.0]),
        ({"features": 1.0, "features.1": 3.0, "head": 2.0}, [1.0, 3.0, 3.0, 2.0]),
        ({"features.1.weight": 4.0, "features.1": 3.0, "*": 0.5}, [0.5, 4.0, 3.0, 0.5]),
    ],
)
def test_the_longest_matching_group_wins(values: dict[str, float], expected: list[float]) -> None:
    names = ["features.0.weight", "features.1.weight", "features.1.bias", "head.weight"]
    assert list(match_groups(names, values).values()) == expected


def test_a_group_ends_at_a_dot() -> None:
    with pytest.raises(FedmmError, match=r"no parameter belongs to group 'features\.1'"):
        match_groups(["features.10.weight"], {"features.1": 1.0, "*": 2.0})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"features": 1.0}, "no value is given for parameter 'head.weight'"),
        ({"features": 1.0, "head": 1.0, "tail": 1.0}, "no parameter belongs to group 'tail'; the groups are"),
    ],
)
def test_groups_that_do_not_fit_are_refused(values: dict[str, float], message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        match_groups(["features.0", "head.weight"], values)


@pytest.mark.parametrize(
    ("omega", "psi", "message"),
    [
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2), "'omega' has dtype torch.int64; a float dtype is needed"),
        (torch.zeros(2), torch.zeros(2, dtype=FLOAT64), "the same dtype and device"),
        ({}, {}, "at least one tensor"),
    ],
)
def test_a_start_that_cannot_be_packed_is_refused(omega: Any, psi: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        Layout.of(omega, psi)


def test_one_name_may_stand_on_both_sides_or_is_refused() -> None:
    def f(omega: dict[str, Tensor], psi: dict[str, Tensor]) -> Tensor:
        return omega["w"].square().sum() - psi["w"].square().sum()

    start = ({"w": torch.ones(2)}, {"w": 3.0 * torch.ones(2)})
    try:
        solution = fedmm.solve([f], start, fedmm.FedSGDA(0.1, 0.1), 1)
    except FedmmError:
        return
    # 1 - 0.1 x 2 = 0.8 and 3 - 0.1 x 6 = 2.4
    torch.testing.assert_close((solution.omega["w"], solution.psi["w"]), (0.8 * torch.ones(2), 2.4 * torch.ones(2)))
