"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import fedmm

AsModule = Callable[..., tuple[object, str, str]]


@pytest.fixture(params=["here", pytest.param("a process", marks=pytest.mark.processes)])
def as_module(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> AsModule:
    """Runs ``python -m fedmm`` with some arguments, in a temporary folder: its code, and what it says."""
    monkeypatch.chdir(tmp_path)

    def here(*arguments: str) -> tuple[object, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmm", *arguments])
        monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # as Python begins
        with pytest.raises(SystemExit) as ended:
            runpy.run_module("fedmm", run_name="__main__", alter_sys=True)
        return (ended.value.code or 0, *capsys.readouterr())

    def process(*arguments: str) -> tuple[object, str, str]:
        command = [sys.executable, "-m", "fedmm", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return here if request.param == "here" else process


def test_it_answers_like_the_command(as_module: AsModule) -> None:
    code, out, err = as_module("--version")
    assert (code, err) == (0, "")
    assert fedmm.__version__ in out


def test_files_of_the_current_folder_are_not_imported_and_errors_are_one_sentence(
    as_module: AsModule, tmp_path: Path
) -> None:
    for name in ("torch", "typer", "numpy", "timm", "colorsys"):
        (tmp_path / f"{name}.py").write_text("open('it-ran', 'w').close()\n")
    code, _, err = as_module("run", "nowhere.toml")
    assert not (tmp_path / "it-ran").exists()
    assert str(tmp_path) not in sys.path
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
