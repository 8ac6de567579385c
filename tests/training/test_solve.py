from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from problems import FLOAT64, random_game
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import fedmm
from fedmm import FedAvgGDA, FedMM, FedmmError, FedSGDA, solve

ZERO = torch.zeros((), dtype=FLOAT64)


def plane(x: Tensor, y: Tensor) -> Tensor:
    return x - y


# What comes back ------------------------------------------------------------------------------------------------------


def test_a_solution_has_the_form_of_its_start() -> None:
    start = ({"w": torch.ones(2, 3), "b": torch.ones(())}, torch.ones(4))
    solution = solve([lambda o, p: o["w"].sum() + o["b"] - p.sum()], start, FedSGDA(0.1, 0.2), 1)
    # Gradients are 1 for omega and -1 for psi, which ascends: 1 - 0.1, and 1 + 0.2 (-1).
    torch.testing.assert_close(solution.omega, {"w": torch.full((2, 3), 0.9), "b": torch.tensor(0.9)})
    torch.testing.assert_close(solution.psi, torch.full((4,), 0.8))


def test_the_start_is_left_alone() -> None:
    start = (torch.ones(2), torch.ones(3))
    solve([lambda x, y: x.sum() - y.sum()], start, FedMM(), 3)
    assert [t.tolist() for t in start] == [[1.0, 1.0], [1.0, 1.0, 1.0]]


def test_the_history_has_a_row_a_round_with_the_loss_at_the_local_points() -> None:
    # One step a round from 0 with eta = 0.1 on x - y: the server is at -0.1 t, so the loss x - y is 0 all along; on
    # x - 3 y it is -0.1 t + 0.9 t = 0.8 t with psi at -0.3 t.
    history = solve([lambda x, y: x - 3.0 * y], (ZERO, ZERO), FedSGDA(0.1, 0.1), 3).history
    assert history["round"] == [1, 2, 3]
    assert history["loss"] == pytest.approx([0.0, 0.8, 1.6], abs=1e-12)
    assert set(history[0]) == {
        *("round", "drift", "consensus_gap", "dual_norm", "bytes_up", "bytes_down", "seconds", "loss"),
        *("clients", "refused"),
    }
    assert history.total("bytes_up") == 3 * 2 * 8


def test_fedmms_duals_come_back_by_client_and_split_as_the_start_was() -> None:
    # One step from 0 with eta = 0.1 and mu = 2: dual = 2 (z_1 - 0) = -0.2 gradient, signed as the field is.
    algorithm = FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1)
    clients = [lambda x, y: 1.0 * x - 2.0 * y, lambda x, y: 3.0 * x + 4.0 * y]
    solution = solve(clients, (ZERO, ZERO), algorithm, 1, names=["z", "a"])
    parts = [tuple(float(part) for part in client.split("dual")) for client in solution.clients]
    assert parts[0] == pytest.approx((-0.2, -0.4), abs=1e-14)
    assert parts[1] == pytest.approx((-0.6, 0.8), abs=1e-14)


def test_one_sided_problems_need_no_psi() -> None:
    solution = solve([lambda x, _: (x - 1.0).square().sum()], (torch.zeros(2, dtype=FLOAT64), {}), FedAvgGDA(0.1), 20)
    torch.testing.assert_close(solution.omega, torch.ones(2, dtype=FLOAT64), rtol=0, atol=1e-12)
    assert solution.psi == {}


def test_a_function_may_leave_out_some_of_its_variables() -> None:
    solution = solve([lambda x, _: x.square()], (ZERO + 1.0, ZERO + 1.0), FedSGDA(0.1, 0.1), 1)
    assert float(solution.omega) == pytest.approx(0.8)
    assert float(solution.psi) == 1.0


def test_the_gradients_dtype_is_the_starts() -> None:
    for dtype in (torch.float32, torch.float64):
        solution = solve([plane], (ZERO.to(dtype), ZERO.to(dtype)), FedMM(), 2)
        assert solution.omega.dtype == solution.psi.dtype == solution.clients[0]["dual"].dtype == dtype


# Batches --------------------------------------------------------------------------------------------------------------


def test_batches_run_on_across_rounds_and_begin_anew_when_they_end() -> None:
    seen: list[int] = []

    def f(x: Tensor, y: Tensor, batch: int) -> Tensor:
        seen.append(batch)
        return x - y

    solve([(f, lambda: [0, 1, 2, 3, 4])], (ZERO, ZERO), FedAvgGDA(local_steps=2), 4)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2]


def test_an_iterator_is_made_once_for_each_pass() -> None:
    passes: list[int] = []

    def batches() -> Iterator[int]:
        passes.append(1)
        return iter(range(3))

    solve([(lambda x, y, _: x - y, batches)], (ZERO, ZERO), FedAvgGDA(local_steps=2), 3)
    assert len(passes) == 2


def test_a_data_loader_can_be_a_clients_batches() -> None:
    loader = DataLoader(TensorDataset(torch.arange(6.0).double()), batch_size=2)
    solution = solve([(lambda x, y, batch: (x * batch[0]).mean() - y, lambda: loader)], (ZERO, ZERO), FedSGDA(0.1), 3)
    # The batches' means are 0.5, 2.5 and 4.5.
    assert float(solution.omega) == pytest.approx(-0.75, abs=1e-12)


# What stops it --------------------------------------------------------------------------------------------------------


