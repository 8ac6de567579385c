"""``fedmm`` as a function of its arguments, in this process."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedmm.cli import main


@dataclass(frozen=True)
class Ended:
    """A command's exit code and output."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *before: str) -> Command:
    """Return a function that runs the command with its arguments after those in ``before``."""

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fedmm", *before, *map(str, arguments)])
        capsys.readouterr()
        handler = signal.getsignal(signal.SIGINT)  # a stopped command leaves SIGINT ignored
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGINT, handler)
        return Ended(code, *capsys.readouterr())

    return run
