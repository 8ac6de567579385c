"""The area under the ROC curve as a minimax problem, on digits that are dealt to clients in order of label."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, Literal

import torch
from sklearn.datasets import load_digits
from torch import Tensor

from fedmm.core.seeding import key, permutation
from fedmm.data.datasets.mnist_m import read_mnist
from fedmm.data.sources import sources
from fedmm.leaderboard.games import affine_game, affine_saddle
from fedmm.leaderboard.play import Game, Played
from fedmm.leaderboard.trials import Goal

_CLIENTS = 5
_TEST_ROWS = 400
_BATCHES = {"digits": 4, "mnist": 10}
"""Batches per client, of about 70 rows for digits and 1,200 for MNIST."""
_DECAY = 1e-3
_TITLES = {"digits": "AUC on label-sorted scikit-learn digits", "mnist": "AUC on label-sorted MNIST"}


@dataclass(frozen=True)
class LabelSortedAuc(Played):
    """A linear score h(x) = w'x that should rank the digits 5 to 9 above 0 to 4; each client holds two digits.

    The loss is the square surrogate of Ying et al. (2016), minimised over (w, a, b), maximised over alpha, on batches:

        (1 - p) (h - a)^2 [y = 1] + p (h - b)^2 [y = -1] + 2 (1 + alpha) h (p [y = -1] - (1 - p) [y = 1])
        - p (1 - p) alpha^2 + 0.0005 ||w||^2,

    where p is the share of positives. Pixels are centred, and scaled so that their covariance has norm 1.
    """

    rates: ClassVar[tuple[float, float]] = (0.01, 1.0)

    rounds: int
    data: Literal["digits", "mnist"]

    @property
    def name(self) -> str:
        return f"auc_{self.data}"

    @property
    def title(self) -> str:
        return _TITLES[self.data]

    @property
    def goal(self) -> Goal:
        return Goal("AUC on test rows, as a share of the saddle's", 0.998, higher=True)

    def require_ready(self) -> None:
        if self.data == "mnist":
            sources()["mnist"].folder("mnist_m")

    def build(self, seed: int) -> Game:
        return _auc(self.data, seed)


@cache
def _mnist() -> tuple[Tensor, ...]:
    found = read_mnist(sources()["mnist"], "mnist_m")
    return tuple(torch.from_numpy(array.copy()) for part in ("train", "test") for array in found[part])


def _rows(data: str, seed: int) -> tuple[Tensor, ...]:
    """Return training rows and labels, in an order drawn from the seed, and test rows and labels."""
    if data == "digits":
        bunch = load_digits()
        x, y = torch.from_numpy(bunch.data / 16), torch.from_numpy(bunch.target)
        order = permutation(key(seed, "auc"), len(y))
        x, y = x[order], y[order]
        return x[_TEST_ROWS:], y[_TEST_ROWS:], x[:_TEST_ROWS], y[:_TEST_ROWS]
    x, y, test_x, test_y = _mnist()
    order = permutation(key(seed, "auc"), len(y))
    return x[order].flatten(1).float() / 255, y[order], test_x.flatten(1).float() / 255, test_y


@lru_cache(maxsize=1)  # all of MNIST
def _auc(data: str, seed: int) -> Game:
    x, y, test_x, test_y = _rows(data, seed)
    mean = x.mean(dim=0)
    scale = torch.linalg.matrix_norm((x - mean).mT @ (x - mean) / len(x), ord=2).sqrt()
    x, test_x = (x - mean) / scale, (test_x - mean) / scale
    batches = _BATCHES[data]
    held = len(y) // (_CLIENTS * batches)
    shards = torch.argsort(y, stable=True)[: _CLIENTS * batches * held].reshape(_CLIENTS, batches * held)
    shuffled = torch.stack([shard[permutation(key(seed, "auc", i), len(shard))] for i, shard in enumerate(shards)])
    shuffled = shuffled.view(_CLIENTS, batches, held)
    J, k = auc_fields(x[shuffled], y[shuffled] >= 5)

    def auc(z: Tensor) -> float:
        return area(test_x @ z[:-3], test_y >= 5)

    best = auc(affine_saddle(J, k))
    return affine_game(J, k, J.shape[-1] - 1, lambda z: auc(z) / best)


def auc_fields(x: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Return J and k of the fields J z + k at z = (w, a, b, alpha). x: ``[clients, batches, rows, features]``."""
    p = float(positive.double().mean())
    up = positive.to(x.dtype).unsqueeze(-1)
    weight = 2 * (1 - p) * up + 2 * p * (1 - up)
    ahead = torch.cat([x, -up, up - 1], dim=-1)  # times (w, a, b): the score minus a or b
    near = ahead.mT @ (weight * ahead) / x.shape[2]
    size = x.shape[-1]
    near[..., :size, :size] += _DECAY * torch.eye(size, dtype=x.dtype)
    ranked = torch.nn.functional.pad((weight * (1 - 2 * up) * x).mean(dim=2), (0, 2))
    own = torch.full_like(ranked[..., :1], 2 * p * (1 - p))
    over = torch.cat([near, ranked.unsqueeze(-1)], dim=-1)
    under = torch.cat([-ranked, own], dim=-1).unsqueeze(-2)
    return torch.cat([over, under], dim=-2), torch.nn.functional.pad(ranked, (0, 1))


def area(score: Tensor, positive: Tensor) -> float:
    """Return the share of pairs of a positive and a negative that the score ranks correctly; ties count half."""
    below, above = score[~positive].sort().values, score[positive]
    ranked = sum(torch.searchsorted(below, above, right=right).double().mean() for right in (False, True))
    return float(ranked / (2 * len(below)))