def test_an_interrupt_in_round_k_keeps_the_rounds_before_it() -> None:
    calls = iter(range(1, 100))

    def f(x: Tensor, y: Tensor) -> Tensor:
        if next(calls) == 8:  # two steps a round: the eighth step is the second of round 4
            raise KeyboardInterrupt
        return x - y

    algorithm = FedMM(0.1, 0.1, local_steps=2)
    solution = solve([f], (ZERO, ZERO), algorithm, 10)
    assert solution.status == "interrupted"
    assert solution.history["round"] == [1, 2, 3]
    whole = solve([plane], (ZERO, ZERO), algorithm, 3)
    assert torch.equal(solution.omega, whole.omega)
    assert torch.equal(solution.clients[0]["dual"], whole.clients[0]["dual"])


def test_a_diverging_client_is_named_and_the_last_good_round_kept() -> None:
    calls = iter(range(1, 100))

    def f(x: Tensor, y: Tensor) -> Tensor:
        return (x - y) * (math.nan if next(calls) == 5 else 1.0)

    algorithm = FedMM(0.1, 0.1, local_steps=2)
    with pytest.raises(fedmm.Diverged, match="client 'site-b' produced non-finite parameters in round 3") as caught:
        solve([plane, f], (ZERO, ZERO), algorithm, 10, names=["site-a", "site-b"])
    partial = caught.value.partial
    assert (caught.value.client, caught.value.round) == ("site-b", 3)
    assert partial.status == "diverged"
    assert partial.history["round"] == [1, 2]
    assert torch.equal(partial.omega, solve([plane, plane], (ZERO, ZERO), algorithm, 2).omega)


def test_divergence_in_the_first_round_keeps_the_start() -> None:
    with pytest.raises(fedmm.Diverged) as caught:
        solve([lambda x, y: (x - y) * math.inf], (ZERO + 3.0, ZERO), FedSGDA(), 5)
    assert float(caught.value.partial.omega) == 3.0
    assert len(caught.value.partial.history) == 0


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"functions": []}, "solve needs at least one client's function"),
        ({"functions": [3]}, "the function of client 'client-1' cannot be called: it is int"),
        ({"functions": [(plane, [1, 2])]}, "batches of client 'client-1' must be a function that makes an iterable"),
        ({"functions": [(lambda x, y, b: x, lambda: [])]}, "the batches of client 'client-1' are empty"),
        ({"functions": [lambda x, y: 1.0]}, "client 'client-1' must return a 0-dim tensor, not float"),
        ({"functions": [lambda x, y: torch.stack([x, y])]}, r"must return a 0-dim tensor, not shape \(2,\)"),
        ({"functions": [lambda x, y: torch.zeros(())]}, "client 'client-1' depends on neither omega nor psi"),
        ({"functions": [plane, plane], "names": ["a", "a"]}, "two clients are called 'a'"),
        ({"names": ["a", "b"]}, "2 names were given for 1 clients"),
        ({"weights": [1.0, 2.0]}, "2 weights were given for 1 clients"),
        ({"weights": [0.0]}, "client weights must be above 0"),
        ({"weights": [math.nan]}, "client weights must be finite"),
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"rounds": 1.5}, "rounds must be a whole number"),
        ({"gradient_scale": -1.0}, "gradient_scale must be 0 or more"),
        ({"gradient_scale": (1.0, {"psy": 1.0})}, "no value is given for parameter 'psi'|no parameter belongs to"),
        ({"algorithm": FedMM(lr_min={"other": 0.1})}, "no value is given for parameter 'omega'"),
        pytest.param(
            {"weights": [math.inf]},
            "weight",
        ),
        pytest.param(
            {"weights": ["heavy"]},
            "weight",
        ),
    ],
)
def test_what_cannot_be_solved_is_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    given = {"functions": [plane], "start": (ZERO, ZERO), "algorithm": FedSGDA(), "rounds": 1} | options
    with pytest.raises(FedmmError, match=message) as caught:
        solve(**given)
    assert "\n" not in str(caught.value)


# Weights, names and scales --------------------------------------------------------------------------------------------


def test_equal_weights_of_any_size_change_nothing() -> None:
    game = random_game(3)
    plain = solve(game.clients, game.start, FedMM(), 2)
    assert torch.equal(solve(game.clients, game.start, FedMM(), 2, weights=[4.0, 4.0, 4.0]).omega, plain.omega)


def test_gradient_scales_may_be_given_by_group_for_each_side() -> None:
    start = ({"a": ZERO, "b": ZERO}, {"c": ZERO})
    solution = solve(
        [lambda o, p: o["a"] + o["b"] - p["c"]],
        start,
        FedSGDA(0.1, 0.1),
        1,
        gradient_scale=({"a": 2.0, "*": 3.0}, {"c": 4.0}),
    )
    moved = [float(value) for value in (solution.omega["a"], solution.omega["b"], solution.psi["c"])]
    assert moved == pytest.approx([-0.2, -0.3, -0.4], abs=1e-14)


def test_default_names_sort_as_the_clients_are_listed() -> None:
    # Of 11 clients the second is client-02, which sorts before client-10.
    functions = [plane, lambda x, y: (x - y) * math.nan, *[plane] * 9]
    with pytest.raises(fedmm.Diverged, match="client 'client-02'"):
        solve(functions, (ZERO, ZERO), FedSGDA(), 1)


def test_client_states_come_back_in_the_order_the_clients_are_listed_in() -> None:
    # One step with eta = 0.1 and mu = 1 makes the dual -0.1 x gradient: client n's gradient is n.
    functions = [lambda x, y, n=n: float(n) * x - y for n in range(11)]
    solution = solve(functions, (ZERO, ZERO), FedMM(0.1, 0.1, 1.0, 1.0, local_steps=1), 1)
    assert [float(client["dual"][0]) for client in solution.clients] == pytest.approx([-0.1 * n for n in range(11)])
