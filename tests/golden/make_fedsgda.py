"""Record three rounds of FedSGDA+ on a small game: ``python make_fedsgda.py --checkout PATH``.

PATH is a checkout of github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-Optimization, by the method's
authors. Its FSGDA runs unchanged, with one client. The network multiplies a row's only feature by one weight per class;
the adversary weights the classes' cross entropies, with weights clipped at 0 and divided by their sum. Only numbers are
kept, in fedsgda.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

ROUNDS, STEPS, RATE, RATE_MAX, SERVER_RATE, SNAPSHOT_EVERY = 3, 4, 0.5, 0.2, 0.7, 2
ROWS = [0.9, -0.4, 1.3, 0.2, -1.1, 0.6, -0.7, 1.6, -0.1, 0.3]
"""One row per class; there are as many classes as in the authors' program."""

START = [0.1, -0.2, 0.3, 0.0, -0.4, 0.2, 0.5, -0.1, 0.4, -0.3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True)
    sys.path.insert(0, str(parser.parse_args().checkout / "Fair Classification"))
    fsgda: Any = importlib.import_module("FSGDA")
    deepcopy, points = fsgda.copy.deepcopy, []

    def copied(kept: Any) -> Any:
        """Record what it copies: both players at the start and after each round."""
        if isinstance(kept, list):
            points.append(kept[0].detach().flatten().tolist())
        elif isinstance(kept, torch.Tensor):
            points[-1] += kept.tolist()
        return deepcopy(kept)

    one = {"get_rank": lambda: 1, "get_world_size": lambda: 1, "all_reduce": lambda tensor, op: None}
    fsgda.dist = SimpleNamespace(**one, ReduceOp=SimpleNamespace(SUM=None))
    fsgda.copy = SimpleNamespace(deepcopy=copied)
    torch.set_default_dtype(torch.float64)
    network = nn.Linear(1, len(ROWS), bias=False)
    network.weight.data = torch.tensor(START).unsqueeze(1)
    batch = torch.tensor(ROWS).unsqueeze(1), torch.arange(len(ROWS))
    rates = {"lr": RATE, "lr2": RATE_MAX, "glr": SERVER_RATE, "inLoop": STEPS, "otLoop": SNAPSHOT_EVERY}
    args = SimpleNamespace(dataset="fmnist", epochs=ROUNDS, **rates)
    fsgda.FSGDA([batch] * STEPS, [], network, args, torch.device("cpu"))
    content = {
        "about": "Three rounds of FSGDA.py of github.com/xidongwu/Federated-Minimax-and-Conditional-Stochastic-"
        "Optimization, by make_fedsgda.py.",
        "rows": ROWS,
        "start": START,
        "rate": RATE,
        "rate_max": RATE_MAX,
        "server_rate": SERVER_RATE,
        "steps": STEPS,
        "snapshot_every": SNAPSHOT_EVERY,
        "rounds": points[1:],
    }
    (Path(__file__).parent / "fedsgda.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
