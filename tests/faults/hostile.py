"""Measure each defence's error with ten clients of two kinds, of which two are hostile; as a script, print a table."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.exchanges import Hostile
from problems import FLOAT64, FieldClient, Game, Quadratic, generator, random_game

from fedmm import CoordinateMedian, Diverged, FedAvgGDA, FedMM, GeometricMedian, ScaffoldGDA, Terms, TrimmedMean
from fedmm.core.algorithm import Algorithm
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.core.seeding import key
from fedmm.remote.messaging import Messaging

ROUNDS, LAST = 200, 50
NOISE = 0.5
RATES = {"lr_min": 0.1, "lr_max": 0.1, "local_steps": 5}
METHODS: tuple[Algorithm, ...] = (FedMM(**RATES), ScaffoldGDA(**RATES), FedAvgGDA(**RATES))


def two_kinds(seed: int, spread: float = 0.3) -> Game:
    """Return five clients with one quadratic and five with another, with slightly different linear terms."""
    random = generator(seed + 1)

    def near(vector: Tensor) -> Tensor:
        return vector + spread * torch.randn(len(vector), dtype=FLOAT64, generator=random)

    kinds = random_game(seed, clients=2).clients
    return Game([Quadratic(q.A, q.B, q.C, near(q.a), near(q.c)) for q in kinds for _ in range(5)])


def normal(size: int, *parts: int | str) -> Tensor:
    return torch.randn(size, dtype=FLOAT64, generator=generator(key(*parts) % 2**31))


@dataclass(frozen=True)
class NoisyClient(FieldClient):
    """A client whose field is noisy as if computed from batches; the noise depends on name, round and step."""

    t: int = 0

    def open_round(self, t: int, rounds: int, steps: int, statistics: Statistics) -> FieldClient:
        return replace(self, t=t)

    def field(self, z: Tensor, step: int) -> Tensor:
        return self.signed_field(z) + NOISE * normal(len(z), "noise", self.name, self.t, step)


Attack = Callable[[Tensor, int, str], Tensor]
ATTACKS: dict[str, Attack | None] = {
    "nobody": None,
    "garbage": lambda update, t, client: 1e3 * normal(len(update), "garbage", client, t),
    "flipped": lambda update, t, client: -update,
    "flipped x 10": lambda update, t, client: -10.0 * update,
    "scaled x 100": lambda update, t, client: 100.0 * update,
}
DEFENCES: dict[str, Terms] = {
    "mean": Terms(),
    "mean, `max_update_norm` 5": Terms(max_update_norm=5.0),
    "mean, `max_update_ratio` 3": Terms(max_update_ratio=3.0),
    "median": Terms(aggregation=CoordinateMedian()),
    "trimmed mean": Terms(aggregation=TrimmedMean(0.2)),
    "geometric median": Terms(aggregation=GeometricMedian()),
}
HOSTILE = (0, 5)


def error(
    seed: int, algorithm: Algorithm, terms: Terms, attack: str, *, noisy: bool = True, grouped: bool = True
) -> float:
    """Return the last rounds' mean distance from the honest clients' saddle, relative to its norm; inf if diverged."""
    game = two_kinds(seed)
    kind = NoisyClient if noisy else FieldClient
    clients = [kind(name, client.field) for name, client in zip(game.names, game.clients, strict=True)]
    groups = {name: "source" if place < 5 else "target" for place, name in enumerate(game.names)} if grouped else {}
    problem = FederatedProblem(game.layout, torch.cat(game.start), clients, groups=groups)
    what = ATTACKS[attack]
    bad = [] if what is None else [game.names[place] for place in HOSTILE]
    honest = Game([client for name, client in zip(game.names, game.clients, strict=True) if name not in bad])
    engine = Messaging(problem, algorithm, ROUNDS, terms, None if what is None else Hostile(bad, what))
    state, errors = engine.start(), []
    try:
        while state.round < ROUNDS:
            state, _ = engine.run_round(state)
            errors.append(honest.error(state))
    except Diverged:
        return torch.inf
    return sum(errors[-LAST:]) / LAST


def mean_error(seeds: Sequence[int], algorithm: Algorithm, terms: Terms, attack: str, **options: bool) -> float:
    return sum(error(seed, algorithm, terms, attack, **options) for seed in seeds) / len(seeds)


def shown(value: float) -> str:
    if value > 10:
        return "beyond 1000 %"
    return f"{100 * value:.0f} %" if value > 0.995 else f"{100 * value:.2g} %"


def print_table(seeds: Sequence[int] = range(3)) -> None:
    print("| | | " + " | ".join(ATTACKS) + " |")
    print("|---|---|" + "---|" * len(ATTACKS))
    for algorithm in METHODS:
        for name, terms in DEFENCES.items():
            cells = [shown(mean_error(seeds, algorithm, terms, attack)) for attack in ATTACKS]
            print(f"| `{algorithm.name}` | {name} | " + " | ".join(cells) + " |", flush=True)
        for name in ("median", "geometric median"):
            cells = [shown(mean_error(seeds, algorithm, DEFENCES[name], attack, grouped=False)) for attack in ATTACKS]
            print(f"| `{algorithm.name}` | {name}, without groups | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print_table()
