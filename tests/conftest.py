"""What every test runs under: one thread, reproducible examples, and ``problems`` within reach of an import."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)

settings.register_profile("fedmm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("fedmm")


@pytest.fixture(autouse=True)
def _seeded_weights() -> None:
    """Layers that a test makes begin with the same weights whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _nothing_allowed(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What one test, or this machine's user, allows to be imported is not allowed in another test."""
    monkeypatch.setenv("PYTHONSAFEPATH", "")  # which the command line sets
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "")
    monkeypatch.setenv("FEDMM_CONFIG", str(tmp_path_factory.getbasetemp() / "no-configuration"))


@pytest.fixture
def heeding_ctrl_c() -> Iterator[None]:
    """Processes that a test starts heed Ctrl-C, which shells have those in the background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
