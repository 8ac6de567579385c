"""Stop a run, as a power cut would, at each successive moment of writing a checkpoint, and resume it.

Run as ``python -m runs.crashing FOLDER in_process|batched|adapt``. For k = 1, 2, ... a process is ended at the k-th
moment after round 3 of 7: before or after a call that changes the disk, or halfway through the tensors. The next one
resumes the run. A line for each k says where the process ended, whether the newest checkpoint was readable, and whether
the final model was bit-identical. Without processes, an exception ends the run, and no later call changes the disk.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch
from runs.saved import model_in

import fedmm
from fedmm.config.schema import experiment
from fedmm.data import tensor_files
from fedmm.runs.run import run_experiment
from fedmm.training.checkpoints import Checkpoints

ENDED = 9
TOUCHING = ("replace", "unlink", "fsync")
"""Functions of ``os`` that change the disk."""
TABLES: dict[str, Any] = {
    "run": {"rounds": 7, "threads": 1, "checkpoint_every": 1, "checkpoint_seconds": 0.0, "batch_size": 8},
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4], "head_dropout": 0.2},
    "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
}


class Ended(BaseException):
    """Raised in this process in place of the end of another."""

    def __init__(self, status: int) -> None:
        self.status = status


class Crash:
    """End the process at a chosen moment; ``armed`` after the round of interest. leave: ends the process."""

    def __init__(self, number: int, log: Path, leave: Callable[[int], NoReturn]) -> None:
        self.left, self.log, self.armed, self.leave = number, log, False, leave

    def moment(self, what: str) -> None:
        if not self.armed:
            return
        self.left -= 1
        if self.left == 0:
            self.log.write_text(what)
        if self.left <= 0:
            self.leave(ENDED)

    def around(self, module: Any, name: str) -> None:
        """Add a moment before and one after every call of a function."""
        real = getattr(module, name)

        def call(*given: Any, **options: Any) -> Any:
            self.moment(f"before {name}")
            result = real(*given, **options)
            self.moment(f"after {name}")
            return result

        setattr(module, name, call)

    def half_written(self) -> None:
        """Add a moment in the middle of writing the tensors."""
        real = tensor_files.save_file

        def save_file(tensors: Any, path: Path, **options: Any) -> None:
            real(tensors, path, **options)
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
            self.moment("half of the tensors")
            path.write_bytes(content)

        tensor_files.save_file = save_file

    def on_round(self, row: dict[str, Any]) -> None:
        self.armed = row["round"] == 3
        if row["round"] == 4:
            self.armed = False
            self.leave(0)


def run(kind: str, folder: Path, on_round: Callable[[Any], None] | None = None) -> None:
    if kind != "adapt":
        tables = {**TABLES, "run": {**TABLES["run"], "engine": kind}}
        run_experiment(experiment(tables), folder, progress=False, resume=True, on_round=on_round)
        return
    draw = torch.Generator().manual_seed(1)
    torch.manual_seed(0)
    x, y = torch.randn(20, 3, generator=draw), torch.randint(0, 2, (20,), generator=draw)
    model = fedmm.Network(torch.nn.Linear(3, 4), 2, adversary_hidden=(3,))
    adapted = fedmm.adapt(
        [fedmm.Client((x, y), x)], model, rounds=7, batch_size=8, progress=False, on_round=on_round,
        resume=folder, checkpoint_every=1,
    )  # fmt: skip
    adapted.save(folder / "model.safetensors")


def in_a_process(work: Callable[[Callable[[int], NoReturn]], None]) -> int:
    """Return the exit status of ``work`` in a forked process. work: gets a function that ends the process."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            torch.set_num_threads(1)
            work(os._exit)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def in_this_process(work: Callable[[Callable[[int], NoReturn]], None]) -> int:
    """Do the same without a process; restore the functions that change the disk if ``work`` patched them."""
    places = [(os, name) for name in TOUCHING] + [(tensor_files, "save_file")]
    before = [getattr(place, name) for place, name in places]

    def leave(status: int) -> NoReturn:
        raise Ended(status)

    try:
        work(leave)
        return 0
    except Ended as ended:
        return ended.status
    finally:
        for (place, name), real in zip(places, before, strict=True):
            setattr(place, name, real)


def readable(folder: Path) -> bool:
    checkpoints = Checkpoints(folder, every=1, seconds=0.0, keep=2)
    return checkpoints.load(checkpoints.rounds()[0], torch.device("cpu"))[0].round == checkpoints.rounds()[0]


def crashes(folder: Path, kind: str, apart: Callable[..., int]) -> Iterator[dict[str, Any]]:
    """Yield a line for each moment. apart: ``in_a_process`` or ``in_this_process``."""
    assert apart(lambda _: run(kind, folder / "whole")) == 0
    expected = model_in(folder / "whole")
    for number in range(1, 200):
        here, log = folder / str(number), folder / f"{number}.txt"

        def crash(leave: Callable[[int], NoReturn], number: int = number, here: Path = here, log: Path = log) -> None:
            planned = Crash(number, log, leave)
            planned.half_written()
            for name in TOUCHING:
                planned.around(os, name)
            run(kind, here, planned.on_round)

        status = apart(crash)
        if status == 0:
            return
        assert status == ENDED
        line = {"at": log.read_text(), "readable": apart(lambda leave, here=here: readable(here) or leave(3)) == 0}
        assert apart(lambda _, here=here: run(kind, here)) == 0
        line["same"] = model_in(here) == expected
        line["left"] = sorted(path.name for path in (here / "checkpoints").iterdir())
        yield line


if __name__ == "__main__":
    experiment(TABLES).data.load()  # import once what all processes need
    for found in crashes(Path(sys.argv[1]), sys.argv[2], in_a_process):
        print(json.dumps(found), flush=True)
