"""Run the public program federated-minimax (github.com/xjiajiahao/federated-minimax) as its own script does.

The program dates from 2022. A ``sitecustomize`` on its processes' path restores what numpy and torch have removed
since; its files are neither changed nor copied. This module needs a checkout of it.
"""

from __future__ import annotations

import csv
import gzip
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS, CLIENTS, BATCH, SEED = 400, 500, 10, 1234
"""The setting of its ``test_scripts/test_auc_mnist_n_500_best.sh``."""

MODEL_SIZE = 44_429
"""The length of a vector that a client sends: LeNet's parameters, a, b and alpha."""

SHIMS = """\
import sys, types

def gone(name, **names):  # a module that is imported for names that are never used in these runs
    module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(names)

gone("numpy.lib.type_check", _nan_to_num_dispatcher=None)  # not in numpy 2
gone("nltk")
gone("nltk.corpus", wordnet=None)

from torch.utils.data.dataloader import _BaseDataLoaderIter

_BaseDataLoaderIter.next = lambda self: self.__next__()  # torch 1.13 removed it
"""


@dataclass(frozen=True)
class Method:
    """How the script runs a method. nodes: S, the most clients per round. vectors: how many each client sends."""

    name: str
    nodes: int
    vectors: int
    options: dict[str, float]
    processes: int = 0
    threads: int = 1
    local_steps: int = 12

    @property
    def label(self) -> str:
        return self.name if self.local_steps > 1 else f"{self.name} (K = 1)"

    @property
    def mean_clients(self) -> float:
        """The mean over rounds: floor(S u / 2) of S stay away, u uniform in [0, 1); S/2 + 1 to S are equally likely."""
        return self.nodes - (self.nodes / 2 - 1) / 2


METHODS = (
    Method(
        "CDMA_ADA",
        8,
        2,
        {
            "primal_step_size": 0.7,
            "dual_step_size": 0.3162,
            "step_size_exp": 0.2,
            "primal_alpha": 5,
            "dual_alpha": 5,
            "alpha_exp": 0.4,
        },
    ),
    Method("CDMA_ONE", 8, 2, {"primal_step_size": 0.3162, "dual_step_size": 1}),
    Method("CDMA_NC", 16, 1, {"primal_step_size": 0.3162, "dual_step_size": 0.1}),
    Method("Local_SGDA_Plus", 16, 1, {"primal_step_size": 0.3162, "dual_step_size": 0.1}),
    Method(
        "Catalyst_Scaffold_S",
        8,
        2,
        {"local_step_size": 0.1, "global_step_size": 0.1, "algorithm_reg_coef": 0, "T0": 2000},
    ),
    Method("Extra_Step_Local_SGD", 16, 1, {"local_step_size": 0.3162}),
    Method("CODA_Plus", 16, 1, {"local_step_size": 0.3162, "algorithm_reg_coef": 0, "T0": 4000}),
    Method(
        "CODASCA",
        8,
        2,
        {"local_step_size": 0.3162, "global_step_size": 1.0, "algorithm_reg_coef": 0, "T0": 4000},
        processes=5,
        threads=101,
    ),
    Method("CDMA_ONE", 16, 1, {"primal_step_size": 1, "dual_step_size": 1}, local_steps=1),
)


def prepare(folder: Path, checkout: Path, mnist: Path, methods: Iterable[str]) -> None:
    """Write MNIST in the form that these methods of the program read, and the shims that its processes import."""
    raw = folder / "data" / "FastMNIST" / "raw"
    if not raw.exists():
        raw.mkdir(parents=True)
        for packed in sorted(mnist.glob("*-ubyte.gz")):
            with gzip.open(packed) as source, (raw / packed.stem).open("wb") as target:
                shutil.copyfileobj(source, target)
    (folder / "shims").mkdir(exist_ok=True)
    (folder / "shims" / "sitecustomize.py").write_text(SHIMS)
    if "CODASCA" in methods:  # the only method that reads each client's rows from a separate file
        build = (
            "from dataloader import BuildFedMNISTDataset as build\n"
            f"build({CLIENTS}, {str(folder / 'data')!r}, sort_by='label', similarity=0.0)"
        )
        subprocess.run([sys.executable, "-c", build], cwd=checkout, env=environment(folder), check=True)


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of its processes, which run on the CPU as in its script."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OMP_"))}
    shims = {"PYTHONPATH": str(folder / "shims"), "PYTHONOPTIMIZE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**kept, **shims, "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}


def run(
    method: Method,
    rounds: int,
    folder: Path,
    checkout: Path,
    *,
    seed: int = SEED,
    evaluate_every: int = 10,
    limit: float | None = None,
) -> dict[str, Any]:
    """Run the program once; return what it logged, with times by its own clock, which stops during evaluation.

    It gives up if the AUC is below 0.6 after 50 rounds or more. limit: seconds after which it is terminated.
    """
    out = folder / "out" / f"{method.name}-{method.local_steps}-{rounds}-{seed}"
    shutil.rmtree(out, ignore_errors=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given: dict[str, object] = {
        "master_addr": "127.0.0.1",
        "data_dir": f"{folder / 'data'}/",
        "output_dir": f"{out}/",
        "use_gpu": False,
        "algorithm_to_run": method.name,
        "dataset_name": "MNIST",
        "num_partitions": CLIENTS,
        "num_nodes": method.nodes,
        "num_threads": method.threads,
        "num_rounds": rounds,
        "num_local_iterations": method.local_steps,
        **method.options,
        "print_freq": evaluate_every,
        "sort_by": "label",
        "similarity": 0.0,
        "random_seed_id": seed,
        "train_batch_size": BATCH,
        "test_batch_size": 100,
        "max_machine_drop_ratio": 0.5,
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={method.processes or method.nodes}"]
    launcher += ["--master_addr=127.0.0.1", f"--master_port={port}", "main_auc.py"]
    command = launcher + [f"--{name}={value}" for name, value in given.items()]
    with (folder / f"log-{method.name}-{seed}.txt").open("w+") as log:
        process = subprocess.Popen(command, cwd=checkout, env=environment(folder), stdout=log, stderr=log)
        try:
            process.wait(limit)
            ended = False
        except subprocess.TimeoutExpired:
            process.terminate()  # the launcher then ends its child processes
            process.wait()
            ended = True
        log.seek(0)
        said = log.read()[-4000:]
    logged = [row for path in out.glob("*.csv") for row in read_log(path)]
    if not logged or not logged[-1]["round"]:
        raise RuntimeError(f"the program did not come to round {evaluate_every}:\n{said}")
    return {
        "rounds": int(logged[-1]["round"]),
        "gave_up": logged[-1]["round"] < rounds and not ended,
        "seed": seed,
        "seconds_a_round": logged[-1]["seconds"] / max(1.0, logged[-1]["round"]),
        "floats": logged[-1]["round"] * method.mean_clients * method.vectors * MODEL_SIZE,
        "floats_it_logged": logged[-1]["floats"],
        "auc": [[int(row["round"]), row["auc"]] for row in logged],
    }


def read_log(path: Path) -> list[dict[str, float]]:
    """Read its log: rounds, seconds, floats, AUC. Its floats are summed over the printed rounds only."""
    with path.open() as file:
        rows = list(csv.reader(file))[1:]
    return [dict(zip(("round", "seconds", "floats", "auc"), map(float, row), strict=True)) for row in rows]
