"""A command that ends with the process that started it: ``python -m fedmm.deploy.bound PARENT COMMAND...``."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(command: Sequence[str]) -> list[str]:
    """The command, to be started by this process and ended with it, however this one ends. Only Linux can do that."""
    if not sys.platform.startswith("linux"):
        return list(command)
    return [sys.executable, "-m", "fedmm.deploy.bound", str(os.getpid()), *command]


def main(parent: int, command: list[str]) -> None:
    """Become the command, which is told to end (SIGTERM) when the parent does."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == parent:  # it may have ended in between
        os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
