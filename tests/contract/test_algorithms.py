"""What every row of ``ALGORITHMS`` must keep to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from problems import (
    FLOAT64,
    OPTIONS,
    FieldClient,
    Game,
    adapt,
    all_counted,
    generator,
    mixed_client,
    network,
    played,
    random_game,
    source_client,
    target_client,
    with_options,
)
from torch import Tensor

import fedmm
from fedmm import ALGORITHMS, FedmmError
from fedmm.core.algorithm import Algorithm, Coefficients, State, kept_of
from fedmm.core.layout import Layout
from fedmm.core.problem import FederatedProblem
from fedmm.core.schedules import Constant, DannDecay, DannWarmup
from fedmm.engines.in_process import InProcess

each_algorithm = pytest.mark.parametrize("kind", ALGORITHMS.values(), ids=ALGORITHMS)
DEVICES = ["cpu", "meta", *(["cuda"] if torch.cuda.is_available() else [])]


def names_of_options(kind: type[Algorithm]) -> set[str]:
    return {option.name for option in dataclasses.fields(kind)}


# Names and tables -----------------------------------------------------------------------------------------------------


@each_algorithm
def test_a_row_has_the_name_of_its_class_and_says_what_it_is(kind: type[Algorithm]) -> None:
    assert ALGORITHMS[kind.name] is kind
    assert kind.summary
    assert getattr(fedmm, kind.__name__) is kind


@each_algorithm
def test_the_table_of_symbols_keeps_to_its_columns(kind: type[Algorithm]) -> None:
    lines = (kind.__doc__ or "").splitlines()
    first, *_, last = (number for number, line in enumerate(lines) if line.strip().startswith("==="))
    start = lines[first].index("=")
    gaps = [at for at, sign in enumerate(lines[first]) if sign == " " and at > start]
    assert gaps
    for line in lines[first:last]:
        assert all(line[at] == " " for at in gaps), line


@each_algorithm
def test_equal_options_make_equal_algorithms_with_equal_hashes(kind: type[Algorithm]) -> None:
    assert with_options(kind) == with_options(kind)
    assert hash(with_options(kind)) == hash(with_options(kind))
    assert len({with_options(kind), with_options(kind), with_options(kind, lr_min=0.5)}) == 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        with_options(kind).lr_min = 1.0


@each_algorithm
def test_a_per_group_option_keeps_equality(kind: type[Algorithm]) -> None:
    rates = {"features": 0.1, "*": 0.2}
    assert with_options(kind, lr_min=rates) == with_options(kind, lr_min=dict(rates))
    assert with_options(kind, lr_min=rates) != with_options(kind, lr_min={"*": 0.2})


# Refusals -------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, Sequence[Any]] = {
    "lr_min": [0.0, -1.0, math.nan, math.inf, "fast", True, None, {}, {"features": 0.0}, {"features": "fast"}],
    "lr_max": [0.0, -1.0, math.nan, math.inf, "fast", True, None, {}, {"adversary": -1.0}],
    "penalty_min": [-1.0, math.nan, math.inf, "strong", {}, {"features": -1.0}],
    "penalty_max": [-1.0, math.nan, math.inf, "strong", {}, {"adversary": -1.0}],
    "dual_decay": [-0.1, 1.1, math.nan, "slow"],
    "local_steps": [0, -3, 2.5, "many", True, None, [], [2, 0], [2.5], {}, {"a": 0}],
    "server_lr": [0.0, -1.0, math.nan, math.inf, "fast"],
}
REFUSALS = [
    (kind, option.name, value)
    for kind in ALGORITHMS.values()
    for option in dataclasses.fields(kind)
    for value in REFUSED.get(option.name, [])
]


@pytest.mark.parametrize(("kind", "option", "value"), REFUSALS, ids=lambda p: getattr(p, "name", repr(p)))
def test_an_invalid_option_is_refused_by_its_name(kind: type[Algorithm], option: str, value: Any) -> None:
    with pytest.raises(FedmmError, match=option):
        kind(**{option: value})


@each_algorithm
def test_every_numeric_option_refuses_what_is_not_a_number(kind: type[Algorithm]) -> None:
    # also options that the table above does not know
    for option in dataclasses.fields(kind):
        if isinstance(option.default, float | int) and not isinstance(option.default, bool):
            for value in ("word", math.nan):
                with pytest.raises(FedmmError, match=option.name):
                    kind(**{option.name: value})


def test_fedmm_needs_a_penalty_above_zero_because_it_divides_by_it() -> None:
    for option in ("penalty_min", "penalty_max"):
        with pytest.raises(FedmmError, match=f"{option} must be above 0"):
            fedmm.FedMM(**{option: 0.0})
        assert getattr(fedmm.FedProxGDA(**{option: 0.0}), option) == 0.0


def test_a_schedule_that_cannot_be_called_is_refused_when_it_is_given() -> None:
    with pytest.raises(FedmmError, match="lr_schedule"):
        fedmm.FedMM(lr_schedule=3)


def sent_by(algorithm: Algorithm, server: State) -> State:
    """What a server sends: nothing of the numbers that it has of each client."""
    per_client = algorithm.init_per_client(1, server["z"])
    return algorithm.broadcast({name: each for name, each in server.items() if name not in per_client})


def reported(algorithm: Algorithm, loss: Tensor, z: Tensor, sent: State, own: State, c: Coefficients) -> State:
    """What a client reports, if anything, by the names that are declared."""
    numbers = algorithm.report(loss, z, sent, own, c) if algorithm.reports else {}
    assert tuple(numbers) == algorithm.reports
    return numbers


# Pure functions of their input ----------------------------------------------------------------------------------------


@each_algorithm
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_round_keeps_the_dtype_and_repeats_itself_and_leaves_its_input_alone(
    kind: type[Algorithm], dtype: torch.dtype
) -> None:
    algorithm = with_options(kind)
    layout = Layout({"omega": (3,)}, {"psi": (2,)}, dtype=dtype)
    z = torch.randn(5, generator=generator(0)).to(dtype)
    server = {name: vector + 0.5 for name, vector in algorithm.init_server(z).items()}
    server |= algorithm.init_per_client(2, z)
    own = {name: vector + 0.25 for name, vector in algorithm.init_client(z).items()}
    c = Coefficients(algorithm.coefficients(layout, 1, 5), steps=layout.scalar(3))
    field = 2.0 * z
    point = z + 1.0
    given = [z, field, point, *server.values(), *own.values(), *c.values()]
    before = [tensor.clone() for tensor in given]

    def outputs() -> list[Tensor]:
        sent = sent_by(algorithm, server)
        begun = algorithm.begin(point, sent, own, c)
        looked = algorithm.look(point, sent, begun, field, c) if algorithm.looks else point
        stepped, working = algorithm.step(point, sent, begun, field, field + looked, c)
        assert working.keys() == begun.keys()
        assert own.keys() <= begun.keys()
        upload, finished = algorithm.finish(stepped, sent, working, c)
        after = kept_of(own, working, finished)
        stacked = {name: torch.stack([vector, vector + 1.0]) for name, vector in upload.items()}
        numbers = reported(algorithm, z.square().sum(), stepped, sent, working, c)
        scalars = {name: torch.stack([number, number + 1.0]) for name, number in numbers.items()}
        new_server = algorithm.server_update(server, all_counted(algorithm, stacked, sent, scalars), c)
        assert new_server.keys() == server.keys()
        assert after.keys() == own.keys()
        return [stepped, looked, *working.values(), *upload.values(), *after.values(), *new_server.values()]

    first, second = outputs(), outputs()
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert {tensor.dtype for tensor in first} == {dtype}
    assert {tensor.dtype for tensor in c.values()} == {dtype}
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(given, before, strict=True))


@each_algorithm
@pytest.mark.parametrize("device", DEVICES)
def test_a_round_stays_on_its_device(kind: type[Algorithm], device: str) -> None:
    algorithm = with_options(kind)
    layout = Layout({"omega": (3,)}, {"psi": (2,)}, device=device)
    z = torch.zeros(5, device=device)
    server, own = algorithm.init_server(z) | algorithm.init_per_client(2, z), algorithm.init_client(z)
    c = Coefficients(algorithm.coefficients(layout, 0, 5), steps=layout.scalar(3))
    sent = sent_by(algorithm, server)
    begun = algorithm.begin(z, sent, own, c)
    looked = algorithm.look(z, sent, begun, z, c) if algorithm.looks else z
    stepped, working = algorithm.step(z, sent, begun, z, looked, c)
    upload, own = algorithm.finish(stepped, sent, working, c)
    stacked = {name: torch.stack([v, v]) for name, v in upload.items()}
    numbers = reported(algorithm, z.sum(), stepped, sent, working, c)
    scalars = {name: torch.stack([number, number]) for name, number in numbers.items()}
    server = algorithm.server_update(server, all_counted(algorithm, stacked, sent, scalars), c)
    assert {t.device.type for t in (stepped, *c.values(), *upload.values(), *own.values(), *server.values())} == {
        device
    }


@each_algorithm
@pytest.mark.parametrize("per_coordinate", [False, True], ids=["one rate", "a rate per side"])
def test_a_stack_of_replicas_and_clients_is_the_same_as_one_by_one(kind: type[Algorithm], per_coordinate: bool) -> None:
    """Replicas differ in start and coefficients, clients in M_i. The reference runs one client after the other."""
    game = random_game(3, clients=3)
    steps = [2, 4, 3] if "local_steps" in names_of_options(kind) else [1, 1, 1]
    sides = {} if per_coordinate else {"lr_max": 0.02, "penalty_max": 0.7}
    replicas = [
        with_options(kind, local_steps=steps, lr_schedule=DannDecay(1.0), **sides),
        with_options(kind, local_steps=steps, lr_schedule=DannDecay(10.0), **sides | {"server_lr": 0.5}),
    ]
    starts = torch.randn(2, game.layout.size, dtype=FLOAT64, generator=generator(1))
    rounds = 3

    server, clients = play_stack(replicas, starts, game, steps, rounds)

    for r, algorithm in enumerate(replicas):
        problem = FederatedProblem(game.layout, starts[r], game.problem().clients)
        *_, (state, _) = played(InProcess(problem, algorithm, rounds), rounds)
        for name, vector in state.server.items():
            torch.testing.assert_close(server[name][r], vector, rtol=1e-11, atol=1e-12)
        for n, own in enumerate(state.clients.values()):
            for name, vector in own.items():
                torch.testing.assert_close(clients[name][r, n], vector, rtol=1e-11, atol=1e-12)


def play_stack(
    replicas: Sequence[Algorithm], starts: Tensor, game: Game, steps: Sequence[int], rounds: int
) -> tuple[State, State]:
    """All replicas and clients at once: z is ``[R, N, size]``, what the server sends ``[R, 1, size]``, M_i ``[N, 1]``,
    and coefficients are ``[R, 1, 1]`` or ``[R, 1, size]``. At the server there is no client axis.
    """
    algorithm = replicas[0]
    matrix = torch.stack([client.matrix for client in game.clients])
    offset = torch.stack([client.offset for client in game.clients])
    server = algorithm.init_server(starts) | algorithm.init_per_client(len(steps), starts)
    clients = algorithm.init_client(starts.unsqueeze(-2).repeat(1, len(steps), 1))
    for t in range(rounds):
        m = torch.tensor([algorithm.steps_in(own, 0, t) for own in steps], dtype=FLOAT64).unsqueeze(-1)
        each = [replica.coefficients(game.layout, t, rounds) for replica in replicas]
        at_server = Coefficients({name: torch.stack([c[name].reshape(-1) for c in each]) for name in each[0]})
        c = Coefficients({name: value.unsqueeze(-2) for name, value in at_server.items()}, steps=m)
        sent = {name: vector.unsqueeze(-2) for name, vector in sent_by(algorithm, server).items()}
        z = sent["z"].repeat(1, len(steps), 1)
        importance = algorithm.importance(server)
        weights = 1.0 if importance is None else importance.unsqueeze(-1)
        values = torch.stack([torch.stack([q.value(at) for q in game.clients]) for at in sent["z"].squeeze(-2)])
        working = algorithm.begin(z, sent, clients, c)
        for step in range(max(steps)):
            F = G = weights * (torch.einsum("nij,rnj->rni", matrix, z) + offset)
            if algorithm.looks:
                looked = algorithm.look(z, sent, working, F, c)
                G = weights * (torch.einsum("nij,rnj->rni", matrix, looked) + offset)
            stepped, after = algorithm.step(z, sent, working, F, G, c)
            working = {name: torch.where(step < m, vector, working[name]) for name, vector in after.items()}
            z = torch.where(step < m, stepped, z)
        uploads, finished = algorithm.finish(z, sent, working, c)
        clients = kept_of(clients, working, finished)
        numbers = reported(algorithm, values, z, sent, working, c)
        came = all_counted(algorithm, uploads, sent_by(algorithm, server), numbers)
        server = algorithm.server_update(server, came, at_server)
    return server, clients


@each_algorithm
def test_a_plain_algorithm_is_one_whose_step_is_its_local_step(kind: type[Algorithm]) -> None:
    algorithm = with_options(kind)
    layout = Layout({"omega": (3,)}, {"psi": (2,)}, dtype=FLOAT64)
    z = torch.randn(5, generator=generator(0), dtype=FLOAT64)
    sent, own = algorithm.broadcast(algorithm.init_server(z)), algorithm.init_client(z)
    c = Coefficients(algorithm.coefficients(layout, 0, 5), steps=layout.scalar(3))
    if algorithm.plain:
        assert algorithm.begin(z, sent, own, c) is own
        stepped, after = algorithm.step(z, sent, own, 2.0 * z, 3.0 * z, c)
        assert after is own
        assert torch.equal(stepped, algorithm.local_step(z, sent, own, 2.0 * z, c))
        assert not algorithm.looks


# What a round means ---------------------------------------------------------------------------------------------------


@each_algorithm
def test_a_saddle_that_all_clients_share_is_a_fixed_point(kind: type[Algorithm]) -> None:
    game = random_game(5, clients=4, shared_saddle=True)  # the mean of 4 equal short numbers has no rounding
    saddle = game.clients[0].saddle
    clients = [FieldClient(name, q.field, q.value) for name, q in zip(game.names, game.clients, strict=True)]
    engine = InProcess(FederatedProblem(game.layout, saddle, clients), with_options(kind), 5)
    state = engine.start()
    first = with_options(kind).init_client(saddle)
    for _ in range(5):
        state, record = engine.run_round(state)
        assert record.drift == 0.0
        assert torch.equal(state.z, saddle)
        for own in state.clients.values():
            assert own.keys() == first.keys()
            assert all(torch.equal(vector, first[name]) for name, vector in own.items())


@each_algorithm
def test_the_first_local_step_goes_along_the_field_at_each_groups_own_rate(kind: type[Algorithm]) -> None:
    layout = Layout({"body.w": (2,), "body.b": (1,), "top": (1,)}, {"critic": (2,)}, dtype=FLOAT64)
    algorithm = with_options(
        kind, lr_min={"body": 0.1, "body.b": 0.2, "*": 0.3}, lr_max={"critic": 0.4}, lr_schedule=Constant()
    )
    z = torch.ones(6, dtype=FLOAT64)
    field = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=FLOAT64)
    c = Coefficients(algorithm.coefficients(layout, 0, 1), steps=layout.scalar(1))

    sent = algorithm.init_server(z)
    moved, _ = algorithm.step(z, sent, algorithm.begin(z, sent, algorithm.init_client(z), c), field, field, c)

    # 1 - rate x field, with rates 0.1 0.1 | 0.2 | 0.3 | 0.4 0.4
    expected = torch.tensor([0.9, 0.8, 0.4, -0.2, -1.0, -1.4], dtype=FLOAT64)
    torch.testing.assert_close(moved, expected, rtol=0, atol=1e-15)


SETS_ITS_STEP = [fedmm.QFFL]
"""Whose server's step follows from the lengths of the clients' steps: a rate of one group moves the others too."""
each_with_fixed_steps = pytest.mark.parametrize(
    "kind", [kind for kind in ALGORITHMS.values() if kind not in SETS_ITS_STEP], ids=lambda kind: kind.name
)


@each_with_fixed_steps
def test_solve_takes_rates_by_group_of_parameters(kind: type[Algorithm]) -> None:
    # Constant gradients 2, 3 and -4: one step takes x down by 0.1 x 2, y by 0.2 x 3, and psi, which ascends, down by
    # 0.3 x 4. However far an algorithm's server then goes, y goes twice as far as with a rate of 0.1, psi three times.
    def f(omega: dict[str, Tensor], psi: Tensor) -> Tensor:
        return 2.0 * omega["x"] + 3.0 * omega["y"] - 4.0 * psi

    def solution(lr_min: Any, lr_max: Any) -> fedmm.Solution:
        zero = torch.zeros((), dtype=FLOAT64)
        algorithm = with_options(kind, lr_min=lr_min, lr_max=lr_max, local_steps=2 if kind.in_pairs else 1)
        return fedmm.solve([f], ({"x": zero, "y": zero}, zero), algorithm, 1)

    by_group, alike = solution({"x": 0.1, "y": 0.2}, {"psi": 0.3}), solution(0.1, 0.1)
    assert float(by_group.omega["x"]) == pytest.approx(float(alike.omega["x"]), rel=1e-12)
    assert float(by_group.omega["x"]) < 0
    assert float(by_group.omega["y"]) == pytest.approx(2 * float(alike.omega["y"]), rel=1e-12)
    assert float(by_group.omega["y"]) == pytest.approx(3 * float(by_group.omega["x"]), rel=1e-12)
    assert float(by_group.psi) == pytest.approx(3 * float(alike.psi), rel=1e-12)
    assert by_group.history[0]["drift"] == pytest.approx(math.hypot(0.2, 0.6, 1.2), rel=1e-12)


@each_with_fixed_steps
def test_one_local_step_is_the_same_whether_the_rate_or_the_gradient_is_scaled(kind: type[Algorithm]) -> None:
    game = random_game(2)
    one_step = {"local_steps": 2 if kind.in_pairs else 1, "lr_schedule": Constant()}
    scaled_rate = with_options(kind, lr_min=0.01, lr_max=0.06, **one_step)
    scaled_gradient = with_options(kind, lr_min=0.02, lr_max=0.02, **one_step)
    by_rate = fedmm.solve(game.clients, game.start, scaled_rate, 1)
    by_gradient = fedmm.solve(game.clients, game.start, scaled_gradient, 1, gradient_scale=(0.5, 3.0))
    torch.testing.assert_close(by_gradient.omega, by_rate.omega, rtol=1e-12, atol=0)
    torch.testing.assert_close(by_gradient.psi, by_rate.psi, rtol=1e-12, atol=0)


def test_a_gradient_scale_leaves_the_proximal_term_alone() -> None:
    # f = x - y, mu = 2, eta = 0.1, two steps from 0, gradient of x scaled by 5, of y by 1:
    #   x: -0.1 (5) = -0.5;  then -0.5 - 0.1 (5 + 2 (-0.5)) = -0.9
    #   y: -0.1 (1) = -0.1;  then -0.1 - 0.1 (1 + 2 (-0.1)) = -0.18
    # With the rate of x 5 times as large instead, its second step is -0.5 - 0.5 (1 + 2 (-0.5)) = -0.5.
    zero = torch.zeros((), dtype=FLOAT64)
    options = {"penalty_min": 2.0, "penalty_max": 2.0, "local_steps": 2}
    scaled = fedmm.solve([plane], (zero, zero), fedmm.FedProxGDA(0.1, 0.1, **options), 1, gradient_scale=(5.0, 1.0))
    faster = fedmm.solve([plane], (zero, zero), fedmm.FedProxGDA(0.5, 0.1, **options), 1)
    assert (float(scaled.omega), float(scaled.psi)) == pytest.approx((-0.9, -0.18), abs=1e-14)
    assert (float(faster.omega), float(faster.psi)) == pytest.approx((-0.5, -0.18), abs=1e-14)


def test_a_gradient_scale_leaves_the_dual_alone() -> None:
    # FedMM, one step a round, eta = 0.1, mu = 2, x scaled by 5, from 0. Round 1: z = -0.5, dual = -1, upload
    # -0.5 + (-1)/2 = -1. Round 2 from -1: z = -1 - 0.1 (5 - 1) = -1.4, dual = -1 + 2 (-0.4) = -1.8,
    # upload -1.4 - 0.9 = -2.3.
    zero = torch.zeros((), dtype=FLOAT64)
    algorithm = fedmm.FedMM(0.1, 0.1, 2.0, 2.0, local_steps=1)
    solution = fedmm.solve([plane], (zero, zero), algorithm, 2, gradient_scale=(5.0, 1.0))
    assert float(solution.omega) == pytest.approx(-2.3, abs=1e-14)
    assert float(solution.clients[0]["dual"][0]) == pytest.approx(-1.8, abs=1e-14)


def plane(x: Tensor, y: Tensor) -> Tensor:
    return x - y


@each_algorithm
def test_client_weights_scale_the_clients_functions(kind: type[Algorithm]) -> None:
    # Weights 3 and 1 have mean 2: alpha = 1.5 and 0.5.
    game = random_game(4, clients=2)
    first, second = game.clients
    algorithm = with_options(kind)
    weighted = fedmm.solve(game.clients, game.start, algorithm, 3, weights=[3.0, 1.0])
    by_hand = fedmm.solve([lambda x, y: 1.5 * first(x, y), lambda x, y: 0.5 * second(x, y)], game.start, algorithm, 3)
    torch.testing.assert_close(weighted.omega, by_hand.omega, rtol=1e-11, atol=1e-13)
    torch.testing.assert_close(weighted.psi, by_hand.psi, rtol=1e-11, atol=1e-13)


@each_algorithm
def test_the_rates_follow_their_schedule(kind: type[Algorithm]) -> None:
    layout = Layout({"omega": (1,)}, {"psi": (1,)}, dtype=FLOAT64)
    constant = with_options(kind, lr_min=0.1, lr_max=0.3, lr_schedule=Constant(), stage_rounds=4)
    decayed = with_options(kind, lr_min=0.1, lr_max=0.3, stage_rounds=4)
    for t in range(4):
        since = t - t % 2 if kind.in_pairs else t  # both rounds of a pair have the rates of the first
        factor = (1 + 10 * since / 4) ** -0.75
        assert constant.coefficients(layout, t, 4).lr.tolist() == [0.1, 0.3]
        assert decayed.coefficients(layout, t, 4).lr.tolist() == pytest.approx([0.1 * factor, 0.3 * factor], rel=1e-15)
    assert kind().lr_schedule == Constant()


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind) if kind is fedmm.ScaffoldGDA else kind for kind in ALGORITHMS.values()],
    ids=ALGORITHMS,
)
def test_a_round_with_rate_zero_changes_nothing(kind: type[Algorithm]) -> None:
    # DANN's warm-up begins at 0.
    game = random_game(2)
    solution = fedmm.solve(game.clients, game.start, with_options(kind, lr_schedule=DannWarmup()), 1)
    assert not solution.omega.any()
    assert not solution.psi.any()


# Local steps and the order of clients ---------------------------------------------------------------------------------

with_steps = [kind for kind in ALGORITHMS.values() if "local_steps" in names_of_options(kind)]
each_with_steps = pytest.mark.parametrize("kind", with_steps, ids=lambda kind: kind.name)


def solved(game: Game, algorithm: Algorithm, order: Sequence[int], rounds: int = 3) -> tuple[Tensor, dict[str, State]]:
    """The server's point and the clients' states by name, with the clients listed in this order."""
    names = [game.names[i] for i in order]
    solution = fedmm.solve([game.clients[i] for i in order], game.start, algorithm, rounds, names=names)
    return torch.cat([solution.omega, solution.psi]), dict(zip(names, solution.clients, strict=True))


@each_with_steps
def test_local_steps_may_be_a_number_a_list_or_by_name(kind: type[Algorithm]) -> None:
    game = random_game(6)
    equal = [3, [3, 3, 3], dict.fromkeys(game.names, 3)]
    same = [solved(game, with_options(kind, local_steps=m), range(3))[0] for m in equal]
    assert torch.equal(same[0], same[1])
    assert torch.equal(same[0], same[2])
    listed = solved(game, with_options(kind, local_steps=[2, 3, 5]), range(3))[0]
    named = solved(game, with_options(kind, local_steps=dict(zip(game.names, [2, 3, 5], strict=True))), range(3))[0]
    assert torch.equal(listed, named)
    assert not torch.equal(listed, same[0])


@each_with_steps
def test_a_list_of_local_steps_goes_by_the_order_the_clients_are_listed_in(kind: type[Algorithm]) -> None:
    game = random_game(6)
    forward, own = solved(game, with_options(kind, local_steps=[2, 3, 5]), [0, 1, 2])
    backward, own_backward = solved(game, with_options(kind, local_steps=[5, 3, 2]), [2, 1, 0])
    assert torch.equal(forward, backward)
    assert_same_states(own, own_backward)


@each_with_steps
def test_unequal_local_steps_are_those_of_the_clients(kind: type[Algorithm]) -> None:
    # F = (1, 1) everywhere and eta = 0.1: with next to no penalty the clients go 0.1 and 0.3 on each side, on average
    # 0.2 sqrt(2). Of those in pairs, one step more is in the first round, and these are in the second. Steps from one
    # anchor lead no further than one of them.
    zero = torch.zeros((), dtype=FLOAT64)
    pulls = dict.fromkeys(("penalty_min", "penalty_max"), 1e-9) | dict.fromkeys(("smoothing_min", "smoothing_max"), 0.0)
    steps, rounds = ([2, 4], 2) if kind.in_pairs else ([1, 3], 1)
    if "inner_steps" in names_of_options(kind):
        steps = [OPTIONS["inner_steps"] * number for number in steps]
    algorithm = with_options(kind, local_steps=steps, lr_min=0.1, lr_max=0.1, **pulls, lr_schedule=Constant())
    solution = fedmm.solve([plane, plane], (zero, zero), algorithm, rounds)
    assert solution.history[-1]["drift"] == pytest.approx(0.2 * math.sqrt(2.0), rel=1e-6)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([2, 3], "local_steps holds 2 numbers for 3 clients"),
        ({"client-0": 2, "client-1": 2}, "local_steps gives no number for client 'client-2'"),
        ({"client-0": 2, "client-1": 2, "client-2": 2, "client-9": 2}, "unknown client in local_steps 'client-9'"),
    ],
)
def test_local_steps_that_do_not_fit_the_clients_are_refused(steps: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        solved(random_game(6), fedmm.FedMM(local_steps=steps), range(3))


def assert_same_states(one: dict[str, State], other: dict[str, State]) -> None:
    assert one.keys() == other.keys()
    for name, state in one.items():
        assert state.keys() == other[name].keys()
        assert all(torch.equal(vector, other[name][key]) for key, vector in state.items())


@each_algorithm
def test_the_order_in_which_clients_are_listed_does_not_matter_to_solve(kind: type[Algorithm]) -> None:
    game = random_game(8, clients=4)
    z, own = solved(game, with_options(kind), range(4))
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        again, own_again = solved(game, with_options(kind), order)
        assert torch.equal(again, z)
        assert_same_states(own_again, own)


@each_algorithm
def test_the_order_in_which_clients_are_listed_does_not_matter_to_adapt(kind: type[Algorithm]) -> None:
    clients = [source_client(), target_client(), mixed_client()]
    model = network(head_dropout=0.3, task_hidden=(5,))
    first = adapt(clients, model, algorithm=with_options(kind), rounds=2)
    for order in ([2, 1, 0], [1, 2, 0]):
        again = adapt([clients[i] for i in order], model, algorithm=with_options(kind), rounds=2)
        assert torch.equal(again.state.z, first.state.z)
        assert_same_states(again.state.clients, first.state.clients)


@each_algorithm
def test_one_seed_is_one_result_and_another_seed_another(kind: type[Algorithm]) -> None:
    first, again, other = (adapt(algorithm=with_options(kind), seed=seed).state.z for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
