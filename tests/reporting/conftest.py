"""Small run folders like those of finished experiments."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

LABELS = {"FedMM": ("fedmm", "dann"), "FedAvgGDA": ("fedavg_gda", "dann"), "source only": ("fedavg_gda", "source_only")}


class Folders:
    """Write run and comparison folders below ``root``."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, name: str = "run", *, accuracies: Sequence[float | None] = (0.5, None, 0.75), **summary: Any) -> Path:
        """Write a run folder whose rounds reach these target accuracies."""
        folder = self.root / name
        folder.mkdir(parents=True)
        rounds = [
            {
                "round": t,
                "target_accuracy": accuracy,
                "source_accuracy": None if accuracy is None else min(accuracy + 0.2, 1.0),
                "drift": 1.0 / t,
                "consensus_gap": 10.0**-t,
                "dual_norm": 0.0,
                "loss": float("nan") if t == 1 else 1.0,
                "bytes_up": 1_000_000,
                "bytes_down": 2_000_000,
                "seconds": 0.5,
            }
            for t, accuracy in enumerate(accuracies, start=1)
        ]
        measured = [accuracy for accuracy in accuracies if accuracy is not None]
        values = {
            "kind": "run",
            "status": "completed",
            "label": "FedMM",
            "algorithm": "fedmm",
            "objective": "dann",
            "data": "two_moons",
            "seed": 0,
            "rounds": len(rounds),
            "target_accuracy": measured[-1] if measured else None,
            "source_accuracy": None,
            "seconds": 0.5 * len(rounds),
            "bytes_up": 1_000_000 * len(rounds),
            "bytes_down": 2_000_000 * len(rounds),
        }
        (folder / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rounds))
        (folder / "summary.json").write_text(json.dumps(values | summary))
        (folder / "experiment.toml").write_text("")
        return folder

    def comparison(self, accuracies: dict[str, Sequence[Sequence[float | None]]], title: str = "two moons") -> Path:
        """Write a comparison folder. accuracies: by label, for each seed the target accuracies by round."""
        folder = self.root / "comparison"
        entries: list[dict[str, object]] = []
        for label, seeds in accuracies.items():
            algorithm, objective = LABELS.get(label, ("fedmm", "dann"))
            for seed, series in enumerate(seeds):
                name = f"runs/{len(entries)}"
                about = {"label": label, "algorithm": algorithm, "objective": objective, "seed": seed}
                self.run(f"comparison/{name}", accuracies=series, **about)
                entries.append(about | {"rounds": len(series), "folder": name})
        summary = {"kind": "comparison", "title": title, "runs": entries}
        (folder / "summary.json").write_text(json.dumps(summary))
        return folder


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


@pytest.fixture
def add_images() -> Callable[..., None]:
    """Put sample images into a run folder."""

    def add(folder: Path, *, channels: int = 1, count: int = 12, side: int = 8) -> None:
        draws = np.random.default_rng(0)
        x = draws.normal(size=(count, channels, side, side)).astype(np.float32)
        y = np.arange(count, dtype=np.int64)
        save_file({"source_x": x, "source_y": y, "target_x": x + 1, "target_y": y}, folder / "samples.safetensors")

    return add


@pytest.fixture
def add_plane() -> Callable[..., None]:
    """Put points in the plane and a boundary into a run folder."""

    def add(folder: Path, *, flat: float | None = None) -> None:
        x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
        y = (x[:, 0] > 0).astype(np.int64)
        save_file({"source_x": x, "source_y": y, "target_x": x + 1, "target_y": y}, folder / "samples.safetensors")
        grid = np.linspace(-3, 3, 20, dtype=np.float32)
        slope = 1 / (1 + np.exp(-2 * grid))[None, :].repeat(20, axis=0)
        probability = slope if flat is None else np.full_like(slope, flat)
        tensors = {"grid_x": grid, "grid_y": grid, "probability": np.ascontiguousarray(probability, dtype=np.float32)}
        save_file(tensors, folder / "boundary.safetensors")

    return add
