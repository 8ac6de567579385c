"""A run's folder: made when training begins, appended to round by round, closed with a summary."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.experiment.history import Row
from fedmm.experiment.tables import Table
from fedmm.experiment.toml import write_toml

EXPERIMENT, ROUNDS, SUMMARY, MODEL = "experiment.toml", "rounds.jsonl", "summary.json", "model.safetensors"
SAMPLES, BOUNDARY = "samples.safetensors", "boundary.safetensors"


def claim_folder(folder: Path, *, overwrite: bool) -> None:
    """Refuse a folder that cannot hold a new run; with ``overwrite``, one that holds an older run is emptied."""
    require(not folder.exists() or folder.is_dir(), f"{folder} is a file; name a folder for the run")
    if not folder.exists() or not any(folder.iterdir()):
        return
    require(overwrite, f"the folder {folder} is not empty; name another with --out, or pass --overwrite")
    require(
        (folder / SUMMARY).exists() or (folder / EXPERIMENT).exists(),
        f"the folder {folder} holds no run of fedmm, so it is not overwritten; name another with --out",
    )
    shutil.rmtree(folder)


def free_folder(folder: Path) -> Path:
    """``folder``, or the first of ``folder-2``, ``folder-3`` ... that does not exist."""
    number, free = 1, folder
    while free.exists():
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


class RunFolder:
    """The files of one run."""

    def __init__(self, folder: Path, tables: Mapping[str, Table]) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / EXPERIMENT).write_text(write_toml(tables), encoding="utf-8")
            self._rounds: IO[str] = (folder / ROUNDS).open("w", encoding="utf-8")
        except OSError as problem:
            raise FedmmError(f"the run cannot be written to {folder}: {problem.strerror}") from problem

    def append(self, row: Row) -> None:
        """One more round, on disk before the next begins."""
        try:
            self._rounds.write(json.dumps(row) + "\n")
            self._rounds.flush()
        except OSError as problem:
            raise FedmmError(
                f"round {row['round']} cannot be written to {self.folder}: {problem.strerror}"
            ) from problem

    def tensors(self, name: str, tensors: Mapping[str, Tensor]) -> None:
        """Tensors beside the run, for pictures."""
        save_file(
            {
                key: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
                for key, tensor in tensors.items()
            },
            self.folder / name,
        )

    def close(self, summary: Mapping[str, Any]) -> None:
        """The last word on the run."""
        self._rounds.close()
        write_json(self.folder / SUMMARY, summary)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """A JSON file that is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
