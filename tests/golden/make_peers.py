"""Record three rounds of federated-minimax's optimisers on a small game: ``python make_peers.py --checkout PATH``.

PATH is a checkout of github.com/xjiajiahao/federated-minimax. Its classes are called as in its own programs with full
participation, but in one process. Only numbers are kept, in peers.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROUNDS, STEPS, RATE, STAGE, PULL, SERVER_RATE = 3, 4, 0.1, 2, 0.3, 0.8
CLIENTS = [
    {"bend": [1.0, 0.4], "coupling": [0.7, -0.5], "dip": [0.6, 0.9], "pull_x": [0.5, -1.0], "pull_y": [0.2, 0.3]},
    {"bend": [0.2, 1.3], "coupling": [-0.3, 0.8], "dip": [1.1, 0.2], "pull_x": [-0.9, 0.4], "pull_y": [0.6, -0.7]},
    {"bend": [0.8, 0.6], "coupling": [0.5, 0.4], "dip": [0.3, 0.7], "pull_x": [0.1, 0.8], "pull_y": [-0.5, 0.1]},
]
START = ([0.3, -0.2], [0.1, 0.4])


class Game:
    """A point (x, y); f_i = bend x^2 / 2 + coupling x y - dip y^2 / 2 + pull_x x + pull_y y, summed over both."""

    def __init__(self) -> None:
        self.x, self.y = (torch.tensor(each, dtype=torch.float64, requires_grad=True) for each in START)

    def lists(self) -> tuple[list[Tensor], list[Tensor]]:
        return [self.x], [self.y]

    def set(self, other: Game) -> None:
        for own, others in zip((self.x, self.y), (other.x, other.y), strict=True):
            own.data.copy_(others.data)

    def backward(self, client: dict[str, list[float]]) -> None:
        c = {name: torch.tensor(values, dtype=torch.float64) for name, values in client.items()}
        x, y = self.x, self.y
        f = c["bend"] * x * x / 2 + c["coupling"] * x * y - c["dip"] * y * y / 2 + c["pull_x"] * x + c["pull_y"] * y
        f.sum().backward()

    def numbers(self) -> list[float]:
        return [*self.x.tolist(), *self.y.tolist()]


def mean(points: list[Game]) -> Game:
    found = Game()
    found.x.data = torch.stack([point.x.data for point in points]).mean(dim=0)
    found.y.data = torch.stack([point.y.data for point in points]).mean(dim=0)
    return found


def averaged(work: Callable[[Game, dict[str, list[float]], int], Game]) -> list[list[float]]:
    """Run a method that sends only points; return the server's points. work: a client's part of a round."""
    server, found = Game(), []
    for t in range(ROUNDS):
        server = mean([work(copy.deepcopy(server), client, t) for client in CLIENTS])
        found.append(server.numbers())
    return found


def nothing() -> None:
    """The projection without constraints."""


def coda_plus(algorithm: Any) -> list[list[float]]:
    reference = Game()

    def work(point: Game, client: dict[str, list[float]], t: int) -> Game:
        if t % STAGE == 0:
            reference.set(point)
        optimiser = algorithm.coda_plus.CODA_Plus(point.lists(), reference.lists(), RATE, PULL, nothing)
        for _ in range(STEPS):
            optimiser.zero_grad()
            point.backward(client)
            optimiser.local_step(t // STAGE)
        return point

    return averaged(work)


def sgda_plus(algorithm: Any) -> list[list[float]]:
    def work(point: Game, client: dict[str, list[float]], t: int) -> Game:
        snapshot = copy.deepcopy(point)
        optimiser = algorithm.local_sgda_plus.Local_SGDA_Plus(point.lists(), snapshot.lists(), RATE, 2 * RATE, nothing)
        optimiser.update_snapshot_model()
        for _ in range(STEPS):
            optimiser.zero_grad()
            point.backward(client)
            snapshot.backward(client)
            optimiser.step()
        return point

    return averaged(work)


def extra_step(algorithm: Any) -> list[list[float]]:
    def work(point: Game, client: dict[str, list[float]], t: int) -> Game:
        ahead = copy.deepcopy(point)
        optimiser = algorithm.extra_step_local_sgd.Extra_Step_Local_SGD(point.lists(), ahead.lists(), RATE, nothing)
        for _ in range(STEPS):
            ahead.set(point)
            optimiser.zero_grad()
            ahead.backward(client)
            optimiser.local_step_first()
            optimiser.zero_grad()
            ahead.backward(client)
            optimiser.local_step_second()
        return point

    return averaged(work)


def codasca(algorithm: Any) -> list[list[float]]:
    server, reference, found = Game(), Game(), []
    controls, control = [zero() for _ in CLIENTS], zero()
    for t in range(ROUNDS):
        if t % STAGE == 0:
            reference.set(server)
        points = []
        for number, client in enumerate(CLIENTS):
            point, old, change = copy.deepcopy(server), copy.deepcopy(server), copy.deepcopy(control)
            change.x.data -= controls[number].x.data
            change.y.data -= controls[number].y.data
            optimiser = algorithm.codasca.CODASCA(
                point.lists(), old.lists(), reference.lists(), change.lists(), RATE, PULL, nothing
            )
            for _ in range(STEPS):
                optimiser.zero_grad()
                point.backward(client)
                optimiser.local_step(t // STAGE)
            optimiser.update_local_old_grad(t // STAGE, STEPS)
            controls[number] = change
            points.append(point)
        control, new = mean(controls), mean(points)
        at_server = algorithm.codasca.CODASCA(
            new.lists(), server.lists(), reference.lists(), control.lists(), SERVER_RATE, PULL, nothing
        )
        at_server.global_step()
        server = new
        found.append(server.numbers())
    return found


def zero() -> Game:
    point = Game()
    point.x.data.zero_()
    point.y.data.zero_()
    return point


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    sys.path.insert(0, str(parser.parse_args().checkout))
    import algorithm  # its package has just been put on the path

    methods = {"CODA_Plus": coda_plus, "CODASCA": codasca, "Extra_Step_Local_SGD": extra_step}
    methods["Local_SGDA_Plus"] = sgda_plus
    setting = {"rate": RATE, "steps": STEPS, "stage": STAGE, "pull": PULL, "server_rate": SERVER_RATE}
    rounds = {name: record(algorithm) for name, record in methods.items()}
    about = "Three rounds of the optimisers of github.com/xjiajiahao/federated-minimax, by make_peers.py."
    content = {"about": about, "clients": CLIENTS, "start": START, **setting, "rounds": rounds}
    (Path(__file__).parent / "peers.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
