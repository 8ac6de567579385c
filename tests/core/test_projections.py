"""Projections against what makes a point the nearest, and runs that stay in their sets."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import FLOAT64, generator, played, random_game
from torch import Tensor

import fedmm
from fedmm import Ball, Box, FedmmError, HalfLine, Simplex
from fedmm.core.layout import Layout
from fedmm.core.projections import ConvexSet, Projection
from fedmm.engines.in_process import InProcess

SETS = [Simplex(), Simplex(2.5), Box(-0.3, 0.4), Box(high=0.2), HalfLine(), HalfLine(-0.5), Ball(), Ball(0.2)]


def farthest(each: ConvexSet, g: Tensor) -> Tensor:
    """The largest <g, q> over the set, for each g ``[..., n]``; infinite where the set goes on in that direction."""
    if isinstance(each, Simplex):
        return each.total * g.amax(dim=-1)
    if isinstance(each, Ball):
        return each.radius * g.norm(dim=-1)
    low, high = getattr(each, "low", -math.inf), getattr(each, "high", math.inf)
    g = torch.where(g.abs() < 1e-12, 0.0, g)  # rounding, of which an infinite side would make much
    return torch.where(g == 0, 0.0, torch.maximum(g * low, g * high)).sum(dim=-1)


def inside(each: ConvexSet, x: Tensor) -> Tensor:
    if isinstance(each, Simplex):
        return (x >= 0).all(dim=-1) & ((x.sum(dim=-1) - each.total).abs() < 1e-12)
    if isinstance(each, Ball):
        return x.norm(dim=-1) <= each.radius + 1e-12
    low, high = getattr(each, "low", -math.inf), getattr(each, "high", math.inf)
    return ((x >= low) & (x <= high)).all(dim=-1)


@pytest.mark.parametrize("each", SETS, ids=repr)
def test_it_is_the_nearest_point(each: ConvexSet) -> None:
    # p is nearest to x, if and only if it is in the set and no q of the set lies further along x - p.
    points = 2.0 * torch.randn(300, 4, generator=generator(0), dtype=FLOAT64)
    found = each.project(points)
    assert inside(each, found).all()
    along = points - found
    torch.testing.assert_close((along * found).sum(dim=-1), farthest(each, along), rtol=0, atol=1e-10)


@pytest.mark.parametrize("each", SETS, ids=repr)
def test_no_point_of_a_fine_search_is_nearer(each: ConvexSet) -> None:
    points = torch.randn(5, 3, generator=generator(4), dtype=FLOAT64)
    found = each.project(points)
    tried = found.unsqueeze(1) + 0.2 * torch.randn(5, 4000, 3, generator=generator(5), dtype=FLOAT64)
    if isinstance(each, Simplex):  # whose points are too few to be met by chance
        tried = tried.abs() * (each.total / tried.abs().sum(dim=-1, keepdim=True))
    chosen = inside(each, tried)
    assert chosen.any(dim=-1).all()
    distances = torch.where(chosen, (tried - points.unsqueeze(1)).norm(dim=-1), math.inf)
    assert (distances.amin(dim=-1) >= (found - points).norm(dim=-1) - 1e-12).all()


@pytest.mark.parametrize("each", SETS, ids=repr)
def test_what_is_inside_stays_and_what_is_not_is_nearer_to_every_point_inside(each: ConvexSet) -> None:
    # A projection onto a convex set shortens distances, and done twice is done once.
    points = 3.0 * torch.randn(200, 4, generator=generator(1), dtype=FLOAT64)
    found = each.project(points)
    torch.testing.assert_close(each.project(found), found, rtol=0, atol=1e-14)
    assert (torch.cdist(found, found) <= torch.cdist(points, points) + 1e-6).all()


def test_points_of_the_simplex_are_weights() -> None:
    points = 100.0 * torch.randn(50, 7, generator=generator(2), dtype=FLOAT64)
    found = Simplex().project(points)
    torch.testing.assert_close(found.sum(dim=-1), torch.ones(50, dtype=FLOAT64), rtol=0, atol=1e-13)
    assert (found >= 0).all()
    assert Simplex().project(torch.tensor([0.2, -5.0])).tolist() == pytest.approx([1.0, 0.0])
    assert Simplex(3.0).project(torch.tensor([-7.0])).tolist() == [3.0]
    for large in (1e6, 1e30):  # where a total of 1 is less than a rounding
        assert Simplex().project(torch.tensor([large, -large, large / 2])).tolist() == [1.0, 0.0, 0.0]
        assert Simplex().project(torch.tensor([large, large, 0.0])).tolist() == [0.5, 0.5, 0.0]


@pytest.mark.parametrize("each", SETS, ids=repr)
def test_leading_axes_are_so_many_vectors(each: ConvexSet) -> None:
    points = torch.randn(2, 3, 4, generator=generator(3))
    found = each.project(points)
    assert found.dtype == torch.float32
    for place in np.ndindex(2, 3):
        assert torch.equal(each.project(points[place]), found[place])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Box(1.0, 0.0), "the box from 1.0 to 0.0 is empty: low must not be above high"),
        (lambda: Box(math.inf), "is empty"),
        (lambda: Box(high=-math.inf), "is empty"),
        (lambda: Box(math.nan), "low must be a number, not nan"),
        (lambda: Box(high="far"), "high must be a number, not 'far'"),  # type: ignore[arg-type]
        (lambda: HalfLine(math.inf), "is empty"),
        (lambda: Simplex(0.0), "total must be above 0"),
        (lambda: Simplex(-1.0), "total must be above 0, not -1.0"),
        (lambda: Ball(-1.0), "radius must be 0 or more, not -1.0"),
    ],
)
def test_a_set_that_is_empty_is_refused(make: object, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        make()  # type: ignore[operator]


# Groups of parameters -------------------------------------------------------------------------------------------------

LAYOUT = Layout({"body.w": (2,), "body.b": (1,), "top": (1,)}, {"critic": (2,)}, dtype=FLOAT64)


def test_all_coordinates_of_a_group_are_held_together() -> None:
    z = torch.tensor([3.0, 0.0, 4.0, 9.0, -2.0, 2.0], dtype=FLOAT64)
    held = Projection(LAYOUT, {"body": Ball(1.0), "critic": HalfLine()})(z)
    torch.testing.assert_close(held, torch.tensor([0.6, 0.0, 0.8, 9.0, 0.0, 2.0], dtype=FLOAT64))


def test_the_longest_group_counts_and_a_star_is_the_rest() -> None:
    z = torch.full((6,), 5.0, dtype=FLOAT64)
    held = Projection(LAYOUT, {"body": Box(0, 1), "body.b": Box(0, 2), "*": Box(0, 3)})(z)
    assert held.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        ({"tail": Ball()}, "no parameter belongs to group 'tail'; the groups are body, critic, top"),
        ({"body": 1.0}, "the set of group 'body' must be an instance of fedmm's ConvexSet"),
    ],
)
def test_a_group_that_is_not_there_or_no_set_is_refused(sets: dict[str, ConvexSet], message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        Projection(LAYOUT, sets)


# Runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", fedmm.ALGORITHMS.values(), ids=fedmm.ALGORITHMS)
def test_every_algorithm_stays_in_the_set(kind: type[fedmm.Algorithm]) -> None:
    def pushed(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return -10.0 * x.sum() + (x * y).sum()

    start = (torch.full((3,), 9.0, dtype=FLOAT64), torch.zeros(3, dtype=FLOAT64))
    sets = {"omega": Simplex(), "psi": Box(-0.5, 0.5)}
    found = fedmm.solve([pushed, pushed], start, kind(0.1, 0.1), 5, constraints=sets)
    assert float(found.omega.sum()) == pytest.approx(1.0, abs=1e-12)
    assert float(found.omega.min()) >= 0
    assert float(found.psi.abs().max()) <= 0.5


@pytest.mark.parametrize("kind", [fedmm.RestrainedFedMM, fedmm.AscentFedMM])
def test_an_average_that_predicts_stays_in_the_set(kind: type[fedmm.FedMM]) -> None:
    game = random_game(1, sizes=(1, 1))
    box = Box(high=float(game.saddle[0]) - 1.0)
    problem = replace(game.problem(), constraints={"omega": box}, held_locally=False)
    states = [state for state, _ in played(InProcess(problem, kind(0.1, 0.1), 200), 200)]
    assert float(states[-1].z[0]) == box.high
    assert all(float(state.model[0]) <= box.high for state in states)
    if kind is fedmm.RestrainedFedMM:
        assert all(torch.equal(state.model, state.z) for state in states)


def test_fedmm_and_extragradient_solve_a_matrix_game() -> None:
    # Rock, paper, scissors, of which one client knows one half of the payoffs: both players mix equally.
    payoff = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]], dtype=FLOAT64)
    halves = [2.0 * payoff.clamp_min(0.0), 2.0 * payoff.clamp_max(0.0)]
    start = tuple(torch.tensor([0.6, 0.3, 0.1], dtype=FLOAT64) for _ in range(2))
    sets = {"omega": Simplex(), "psi": Simplex()}
    players = [lambda x, y, a=half: x @ a @ y for half in halves]
    found = fedmm.solve(players, start, fedmm.Extragradient(0.2, 0.2, 1), 1500, constraints=sets)
    for mixed in (found.omega, found.psi):
        torch.testing.assert_close(mixed, torch.full((3,), 1 / 3, dtype=FLOAT64), rtol=0, atol=1e-4)


def test_a_saddle_on_the_border_is_reached() -> None:
    # The mean's saddle is outside: held at omega <= 0, psi is the best answer there.
    game = random_game(1, sizes=(1, 1))
    mean = {name: torch.stack([getattr(q, name) for q in game.clients]).mean(0) for name in "ABCac"}
    free = game.saddle
    box = Box(high=float(free[0]) - 1.0)
    algorithm = fedmm.FedMM(0.05, 0.05, 1.0, 1.0, local_steps=5)
    found = fedmm.solve(game.clients, game.start, algorithm, 600, constraints={"omega": box})
    assert float(found.omega[0]) == pytest.approx(box.high, abs=1e-9)
    best = (mean["B"].T @ found.omega - mean["c"]) / mean["C"][0, 0]
    torch.testing.assert_close(found.psi, best, rtol=0, atol=1e-7)


def test_constraints_that_are_no_table_are_refused() -> None:
    game = random_game(1)
    with pytest.raises(FedmmError, match="constraints must be a dict of a set for each group of parameters, not Ball"):
        fedmm.solve(game.clients, game.start, fedmm.FedMM(), 1, constraints=Ball())  # type: ignore[arg-type]
