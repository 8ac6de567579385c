"""Rows of the data stay out of a run's folder and its report where ``run.keep_rows`` is false."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import Command
from safetensors import safe_open

from fedmm.config.toml import write_toml

MARK = 0.123456789
"""A value of every other row."""


def written(tmp_path: Path, **run: Any) -> str:
    """An experiment on an archive, in ``e.toml``."""
    random = np.random.default_rng(0)
    x = random.normal(size=(24, 2)).astype(np.float32)
    x[::2, 1] = MARK
    y = np.arange(24) % 2
    np.savez(tmp_path / "rows.npz", source_x=x, source_y=y, target_x=x + np.float32([1, 0]), target_y=y)
    tables = {
        "run": {"rounds": 2, "batch_size": 4, **run},
        "data": {"name": "arrays", "file": "rows.npz", "standardise": False},
        "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4]},
    }
    (tmp_path / "e.toml").write_text(write_toml(tables))
    return "e.toml"


def files_with_rows(folder: Path) -> set[str]:
    """The names of files that hold the mark, as a number of 4 bytes or in digits."""
    marks = (struct.pack("<f", MARK), b"0.12345")
    found = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {path.name for path, content in found.items() if any(mark in content for mark in marks)}


def test_rows_are_kept_by_default_and_a_line_says_so(command: Command, tmp_path: Path) -> None:
    ended = command("run", written(tmp_path), "--out", "run")
    assert ended.code == 0, ended.err
    assert "run holds a few rows of the data, for pictures and reports; run.keep_rows = false leaves them out" in (
        ended.out
    )
    assert {"samples.safetensors", "exhibits.safetensors"} <= files_with_rows(tmp_path / "run")
    ended = command("report", "run", "--out", "r.html")
    assert "rows of the data are inside; run.keep_rows = false leaves them out" in ended.out


def test_without_keep_rows_no_row_is_in_the_folder_or_the_report(command: Command, tmp_path: Path) -> None:
    file = written(tmp_path, keep_rows=False)
    ended = command("run", file, "--out", "run")
    assert ended.code == 0, ended.err
    assert "rows of the data" not in ended.out
    assert files_with_rows(tmp_path / "run") == set()
    with safe_open(tmp_path / "run" / "exhibits.safetensors", "numpy") as kept:
        kinds = ("confusion", "ranking")  # counts, and areas under curves, but no curve
        scores = {f"{kind}_{rows}" for kind in kinds for rows in ("source", "target")}
        assert set(kept.keys()) == {"tested_round", *scores}
    ended = command("report", "run", "--out", "r.html")
    assert ended.code == 0, ended.err
    assert "rows of the data" not in ended.out
    assert "no curves were kept, as with run.keep_rows = false" in (tmp_path / "r.html").read_text()
    assert command("predict", "run", "rows.npz", "--out", "p.csv").code == 0
    assert command("export", "run", "--format", "torchscript").code == 0


def test_a_run_that_goes_on_without_rows_leaves_none_of_before(command: Command, tmp_path: Path) -> None:
    file = written(tmp_path, checkpoint_every=1)
    assert command("run", file, "--out", "run").code == 0
    assert command("report", "run", "--out", "r.html").code == 0
    assert (tmp_path / "run" / "boundary.safetensors").exists()
    assert (tmp_path / "run" / "maps.safetensors").exists()
    ended = command("run", file, "--out", "run", "--resume", "--set", "run.keep_rows=false")
    assert ended.code == 0, ended.err
    assert files_with_rows(tmp_path / "run") == set()
    for name in ("boundary", "maps"):
        assert not (tmp_path / "run" / f"{name}.safetensors").exists()


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_pictures_without_kept_rows_are_still_exported_as_bytes(command: Command, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (16, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "rows.npz", source_x=pixels, source_y=np.arange(16) % 2, target_x=pixels)
    tables = {
        "run": {"rounds": 1, "batch_size": 4, "keep_rows": False},
        "data": {"name": "arrays", "file": "rows.npz"},
        "model": {"name": "mlp", "hidden": [4], "adversary_hidden": [4]},
    }
    (tmp_path / "e.toml").write_text(write_toml(tables))
    assert command("run", "e.toml", "--out", "run").code == 0
    assert "takes x [rows, 1, 8, 8] uint8" in command("export", "run", "--format", "torchscript").out
