"""The setup of every test: one thread, reproducible examples, and helper modules such as ``problems`` importable."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

from workers_here import workers_here

torch.set_num_threads(1)

settings.register_profile("fedmm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("fedmm")


SLOW = frozenset((Path(__file__).parent / "slow.txt").read_text(encoding="utf-8").splitlines()[2:])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that start real processes or are long, unless FEDMM_SLOW=1; quicker tests cover the same code."""
    later = {
        "processes": pytest.mark.skip(reason="starts real processes; FEDMM_SLOW=1 runs it (make test-distributed)"),
        "slow": pytest.mark.skip(reason="is long; FEDMM_SLOW=1 runs it (make test-slow)"),
    }
    for item in items:
        if item.nodeid.removeprefix("tests/") in SLOW:
            item.add_marker("slow")
        for name, skip in later.items():
            if os.environ.get("FEDMM_SLOW") != "1" and item.get_closest_marker(name):
                item.add_marker(skip)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that would start after FEDMM_DEADLINE (seconds since 1970), because CI kills longer runs."""
    if time.time() > float(os.environ.get("FEDMM_DEADLINE") or "inf"):
        pytest.skip("the time for tests is over (FEDMM_DEADLINE)")


@pytest.fixture(autouse=True)
def _no_worker_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let comparisons and sweeps start processes only in tests marked ``processes``."""
    with nullcontext() if request.node.get_closest_marker("processes") else workers_here():
        yield


@pytest.fixture(autouse=True)
def _seeded_weights() -> None:
    """Give a test's layers the same initial weights whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep imports allowed by another test or by this machine's user out of the test."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # set by the command line
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "")
    monkeypatch.setenv("FEDMM_CONFIG", str(tmp_path_factory.getbasetemp() / "no-configuration"))


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Make processes that a test starts obey Ctrl-C, which background processes of a shell ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
