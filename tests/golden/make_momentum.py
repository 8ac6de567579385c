"""Record three rounds of two momentum methods on a small game: ``python make_momentum.py --checkout PATH``.

PATH is a checkout of github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-Optimization, by authors of
FedSGDA-M. It does not have FedSGDA-M, but FCSG-M and Acc-FCSG-M for minimisation, as the optimiser of its
meta-learning; here they get the game's signed field as the gradient. Steps are taken and averaged as in its program,
but in one process; its memory of the previous step is not averaged. Only numbers are kept, in momentum.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from make_peers import CLIENTS, RATE, ROUNDS, START, STEPS, Game
from torch import Tensor, nn

ALPHA = 0.3
METHODS = {"FCSG_M": "sgdm", "Acc_FCSG_M": "acc"}


class Point(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.y = (nn.Parameter(torch.tensor(each, dtype=torch.float64)) for each in START)


def rounds_of(optimizer: Any, method: str) -> list[list[float]]:
    class Player(optimizer.Meta):
        """Its optimiser for one client of the game."""

        def __init__(self, client: dict[str, list[float]]) -> None:
            nn.Module.__init__(self)
            self.client, self.net, self.net_ = client, Point(), None
            self.opt, self.alpha, self.meta_lr = method, ALPHA, RATE
            self.momentum_in = self.momentum_ot = None

        def trainHelper(self, net: Point, *batch: Any) -> tuple[list[Tensor], list[Tensor], Tensor]:  # noqa: N802
            game = Game()
            game.x.data, game.y.data = net.x.data.clone(), net.y.data.clone()
            game.backward(self.client)
            return [game.x.grad, -game.y.grad], [], torch.zeros(2)

    players, found = [Player(client) for client in CLIENTS], []
    for _ in range(ROUNDS):
        for player in players:
            for _ in range(STEPS):
                player(None, None, None, None)
        for each in zip(*(player.net.parameters() for player in players), strict=True):
            average([parameter.data for parameter in each])
        for each in zip(*(player.momentum_ot for player in players), strict=True):
            average(each)
        found.append([*players[0].net.x.tolist(), *players[0].net.y.tolist()])
    return found


def average(tensors: Any) -> None:
    mean = torch.stack(list(tensors)).mean(dim=0)
    for tensor in tensors:
        tensor.copy_(mean)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    sys.path.insert(0, str(parser.parse_args().checkout / "Federated Model-Agnostic Meta-Learning"))
    with patch.dict(sys.modules, {"model": ModuleType("model")}):  # its network and data, which a game does not need
        optimizer = importlib.import_module("optimizer")
    content = {
        "about": "Three rounds of optimizer.py of github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-"
        "Optimization, by make_momentum.py.",
        "clients": CLIENTS,
        "start": START,
        "rate": RATE,
        "steps": STEPS,
        "alpha": ALPHA,
        "rounds": {name: rounds_of(optimizer, method) for name, method in METHODS.items()},
    }
    (Path(__file__).parent / "momentum.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
