"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import fedmm


def as_module(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedmm", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)


def test_it_answers_like_the_command() -> None:
    done = as_module("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert fedmm.__version__ in done.stdout


def test_files_of_the_current_folder_are_not_imported_and_errors_are_one_sentence(tmp_path: Path) -> None:
    for name in ("torch", "typer", "numpy", "timm", "colorsys"):
        (tmp_path / f"{name}.py").write_text("open('it-ran', 'w').close()\n")
    done = as_module("run", "nowhere.toml", folder=tmp_path)
    assert not (tmp_path / "it-ran").exists()
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
