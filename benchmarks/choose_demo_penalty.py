"""Measure the signals by which the digits demo's penalty and number of rounds were chosen, without target labels.

    python benchmarks/choose_demo_penalty.py

For each penalty, dual decay and number of rounds, averaged over three seeds: information maximisation on the target
site's training inputs (entropy of the mean prediction minus mean entropy of the predictions; higher is better) and the
source site's task loss (lower is better). Written to benchmarks/results/choose_demo_penalty.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import fmean

import torch

import fedmm
from fedmm.data import Digits
from fedmm.data.domains import DomainPair
from fedmm.models import MLP
from fedmm.training.adaptation import Adaptation

RESULTS = Path(__file__).parent / "results" / "choose_demo_penalty.json"
ROUNDS, SEEDS, LR = (200, 300), (0, 1, 2), 0.02


def information_maximisation(probabilities: torch.Tensor) -> float:
    mean = probabilities.mean(dim=0)
    return float(torch.special.entr(mean).sum() - torch.special.entr(probabilities).sum(dim=1).mean())


def signals(pair: DomainPair, penalty: float, decay: float, seed: int) -> dict[int, tuple[float, float]]:
    """Return, by number of rounds, information maximisation on the target and the task loss on the source."""
    adaptation = Adaptation(
        [fedmm.Client(source=pair.source, name="source-1"), fedmm.Client(target=pair.target.x, name="target-1")],
        MLP().build((1, 8, 8), 10, seed),
        fedmm.DANN(),
        fedmm.FedMM(LR, LR, penalty, penalty, decay, 20),
        fedmm.TrainOptions(rounds=max(ROUNDS), batch_size=64, seed=seed, probe_rows=0),
    )
    state, found = adaptation.engine.start(), {}
    while state.round < max(ROUNDS):
        state, record = adaptation.engine.run_round(state)
        if state.round in ROUNDS:
            p = adaptation.function.evaluate(state.z, state.statistics, pair.target.x).logits.softmax(dim=-1)
            found[state.round] = (information_maximisation(p), record.metrics["task_loss"])
    return found


def main() -> None:
    torch.set_num_threads(1)
    pair = Digits().load()
    results = []
    for penalty in (0.5, 1.0, 2.0):
        for decay in (1.0, 0.995):
            found = [signals(pair, penalty, decay, seed) for seed in SEEDS]
            for rounds in ROUNDS:
                row = {
                    "penalty": penalty,
                    "dual_decay": decay,
                    "rounds": rounds,
                    "information_maximisation": fmean(each[rounds][0] for each in found),
                    "source_task_loss": fmean(each[rounds][1] for each in found),
                    "seeds": len(SEEDS),
                }
                results.append(row)
                sys.stdout.write(json.dumps(row) + "\n")
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
