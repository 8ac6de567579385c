"""Measure how far the batched engine on a GPU is from the in-process engine after a few rounds.

    python benchmarks/gpu_parity.py [--out FOLDER]

The digits demo's network (and the paper's, on blended digits) with each algorithm. For each precision: the distance
between the two servers' points, relative to the distance from the start. The in-process engine runs in strict float32.
Each row also has the distance between two in-process runs, because GPU libraries are not bit-reproducible.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import torch

import fedmm
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState
from fedmm.data import Digits
from fedmm.data.rows import TensorRows
from fedmm.models import MLP, Model, PaperCNN
from fedmm.models.devices import PRECISIONS, Precision, precision
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack

ROUNDS = 5
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def adaptation(model: Model, data: Digits, algorithm: Algorithm, seed: int) -> Adaptation:
    pair = data.load()
    clients = [
        fedmm.Client(source=TensorRows(pair.source.x, pair.source.y), name="source"),
        fedmm.Client(target=TensorRows(pair.target.x), name="target"),
    ]
    network = model.build(tuple(pair.source.x.shape[1:]), 10, seed)
    return Adaptation(
        clients, network, fedmm.DANN(), algorithm,
        fedmm.TrainOptions(rounds=ROUNDS, batch_size=32, seed=seed, device=str(DEVICE), probe_rows=0),
    )  # fmt: skip


def in_process(each: Adaptation) -> FederatedState:
    state = each.engine.start()
    with precision("fp32", DEVICE):
        for _ in range(ROUNDS):
            state, _ = each.engine.run_round(state)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    folder = parser.parse_args().out
    rows = []
    works: list[tuple[str, Model, Digits]] = [
        ("digits MLP", MLP(), Digits()),
        ("paper's network on blended digits", PaperCNN(initialisation="torch"), Digits(kind="blended", copies=1)),
    ]
    for name, model, data in works:
        for kind in fedmm.ALGORITHMS.values():
            algorithm = kind(lr_min=0.01, lr_max=0.01)
            each = [adaptation(model, data, algorithm, seed) for seed in range(2)]
            reference, again = in_process(each[1]), in_process(each[1])
            moved = float((reference.z - each[1].function.start).norm())
            row = {"work": name, "algorithm": algorithm.name, "rounds": ROUNDS, "hardware": _hardware()}
            row["in_process again"] = float((again.z - reference.z).norm()) / moved
            chosen: Precision
            for chosen in PRECISIONS:  # type: ignore[assignment]
                engine, _ = build_stack(each, chosen, StackSettings(capture=DEVICE.type == "cuda"))
                for _ in range(ROUNDS):
                    engine.advance()
                row[chosen] = float((engine.state(1).z - reference.z).norm()) / moved
            rows.append(row)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu_parity.json").write_text(json.dumps(rows, indent=2) + "\n")


def _hardware() -> str:
    return torch.cuda.get_device_name() if DEVICE.type == "cuda" else "cpu"


if __name__ == "__main__":
    main()
