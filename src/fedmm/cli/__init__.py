"""The command line. What the user gets wrong is answered by one sentence and exit code 2; Ctrl-C ends with 130."""

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
"""What torch's and C++'s allocators call it, by system; whatever they say beside it."""
_STOPPED = 130


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except KeyboardInterrupt:  # one that came while another was being answered
        _leave_in_peace()
        sys.exit(_STOPPED)


def _run() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # names of files may be more than a terminal can show
            stream.reconfigure(errors="backslashreplace")
    if not os.environ.get("PYTHONSAFEPATH"):  # Python started from here imports no file of the current folder
        os.environ["PYTHONSAFEPATH"] = "1"
    if sys.argv[1:] == ["--version"]:  # without the commands, which take seconds to import
        sys.stdout.write(f"fedmm {__version__}\n")
        sys.exit(0)
    try:
        if sys.argv[1:2] == ["deploy"]:  # most of its commands have no use for torch
            from fedmm.cli.deploy import deploy_app  # noqa: PLC0415 - the one that is asked for

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
    """The process is ending: one more Ctrl-C has nothing to stop, and would show a traceback of what libraries do then.

    Without the handler that Python sets, since it is gone before the last of them.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _out_of_memory(problem: Exception) -> bool:
    """Whether memory is what was lacking; torch's allocator for the CPU says so in words alone."""
    if isinstance(problem, OSError):
        return problem.errno == errno.ENOMEM
    return isinstance(problem, MemoryError) or _NO_MEMORY.search(str(problem)) is not None


def _from_ctrl_c(ended: BaseException | None) -> bool:
    """Whether Ctrl-C is behind it; typer takes a KeyboardInterrupt for itself and exits with a code of its own."""
    return isinstance(ended, KeyboardInterrupt) or (ended is not None and _from_ctrl_c(ended.__context__))
