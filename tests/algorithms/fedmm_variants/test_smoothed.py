"""FedMM with a smoothed adversary: what it shares with FedMM, and where it is steady and FedMM is not.

FedMM's server and the mean d of its duals, for a field F that changes little within a round:

    z' = z + (1/mu) (-2a F + (1 - 2a) d),    d' = (1 - a) d - a F,    a = 1 - (1 - mu eta)^M

Momentum 1 - a, and a step of 1/mu in all. For F = rho z the round's eigenvalues solve
l^2 - (2 - a - 2a rho/mu) l + 1 - a - a rho/mu = 0; for a slow rotation rho = i beta, |l|^2 = 1 + (beta/mu)^2 (2/a - 3).
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import FLOAT64, Game, Quadratic, games, golden_game, played
from torch import Tensor

from fedmm import FedAvgGDA, FedMM, SmoothedFedMM
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.engines.in_process import InProcess

STEADY = SmoothedFedMM(smoothing_max=0.5, centre_rate=0.1)
"""Not the defaults, which may be chosen anew: the numbers below are of these."""

ETA, MU, STEPS = 0.01, 1.0, 20
A = 1 - (1 - MU * ETA) ** STEPS


def game(*clients: tuple[float, float, float, float, float]) -> Game:
    """Clients with f = p/2 x^2 + b x y - q/2 y^2 + u x - v y, given as (p, b, q, u, v)."""

    def number(value: float, *shape: int) -> Tensor:
        return torch.full(shape, value, dtype=FLOAT64)

    return Game(
        [
            Quadratic(number(p, 1, 1), number(b, 1, 1), number(q, 1, 1), number(u, 1), number(v, 1))
            for p, b, q, u, v in clients
        ]
    )


class Round:
    """One round of the means of all clients with one field F(z) = field z, in plain arithmetic.

    mu: 0 for averaging without duals; pull: r of psi; rate: b.
    """

    def __init__(self, field: list[list[float]], mu: float = MU, pull: float = 0.0, rate: float = 0.0) -> None:
        self.field = torch.tensor(field, dtype=FLOAT64)
        self.mu, self.rate = mu, rate
        self.pull = torch.tensor([0.0, pull], dtype=FLOAT64)

    def __call__(self, z: Tensor, dual: Tensor, centre: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        point = z
        for _ in range(STEPS):
            bracket = self.field @ point + self.mu * (point - z) + dual + self.pull * (point - centre)
            point = point - ETA * bracket
        dual = dual + self.mu * (point - z)
        return point + (dual / self.mu if self.mu else 0.0), dual, centre + self.rate * (z - centre)

    @property
    def radius(self) -> float:
        """By how much the distance to the saddle grows in a round, after many."""
        units = torch.eye(6, dtype=FLOAT64)
        matrix = torch.stack([torch.cat(self(*unit.split(2))) for unit in units], dim=1)
        used = 6 if self.rate else 4 if self.mu else 2
        return float(torch.linalg.eigvals(matrix[:used, :used]).abs().max())


def rotation(beta: float, convex: float = 0.0, concave: float = 0.0) -> list[list[float]]:
    """The field of convex/2 x^2 + beta x y - concave/2 y^2."""
    return [[convex, beta], [-beta, concave]]


def rounds_until(algorithm: Algorithm, each: Game, error: float, most: int) -> int:
    engine = InProcess(each.problem(), algorithm, most)
    return next(t for t, (state, _) in enumerate(played(engine, most), start=1) if each.error(state) < error)


# What it shares with FedMM --------------------------------------------------------------------------------------------

rates = st.floats(1e-3, 0.05)
penalties = st.floats(0.1, 5.0)


@given(games, st.tuples(rates, rates, penalties, penalties), st.integers(1, 6), st.integers(1, 5), st.floats(0.0, 1.0))
def test_without_a_pull_it_is_fedmm_to_the_bit(
    each: Game, values: tuple[float, float, float, float], steps: int, rounds: int, rate: float
) -> None:
    plain = FedMM(*values, dual_decay=0.9, local_steps=steps)
    unheld = SmoothedFedMM(*values, 0.9, steps, smoothing_min=0.0, smoothing_max=0.0, centre_rate=rate)
    one, other = each.play(unheld, rounds), each.play(plain, rounds)
    assert torch.equal(one.z, other.z)
    for name, own in other.clients.items():
        assert torch.equal(one.clients[name]["dual"], own["dual"])


@given(games, st.floats(0.1, 3.0), st.floats(0.05, 1.0))
@settings(max_examples=8)
def test_it_rests_where_fedmm_rests(each: Game, pull: float, rate: float) -> None:
    # There F_i + dual_i = 0 and the centre is the point itself, so that no pull is left.
    algorithm = SmoothedFedMM(0.05, 0.05, 2.0, 2.0, local_steps=10, smoothing_max=pull, centre_rate=rate)
    saddle = each.saddle
    resting = FederatedState(
        0,
        algorithm.init_server(saddle),
        {
            name: {"dual": -client.field(saddle), "centre": saddle}
            for name, client in zip(each.names, each.clients, strict=True)
        },
    )
    after, _ = InProcess(each.problem(), algorithm, 1).run_round(resting)
    torch.testing.assert_close(after.z, saddle, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("pull", "rate", "plain", "smoothed"), [(0.5, 0.2, 80, 81), (0.5, 0.1, 80, 157), (1.0, 0.2, 80, 101)]
)
def test_it_reaches_the_recorded_games_saddle_and_this_is_the_cost(
    pull: float, rate: float, plain: int, smoothed: int
) -> None:
    # M = 20, eta = 0.01, mu = 1: rounds until the distance is a millionth of the saddle's own.
    recorded, algorithm = golden_game(), SmoothedFedMM(smoothing_max=pull, centre_rate=rate)
    assert rounds_until(FedMM(), recorded, 1e-6, 400) == plain
    assert rounds_until(algorithm, recorded, 1e-6, 400) == smoothed
    assert recorded.error(recorded.play(algorithm, 400)) < 1e-10


def test_its_duals_become_minus_the_clients_fields_and_its_centres_the_saddle() -> None:
    recorded = golden_game()
    state = recorded.play(SmoothedFedMM(smoothing_max=0.5, centre_rate=0.2), 400)
    for name, client in zip(recorded.names, recorded.clients, strict=True):
        own = state.clients[name]
        torch.testing.assert_close(own["dual"], -client.field(recorded.saddle), rtol=0, atol=1e-9)
        torch.testing.assert_close(own["centre"], recorded.saddle, rtol=0, atol=1e-9)


# What travels ---------------------------------------------------------------------------------------------------------


def test_neither_dual_nor_centre_travels() -> None:
    z = torch.zeros(3, dtype=FLOAT64)
    algorithm, plain = SmoothedFedMM(), FedMM()
    layout = game((1, 1, 1, 0, 0)).layout
    own = algorithm.init_client(z[:2])
    assert own.keys() == {"dual", "centre"}
    upload, after = algorithm.finish(z[:2], {"z": z[:2]}, own, algorithm.coefficients(layout, 0, 1))
    assert upload.keys() == {"z"}
    assert after.keys() == own.keys()
    assert algorithm.broadcast(algorithm.init_server(z)).keys() == plain.broadcast(plain.init_server(z)).keys() == {"z"}


def test_it_costs_the_bytes_of_fedmm() -> None:
    recorded = golden_game()
    (_, one), (_, other) = (
        next(played(InProcess(recorded.problem(), each, 1), 1)) for each in (SmoothedFedMM(), FedMM())
    )
    assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)


def test_every_client_keeps_the_same_centre() -> None:
    # It follows what the server sent and nothing else, so that nobody has to send it.
    state = golden_game().play(SmoothedFedMM(), 7)
    first, *others = (own["centre"] for own in state.clients.values())
    assert all(torch.equal(first, other) for other in others)


# Where FedMM is not steady --------------------------------------------------------------------------------------------

OPPOSITE = [(0.0, 0.2, 0.0, 1.0, -1.0), (0.0, 0.2, 0.0, -1.0, 1.0)]
"""Bilinear, with opposite linear terms: f = 0.2 x y +- (x + y)."""

CONVEX = [(0.2, 0.2, 0.0, 2.0, 1.0), (0.0, 0.2, 0.0, -1.0, -1.5)]
"""The mean is convex in x and linear in y: 0.05 x^2 + 0.2 x y + 0.5 x + 0.25 y."""


@pytest.mark.parametrize(
    ("algorithm", "plain"),
    [
        (FedAvgGDA(), Round(rotation(0.2), mu=0.0)),
        (FedMM(), Round(rotation(0.2))),
        (FedMM(penalty_min=2.0, penalty_max=2.0), Round(rotation(0.2), mu=2.0)),
        (STEADY, Round(rotation(0.2), pull=0.5, rate=0.1)),
    ],
    ids=["fedavg_gda", "fedmm", "larger penalty", "smoothed"],
)
def test_what_clients_do_not_share_cancels_in_the_mean(algorithm: Algorithm, plain: Round) -> None:
    # Their fields differ by a constant, so that means go their way whatever the single clients do.
    start = torch.tensor([1.0, -0.5], dtype=FLOAT64)
    begun = Game([_shifted(client, start) for client in game(*OPPOSITE).clients])
    z, dual, centre = start, torch.zeros_like(start), start
    for _ in range(30):
        z, dual, centre = plain(z, dual, centre)
    torch.testing.assert_close(begun.play(algorithm, 30).z + start, z, rtol=1e-9, atol=1e-9)


def _shifted(client: Quadratic, start: Tensor) -> Quadratic:
    """The same function of the distance from ``start``, as games begin at 0."""
    offset = client.field(start)
    return replace(client, a=offset[:1], c=offset[1:])


@pytest.mark.parametrize("beta", [0.01, 0.02, 0.04])
def test_momentum_makes_fedmm_leave_a_rotation_as_fast_as_derived(beta: float) -> None:
    derived = math.sqrt(1 + (beta / MU) ** 2 * (2 / A - 3))
    measured = Round(rotation(beta)).radius
    assert measured - 1 == pytest.approx(derived - 1, rel=0.2)
    assert measured > 1


@pytest.mark.parametrize("rho", [0.02 + 0.0j, 0.01 + 0.02j, 0.03j])
def test_the_servers_recursion_is_the_one_derived(rho: complex) -> None:
    trace, determinant = 2 - A - 2 * A * rho / MU, 1 - A - A * rho / MU
    roots = [(trace + sign * (trace**2 - 4 * determinant) ** 0.5) / 2 for sign in (1, -1)]
    measured = Round(rotation(rho.imag, rho.real, rho.real)).radius
    assert measured == pytest.approx(max(map(abs, roots)), abs=2e-3 * abs(rho) + abs(rho) ** 2)


def test_a_larger_penalty_only_makes_it_leave_more_slowly() -> None:
    found = [Round(rotation(0.2), mu).radius for mu in (1.0, 2.0, 4.0)]
    assert found == sorted(found, reverse=True)
    assert min(found) > 1


@pytest.mark.parametrize(
    ("convex", "averaging", "plain", "steady"), [(0.0, 1.00004, 1.0548, 0.9915), (0.1, 0.9901, 1.0286, 0.9425)]
)
def test_a_pull_to_a_slow_centre_brings_back_what_momentum_drives_out(
    convex: float, averaging: float, plain: float, steady: float
) -> None:
    field = rotation(0.2, convex)
    measured = [Round(field, 0.0).radius, Round(field).radius, Round(field, pull=0.5, rate=0.1).radius]
    assert measured == pytest.approx([averaging, plain, steady], abs=1e-4)


def test_fedmm_runs_away_from_the_saddle_that_smoothing_finds_and_averaging_misses() -> None:
    convex = game(*CONVEX)
    assert convex.saddle.tolist() == pytest.approx([-1.25, -1.875])  # 0.2 x + 0.25 = 0 and 0.1 x + 0.2 y + 0.5 = 0
    assert convex.error(convex.play(FedMM(), 600)) > 1e3
    assert convex.error(convex.play(STEADY, 600)) < 1e-9
    assert convex.error(convex.play(FedAvgGDA(), 600)) > 1e-2


def test_a_centre_that_never_moves_holds_psi_for_ever() -> None:
    convex = game(*CONVEX)
    assert convex.error(convex.play(replace(STEADY, centre_rate=0.0), 600)) > 0.1


def test_a_centre_that_follows_at_once_is_no_hold() -> None:
    assert Round(rotation(0.2), pull=0.5, rate=1.0).radius > 1.02
