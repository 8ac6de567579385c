"""The command line. A user's mistake gets one sentence and exit code 2; Ctrl-C exits with 130."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
import threading
from io import TextIOWrapper

from fedmm._version import __version__
from fedmm.core.errors import FedmmError

__all__ = ["main"]

_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator|out of memory|not enough memory|can(no|')t allocate memory|bad_?alloc"
    r"|Storage size calculation overflowed|integer multiplication overflow",
    re.IGNORECASE,
)
"""What the allocators of torch and C++ say, on different systems, when memory runs out."""
_STOPPED = 130


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except KeyboardInterrupt:  # a second Ctrl-C while the first was being handled
        _leave_in_peace()
        sys.exit(_STOPPED)


def _run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # file names may have characters that a terminal cannot show
            stream.reconfigure(errors="backslashreplace")
    if not os.environ.get("PYTHONSAFEPATH"):  # child processes import no file of the current folder
        os.environ["PYTHONSAFEPATH"] = "1"
    if sys.argv[1:] == ["--version"]:  # without the commands, which take seconds to import
        sys.stdout.write(f"fedmm {__version__}\n")
        sys.exit(0)
    try:
        if sys.argv[1:2] == ["deploy"]:  # most of its commands do not need torch
            from fedmm.cli.deploy import deploy_app  # noqa: PLC0415 - only what is needed

            deploy_app(sys.argv[2:], prog_name="fedmm deploy")
        else:
            from fedmm.cli.app import app  # noqa: PLC0415 - slow to import, and Ctrl-C may come meanwhile

            app()
    except FedmmError as problem:
        sys.stderr.write(f"error: {problem}\n")
        sys.exit(2)
    except (MemoryError, RuntimeError, OSError) as problem:
        if not _out_of_memory(problem):
            raise
        sys.stderr.write("error: there is not enough memory; use a smaller network, smaller batches or fewer rows\n")
        sys.exit(2)
    except (KeyboardInterrupt, SystemExit) as ended:
        stopped = _from_ctrl_c(ended)
        if stopped or (isinstance(ended, SystemExit) and ended.code == _STOPPED):
            _leave_in_peace()
        if not stopped:
            raise
        sys.stderr.write("stopped\n")
        sys.exit(_STOPPED)


def _leave_in_peace() -> None:
    """Ignore further Ctrl-C while the process ends: there is nothing left to stop, only a library's traceback to show.

    The system ignores it, since Python removes its own handlers before the last libraries have cleaned up.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _out_of_memory(problem: Exception) -> bool:
    """Return whether memory ran out; torch's allocator for the CPU says so only in its message."""
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    return isinstance(problem, MemoryError) or _NO_MEMORY.search(str(problem)) is not None


def _from_ctrl_c(ended: BaseException | None) -> bool:
    """Return whether Ctrl-C is the cause; typer turns a KeyboardInterrupt into an exit with its own code."""
    return isinstance(ended, KeyboardInterrupt) or (ended is not None and _from_ctrl_c(ended.__context__))
