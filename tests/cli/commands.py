"""``fedmm`` in this process, as a function of its arguments."""

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
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def runner(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *before: str) -> Command:
    """Runs the command with some arguments after those that always come first."""

    def run(*arguments: str | Path) -> Ended:
        monkeypatch.setattr(sys, "argv", ["fedmm", *before, *map(str, arguments)])
        capsys.readouterr()
        handler = signal.getsignal(signal.SIGINT)  # which is ignored once a command was stopped
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        finally:
            signal.signal(signal.SIGINT, handler)
        return Ended(code, *capsys.readouterr())

    return run
