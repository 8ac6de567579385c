"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

import subprocess
import sys

import fedmm


def as_module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedmm", *arguments], capture_output=True, text=True, check=False)


def test_it_answers_like_the_command() -> None:
    done = as_module("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert fedmm.__version__ in done.stdout


def test_what_the_user_gets_wrong_is_told_in_one_sentence() -> None:
    done = as_module("run", "nowhere.toml")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
