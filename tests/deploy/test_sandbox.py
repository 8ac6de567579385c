"""The units' system-call filters: they refuse what they are to refuse, and torch trains under them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from deploy import sandbox

UNITS = ("fedmm-site@.service", "fedmm-superlink.service")
needs_seccomp = pytest.mark.skipif(not sandbox.available(), reason="systemd-analyze or libseccomp is not installed")

REFUSED = """
import ctypes, errno, os
library = ctypes.CDLL(None, use_errno=True)
for name, words in {"mount": (b"none", b"/mnt", b"tmpfs", 0, None), "acct": (None,), "chroot": (b"/",),
                    "ptrace": (0, 0, 0, 0), "setuid": (0,), "setpriority": (0, 0, 19)}.items():
    answer = getattr(library, name)(*words)
    print(name, answer, errno.errorcode[ctypes.get_errno()])
"""
TRAINS = """
import sys
from pathlib import Path
import torch
from fedmm.deploy.local import demo_experiment
from fedmm.runs.run import run_experiment
layer = torch.nn.Conv2d(3, 8, 3)
layer(torch.zeros(4, 3, 32, 32)).sum().backward()
run_experiment(demo_experiment(1), Path(sys.argv[1]), progress=False)
print("trained", Path("/proc/self/status").read_text().count("Seccomp:\\t2"))
"""


def confined(unit: str, *words: str) -> list[str]:
    command = [sys.executable, str(Path(sandbox.__file__)), unit, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_seccomp
@pytest.mark.parametrize("unit", UNITS)
def test_privileged_calls_are_refused(unit: str) -> None:
    lines = confined(unit, sys.executable, "-c", REFUSED)
    assert [line.split()[1:] for line in lines] == [["-1", "EPERM"]] * 6


@needs_seccomp
@pytest.mark.processes
def test_training_needs_no_call_that_is_refused(tmp_path: Path) -> None:
    assert confined("fedmm-site@.service", sys.executable, "-c", TRAINS, str(tmp_path / "run"))[-1] == "trained 1"
