"""Run a command under a unit's system-call filter: ``python sandbox.py UNIT COMMAND...``, by libseccomp.

This emulates systemd's ``SystemCallFilter=`` and ``SystemCallErrorNumber=EPERM`` where systemd is not running.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
_ALLOW, _EPERM = 0x7FFF0000, 0x00050001


def available() -> bool:
    """Return whether this machine has what is needed."""
    return shutil.which("systemd-analyze") is not None and ctypes.util.find_library("seccomp") is not None


def allowed(unit: str) -> set[str]:
    """Return the names of the system calls that a unit's processes may make."""
    found = set(_members("@default"))  # systemd always allows these
    for line in (UNITS / unit).read_text().splitlines():
        if line.startswith("SystemCallFilter="):
            value = line.partition("=")[2]
            named = {call for word in value.removeprefix("~").split() for call in _members(word)}
            found = found - named if value.startswith("~") else found | named
    return found


def _members(word: str) -> set[str]:
    if not word.startswith("@"):
        return {word}
    done = subprocess.run(["systemd-analyze", "syscall-filter", word], capture_output=True, text=True, check=True)
    words = [line.strip() for line in done.stdout.splitlines()[1:]]
    return {call for each in words if each and not each.startswith("#") for call in _members(each)}


def confine(calls: set[str]) -> None:
    """Make every other system call of this process and its children fail with EPERM."""
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"))
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_EPERM)))
    for call in sorted(calls):
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number != -1:
            library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), ctypes.c_int(number), ctypes.c_uint(0))
    if library.seccomp_load(context) != 0:
        sys.exit("the filter could not be loaded")


if __name__ == "__main__":
    confine(allowed(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
