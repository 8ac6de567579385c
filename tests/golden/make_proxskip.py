"""Record three rounds of ProxSkip's program on a small game: ``python make_proxskip.py --checkout PATH``.

PATH is a checkout of github.com/isayantan/ProxSkipVIP, by the authors of ProxSkip-SGDA-FL. Its QuadxDet.py runs without
its plot, with this game, its sizes, rates and coin tosses. Only numbers are kept, in proxskip.json.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from make_peers import CLIENTS

RATE, STEPS, LENGTHS = 0.1, 4, [3, 1, 5]
"""The common step size, the other methods' local steps, and the steps in ProxSkip's rounds, which its coin ends."""

GIVEN = {
    "n_comm": len(LENGTHS),
    "n_node": len(CLIENTS),
    "n_feature": 4,
    "gamma": RATE,
    "gamma1": RATE,
    "gamma2": RATE,
    "prob_comm": 1 / STEPS,
    "local_step": STEPS,
}
"""Values that replace those of the program's variables."""

METHODS = ["ProxSkip", "Local_GDA", "Local_EG", "FedGDA_GT"]


class Given(ast.NodeTransformer):
    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        if isinstance(name := node.targets[0], ast.Name) and name.id in GIVEN:
            node.value = ast.copy_location(ast.Constant(GIVEN[name.id]), node)
        return node


def field(z: np.ndarray, node: int) -> np.ndarray:
    c = {name: np.array(values) for name, values in CLIENTS[node].items()}
    x, y = z[:2], z[2:]
    by_x, by_y = c["bend"] * x + c["coupling"] * y + c["pull_x"], c["coupling"] * x - c["dip"] * y + c["pull_y"]
    return np.concatenate([by_x, -by_y])


def measured(program: Path) -> list[list[float]]:
    """Return the points at which the program measures its distance to the optimum, method by method."""
    points: list[list[float]] = []
    game = SimpleNamespace(
        grad=field, optdist=lambda z: points.append(z.tolist()), L_node=np.ones(1), mu_node=np.ones(1)
    )
    model: Any = ModuleType("model")
    model.QuadGame = lambda *sizes, **options: game
    tree = Given().visit(ast.parse(program.read_text()))
    last = max(place for place, statement in enumerate(tree.body) if isinstance(statement, ast.While))
    tree.body = tree.body[: last + 1]
    coins = [int(step == length) for length in LENGTHS for step in range(1, length + 1)]
    with patch.dict(sys.modules, {"model": model}), patch("numpy.random.binomial", side_effect=coins):
        exec(compile(tree, program.name, "exec"), {})
    return points


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    points = measured(parser.parse_args().checkout / "QuadxDet.py")
    rounds = len(LENGTHS)
    content = {
        "about": "Three rounds of QuadxDet.py of github.com/isayantan/ProxSkipVIP, by make_proxskip.py.",
        "clients": CLIENTS,
        "start": [[0.0, 0.0], [0.0, 0.0]],
        "rate": RATE,
        "steps": STEPS,
        "lengths": LENGTHS,
        "rounds": {name: points[rounds * place : rounds * (place + 1)] for place, name in enumerate(METHODS)},
    }
    (Path(__file__).parent / "proxskip.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
