"""Helpers to start a run of real processes and inspect it while it is running."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.deploy import processes
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.local import RUN, demo_experiment
from fedmm.deploy.runs import submit
from fedmm.sites.experiments import experiment_text


def until(done: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until ``done()``; fail with the message ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


def long_experiment(rounds: int) -> Experiment:
    """Return an experiment of many short rounds without evaluation, so that a test can disturb a site between two."""
    each = demo_experiment(rounds)
    algorithm = replace(each.algorithm, local_steps=10, lr_min=0.01, lr_max=0.01)
    return replace(each, algorithm=algorithm, run=replace(each.run, evaluate_every=rounds, probe_rows=0))


def begin(federation: Federation, each: Experiment, patience: float = 200.0) -> int:
    """Submit an experiment; return Flower's run number."""
    text = experiment_text(each)
    return submit(RunRequest(federation.folder, RUN, text, patience=patience, enrol_seconds=100.0), print)


def free_ports(number: int) -> list[int]:
    """Return ``number`` free ports on loopback."""
    with ExitStack() as open_sockets:
        taken = [open_sockets.enter_context(socket.socket()) for _ in range(number)]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in taken]


def rows(federation: Federation, name: str = "rounds.jsonl") -> list[dict[str, Any]]:
    """Return the rows of a file of the run so far."""
    lines = text(federation.run(RUN) / name).split("\n")[:-1]  # an unterminated line is still being written
    return [json.loads(line) for line in lines]


def rounds_in(federation: Federation) -> int:
    """Return how many rounds are finished."""
    return len(rows(federation))


def server_log(federation: Federation) -> str:
    """Return the server's log of the run."""
    return text(federation.run(RUN) / "server.log")


def text(path: Path) -> str:
    """Return a file's content; empty if there is no file."""
    return path.read_text(errors="replace") if path.exists() else ""


def pids_of(federation: Federation, *words: str) -> list[int]:
    """Return the federation's processes with all of these words in their commands."""
    found = []
    for pid in processes.find_marked(federation.folder):
        with suppress(OSError):  # the process may just have exited
            command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            if all(any(word in part for part in command) for word in words):
                found.append(pid)
    return found


def pid_of(federation: Federation, *words: str) -> int:
    """Return the first such process; there must be one."""
    found = pids_of(federation, *words)
    assert found, f"no process with {words}"
    return found[0]
