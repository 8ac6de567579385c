"""Processes forked from one that has imported fedmm, so that tests that kill many runs import torch once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TEMPLATE = """
import json, os, sys, traceback
import matplotlib.figure, sklearn.datasets, torch, torch.func, fedmm, fedmm.runs.run
torch.set_num_threads(1)

def child(program, arguments, folder):
    os.setsid()
    os.chdir(folder)
    sys.argv = ["program", *arguments]
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(2, 1)
    code = 1
    try:
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)

for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "start":
        answer = os.fork()
        if answer == 0:
            child(asked["program"], asked["arguments"], asked["folder"])
    else:
        pid, status = os.waitpid(asked["pid"], os.WNOHANG if asked["do"] == "poll" else 0)
        answer = None if pid == 0 else os.waitstatus_to_exitcode(status)
    print(json.dumps(answer), flush=True)
"""


@dataclass
class Started:
    """A process forked by the template."""

    template: Template
    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it is running."""
        return self._asked("poll")

    def wait(self) -> int:
        code = self._asked("wait")
        assert code is not None
        return code

    def kill(self) -> None:
        """Send SIGKILL to it and to all processes that it started."""
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()

    def _asked(self, do: str) -> int | None:
        if self.code is None:
            self.code = self.template.ask({"do": do, "pid": self.pid})
        return self.code


@dataclass(frozen=True)
class Template:
    """An interpreter that has imported fedmm and computed nothing, and forks on request."""

    process: subprocess.Popen[str]

    def start(self, program: str, *arguments: str | Path, folder: Path) -> Started:
        """Start the program in a new process group, with these arguments as ``sys.argv[1:]``."""
        words = [str(each) for each in arguments]
        pid = self.ask({"do": "start", "program": program, "arguments": words, "folder": str(folder)})
        assert pid is not None
        return Started(self, pid)

    def ask(self, what: Mapping[str, object]) -> int | None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        answer: int | None = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def template() -> Iterator[Template]:
    command = [sys.executable, "-c", TEMPLATE]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Template(process)
        finally:
            process.kill()
