"""The leaderboard's games, whose saddles are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar

import torch
from torch import Tensor

from fedmm.core.errors import require
from fedmm.core.seeding import key, normal
from fedmm.core.validation import not_negative, within
from fedmm.leaderboard.play import Game, Played
from fedmm.leaderboard.trials import Goal

_CLIENTS = 5


def draw(*parts: int | str, shape: tuple[int, ...]) -> Tensor:
    """Draw standard normal numbers in float64, as a function of ``parts``, which name their purpose."""
    return normal(key("leaderboard", *parts), torch.arange(torch.Size(shape).numel())).reshape(shape)


def with_all(of_batches: Tensor) -> Tensor:
    """Append to batch means ``[clients, batches, ...]`` their mean, as one more batch of all rows."""
    return torch.cat([of_batches, of_batches.mean(dim=1, keepdim=True)], dim=1)


def affine_game(J: Tensor, k: Tensor, omega: int, measure: Callable[[Tensor], float] | None = None) -> Game:
    """Return the game of clients with fields J_i z + k_i, starting from 0.

    J: ``[clients, batches, size, size]``; k: ``[clients, batches, size]``; omega: the size of its part of z.
    measure: the metric, by default the distance to the saddle as a share of the start's.
    """
    saddle, each_J, each_k = affine_saddle(J, k), with_all(J), with_all(k)

    def field(i: int, z: Tensor, batch: int) -> Tensor:
        return torch.addmv(each_k[i, batch], each_J[i, batch], z)

    def distance(z: Tensor) -> float:
        return float((z - saddle).norm() / saddle.norm())

    start = torch.zeros_like(saddle)
    fields = [partial(field, i) for i in range(len(J))]
    return Game(fields, (start[:omega], start[omega:]), measure or distance, J.shape[1])


def affine_saddle(J: Tensor, k: Tensor) -> Tensor:
    """Return the point where the mean of the fields J z + k is 0."""
    saddle: Tensor = torch.linalg.solve(J.mean(dim=(0, 1)), -k.mean(dim=(0, 1)))
    return saddle


@dataclass(frozen=True)
class QuadraticGame(Played):
    """f_i = x'A_i x / 2 + x'B_i y - y'C_i y / 2 + a_i'x - c_i'y, with x and y in R^10.

    The means of A_i and C_i have eigenvalues from 1 / kappa to 1, that of B_i has singular values of 1/2. Clients
    differ in all three by h / (1 + h), which keeps each f_i convex in x and concave in y, and in a_i and c_i by h.
    heterogeneity: h.
    """

    name: ClassVar[str] = "quadratic"
    goal: ClassVar[Goal] = Goal("distance to the saddle, as a share of the start's", 1e-3)
    rates: ClassVar[tuple[float, float]] = (0.01, 1.0)

    rounds: int
    kappa: float = 20.0
    heterogeneity: float = 1.0

    def __post_init__(self) -> None:
        within("kappa", self.kappa, 1.0, 1e6)
        not_negative("heterogeneity", self.heterogeneity)

    @property
    def title(self) -> str:
        return f"quadratic game, kappa {self.kappa:g}, heterogeneity {self.heterogeneity:g}"

    def build(self, seed: int) -> Game:
        return _quadratic(self.kappa, self.heterogeneity, seed)


@cache
def _quadratic(kappa: float, heterogeneity: float, seed: int, size: int = 10) -> Game:
    def drawn(*parts: int | str) -> Tensor:
        return draw("quadratic", seed, *parts, shape=(size, size))

    spread = heterogeneity / (1 + heterogeneity)
    spectrum = torch.logspace(-1, 0, size, base=kappa, dtype=torch.float64)

    def apart(name: str) -> Tensor:
        """Return a symmetric matrix for each client, with norms of at most 1 and mean 0."""
        matrices = torch.stack([drawn(name, client) for client in range(_CLIENTS)])
        matrices = matrices + matrices.mT
        matrices = matrices - matrices.mean(dim=0)
        most: Tensor = torch.linalg.matrix_norm(matrices, ord=2).max()
        return matrices / most

    def definite(name: str) -> Tensor:
        basis: Tensor = torch.linalg.qr(drawn(name))[0]
        root = basis * spectrum.sqrt()
        return root @ (torch.eye(size, dtype=torch.float64) + spread * apart(name)) @ root.mT

    A, C = definite("A"), definite("C")
    B = 0.5 * torch.linalg.qr(drawn("B"))[0] + 0.5 * spread * apart("B")
    a, c = (
        draw("quadratic", seed, name, shape=(size,))
        + heterogeneity * draw("quadratic", seed, name, "apart", shape=(_CLIENTS, size))
        for name in ("a", "c")
    )

    J = torch.cat([torch.cat([A, B], dim=2), torch.cat([-B.mT, C], dim=2)], dim=1)
    return affine_game(J.unsqueeze(1), torch.cat([a, c], dim=1).unsqueeze(1), size)


@dataclass(frozen=True)
class RobustLeastSquares(Played):
    """f_i = ||A_i x - b_i - y||^2 / 2 - lambda ||y||^2 / 2: fit x to the worst shift y of the targets.

    x is in R^10 and y in R^20, one number per row. A_i is normal, with feature scales from 1 to 0.2 that also vary
    between clients; b_i is A_i times coefficients specific to the client, plus noise. lambda must be above 1.
    """

    name: ClassVar[str] = "robust_least_squares"
    goal: ClassVar[Goal] = Goal("distance to the saddle, as a share of the start's", 1e-3)
    rates: ClassVar[tuple[float, float]] = (0.01, 1.0)

    rounds: int
    penalty: float = 2.0

    def __post_init__(self) -> None:
        require(self.penalty > 1, f"penalty must be above 1, not {self.penalty!r}: f_i would not be concave in y")

    @property
    def title(self) -> str:
        return f"robust least squares, lambda {self.penalty:g}"

    def build(self, seed: int) -> Game:
        return _robust_least_squares(self.penalty, seed)


@cache
def _robust_least_squares(penalty: float, seed: int, rows: int = 20, size: int = 10) -> Game:
    def drawn(name: str, *shape: int) -> Tensor:
        return draw("robust_least_squares", seed, name, shape=shape)

    scales = (0.5 * drawn("scales", _CLIENTS, 1, size)).exp() * torch.logspace(0, -0.7, size, dtype=torch.float64)
    A = drawn("A", _CLIENTS, rows, size) * scales / rows**0.5
    wanted = drawn("x", size) + 0.5 * drawn("apart", _CLIENTS, size)
    b = torch.einsum("irs,is->ir", A, wanted) + 0.1 * drawn("noise", _CLIENTS, rows)

    own = (penalty - 1) * torch.eye(rows, dtype=torch.float64).expand(_CLIENTS, rows, rows)
    J = torch.cat([torch.cat([A.mT @ A, -A.mT], dim=2), torch.cat([A, own], dim=2)], dim=1)
    k = torch.cat([torch.einsum("irs,ir->is", -A, b), -b], dim=1)
    return affine_game(J.unsqueeze(1), k.unsqueeze(1), size)


@dataclass(frozen=True)
class GaussianGan(Played):
    """A generator of a Gaussian in the plane, G(e) = m + R e, against a critic D(v) = l'v + v'Qv.

    f_i = mean D(v) over the client's points v - mean D(G(e)) over as many e - (||l||^2 + ||Q||^2) / 2, on batches;
    omega is [m R] and psi is [l Q]. Each client's points surround a different centre. At the saddle psi is 0, and m
    and RR' are the mean and the covariance of all points; each client's e are shifted and scaled to have exactly mean 0
    and covariance I. f_i is not convex in R.
    """

    name: ClassVar[str] = "gaussian_gan"
    title: ClassVar[str] = "Gaussian GAN in the plane"
    goal: ClassVar[Goal] = Goal("error of the generator's mean and covariance, as a share of the start's", 0.05)
    rates: ClassVar[tuple[float, float]] = (0.003, 0.3)

    rounds: int

    def build(self, seed: int) -> Game:
        return _gaussian_gan(seed)


@cache
def _gaussian_gan(seed: int, rows: int = 256, batches: int = 4) -> Game:
    points, noise = gan_rows(seed, rows)
    ahead = torch.cat([torch.ones_like(noise[..., :1]), noise], dim=-1)
    first = torch.cat([points.unsqueeze(-1), points.unsqueeze(-1) * points.unsqueeze(-2)], dim=-1)
    second = ahead.unsqueeze(-1) * ahead.unsqueeze(-2)
    each_V, each_E = (
        with_all(moments.reshape(_CLIENTS, batches, -1, *moments.shape[2:]).mean(dim=2)) for moments in (first, second)
    )
    pooled = points.reshape(-1, 2)
    mean = pooled.mean(dim=0)
    covariance = (pooled - mean).mT @ (pooled - mean) / len(pooled)

    def field(i: int, z: Tensor, batch: int) -> Tensor:
        V, E = each_V[i, batch], each_E[i, batch]  # means of [v vv'], and of (1, e)(1, e)'
        G, P = z[:6].view(2, 3), z[6:].view(2, 3)
        Q = P[:, 1:]
        K = G @ E  # the mean of G(e) (1, e)'
        descent = -torch.addr((Q + Q.mT) @ K, P[:, 0], E[0])
        ascent = P - V + torch.cat([K[:, :1], K @ G.mT], dim=1)
        return torch.cat([descent.view(-1), ascent.view(-1)])

    def error(z: Tensor) -> float:
        G = z[:6].view(2, 3)
        apart = G[:, 1:] @ G[:, 1:].mT - covariance
        return float(torch.cat([G[:, 0] - mean, apart.flatten()]).norm())

    start = torch.cat([torch.zeros(2, 1), 0.3 * torch.eye(2)], dim=1).double(), torch.zeros(2, 3).double()
    whole = error(torch.cat([side.flatten() for side in start]))
    return Game([partial(field, i) for i in range(_CLIENTS)], start, lambda z: error(z) / whole, batches)


def gan_rows(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    """Return the clients' points and noise, each ``[clients, rows, 2]``."""

    def drawn(name: str, *shape: int) -> Tensor:
        return draw("gaussian_gan", seed, name, shape=shape)

    centres = torch.tensor([1.0, -0.5]) + drawn("centres", _CLIENTS, 1, 2)
    points = centres + 0.5 * drawn("points", _CLIENTS, rows, 2) @ torch.tensor([[1.3, 0.3], [0.3, 1.3]]).double()
    noise = drawn("noise", _CLIENTS, rows, 2)
    noise = noise - noise.mean(dim=1, keepdim=True)
    root = torch.linalg.cholesky(noise.mT @ noise / rows)
    return points, noise @ torch.linalg.inv(root).mT
