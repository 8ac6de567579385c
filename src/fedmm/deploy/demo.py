"""The whole way once: a federation of two sites, a run, and the same run in one process to compare it with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from fedmm.algorithms import FedMM
from fedmm.config.demos import demo_experiments
from fedmm.config.schema import Experiment
from fedmm.core.errors import require
from fedmm.deploy.federation import down, up
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.local import local_sites
from fedmm.deploy.runs import follow, submit
from fedmm.deploy.server import keep_every_round
from fedmm.runs.resume import run_checkpoints
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import free_folder
from fedmm.sites.experiments import experiment_text
from fedmm.training.checkpoints import newest_common

RUN = "digits"
Say = Callable[[str], None]


def demo_experiment(rounds: int) -> Experiment:
    """FedMM on the scanned digits of ``fedmm demo``: few rounds, since each takes seconds, of many local steps."""
    (digits,) = (demo for demo in demo_experiments("digits", 1) if demo.algorithm.name == "fedmm")
    algorithm = FedMM(lr_min=0.1, lr_max=0.1, local_steps=100, penalty_min=0.1, penalty_max=0.1)
    return keep_every_round(replace(digits, run=replace(digits.run, rounds=rounds), algorithm=algorithm))


def demo(out: Path, rounds: int, *, insecure: bool = False, in_memory: bool = False, say: Say) -> bool:
    """Run it; whether the federation's result is that of one process, bit for bit. Everything is ended again."""
    require(rounds >= 1, f"--rounds must be at least 1, not {rounds}")
    experiment, folder = demo_experiment(rounds), free_folder(out)
    federation = Federation(folder)
    try:
        up(federation, local_sites(experiment), insecure=insecure, in_memory=in_memory, say=say)
        request = RunRequest(folder, RUN, experiment_text(experiment), patience=300.0, enrol_seconds=300.0)
        number = submit(request, say)
        status = follow(federation, RUN, number, say)
        require("completed" in status, f"the run ended with {status}; {federation.run(RUN) / 'server.log'} says why")
    finally:
        say(f"{down(federation)} processes ended")
    alike = same_result(experiment, federation.run(RUN), folder / "in-process", say)
    say(f"everything is in {folder}")
    return alike


def same_result(experiment: Experiment, deployed: Path, reference: Path, say: Say) -> bool:
    """Train the same in one process, and compare every bit of the server's state and the measured accuracy."""
    run_experiment(experiment, reference, progress=False)
    (one, history), (other, expected) = (
        newest_common([run_checkpoints(experiment, folder)], torch.device("cpu"), say)[0]
        for folder in (deployed, reference)
    )
    alike = one.round == other.round and one.server.keys() == other.server.keys()
    alike = alike and all(torch.equal(vector, other.server[name]) for name, vector in one.server.items())
    accuracies = [rows.last("target_accuracy") for rows in (history, expected)]
    alike = alike and accuracies[0] == accuracies[1]
    words = "bit-identical" if alike else "NOT identical"
    say(f"after round {one.round}: federation and one process are {words}; target accuracy {accuracies[0]:.4f}")
    if not alike:
        say(f"largest difference of the server's point: {float((one.z - other.z).abs().max()):.3g}")
    return bool(alike)
