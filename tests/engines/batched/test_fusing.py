"""An algorithm's local step, written as one expression, computes what the algorithm says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from problems import FLOAT64, generator, with_options
from torch import Tensor

from fedmm import ALGORITHMS, FedAvgGDA
from fedmm.core.algorithm import Algorithm, Coefficients, State
from fedmm.core.layout import Layout
from fedmm.engines.batched.fusing import fused_step

Given = tuple[Tensor, Tensor, Tensor, State, State, Coefficients]


def given(rule: Algorithm, clients: int = 3) -> Given:
    """Random z, gradient, scale and states of two replicas, with rates for each coordinate."""
    layout = Layout({"x": (3,)}, {"y": (2,)}, dtype=FLOAT64)
    random = generator(1)

    def like(state: State, *lead: int) -> State:
        return {name: torch.randn(*lead, 5, generator=random, dtype=FLOAT64) for name in state}

    z = torch.randn(2, clients, 5, generator=random, dtype=FLOAT64)
    server, client = rule.init_server(z[0, 0]), rule.init_client(z[0, 0])
    c = {name: value.expand(2, 1, -1 if value.dim() else 1) for name, value in rule.coefficients(layout, 3, 9).items()}
    steps = torch.full((2, clients, 1), 3.0, dtype=FLOAT64)
    gradient, scale = (like({"": z}, 2, clients)[""] for _ in range(2))
    return z, gradient, scale, like(server, 2, 1), like(client, 2, clients), Coefficients(c, steps=steps)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The C++ that was to be compiled; Python, whose arithmetic reads alike, carries it out instead."""
    codes: list[str] = []

    def interpreted(code: str) -> Any:
        codes.append(code)
        arguments, body = re.fullmatch(r"template <typename T> T local_step\((.*?)\) { (.*) }", code).groups()
        names = [argument.removeprefix("T ") for argument in arguments.split(", ")]
        *lines, result = [line.strip().removeprefix("T ") for line in body.rstrip("; ").split(";")]

        def kernel(*inputs: Tensor) -> Tensor:
            known: dict[str, Any] = dict(zip(names, inputs, strict=True)) | {"T": float}
            for line in lines:
                name, expression = line.split(" = ")
                known[name] = eval(expression, {}, known)
            return known[result.removeprefix("return ")]

        return kernel

    monkeypatch.setattr(torch.cuda.jiterator, "_create_jit_fn", interpreted)
    return codes


def expected(rule: Algorithm, tensors: Given) -> Tensor:
    z, gradient, scale, sent, own, c = tensors
    return rule.local_step(z, sent, own, gradient * scale, c)


PLAIN = {name: kind for name, kind in ALGORITHMS.items() if kind().plain}
"""Those whose step is their local step; of the others no kernel is made."""


@pytest.mark.parametrize("kind", PLAIN.values(), ids=PLAIN)
def test_every_algorithm_is_one_expression(kind: type[Algorithm], written: list[str]) -> None:
    rule = with_options(kind, lr_min=0.1, lr_max=0.3)
    run = fused_step(rule, *given(rule))
    assert run is not None
    assert len(written) == 1
    for clients in (3, 1):  # the expression is the same for chunks of other sizes
        torch.testing.assert_close(run(*given(rule, clients)), expected(rule, given(rule, clients)), rtol=1e-14, atol=0)


@dataclass(frozen=True)
class Rule(FedAvgGDA):
    """Its local step is whatever it is given."""

    does: Any = None

    def local_step(self, z: Tensor, sent: State, client: State, F: Tensor, c: Coefficients) -> Tensor:
        return self.does(z, sent["z"], F, c.lr)


@pytest.mark.parametrize(
    "step",
    [
        lambda z, z_0, F, lr: -(z * 2.0 - 3 * F) / (lr + 0.5),
        lambda z, z_0, F, lr: z - lr * (F + (z - z_0)) * (z - (z_0 - F)),
        lambda z, z_0, F, lr: z,
        lambda z, z_0, F, lr: F - (-z),
    ],
    ids=["constants", "brackets", "nothing", "signs"],
)
def test_any_arithmetic_is_one_expression(step: Any, written: list[str]) -> None:
    rule = Rule(does=step)
    run = fused_step(rule, *given(rule))
    assert run is not None
    torch.testing.assert_close(run(*given(rule)), expected(rule, given(rule)), rtol=1e-14, atol=0)


FIXED = torch.tensor(0.3, dtype=FLOAT64)


@pytest.mark.parametrize(
    "step",
    [
        lambda z, z_0, F, lr: z - lr * F.clamp(-1.0, 1.0),
        lambda z, z_0, F, lr: torch.where(F > 0, z, z_0),
        lambda z, z_0, F, lr: z - lr * F / F.norm(dim=-1, keepdim=True),
        lambda z, z_0, F, lr: torch.add(z, F, alpha=-0.1),
        lambda z, z_0, F, lr: 1.0 - z,
        lambda z, z_0, F, lr: z - FIXED * F,
    ],
    ids=["clamp", "where", "norm", "keyword", "scalar first", "a tensor of its own"],
)
def test_what_is_more_than_arithmetic_is_left_to_the_rule(step: Any, written: list[str]) -> None:
    rule = Rule(does=step)
    assert fused_step(rule, *given(rule)) is None
    assert not written
