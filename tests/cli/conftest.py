"""Fixtures of the command-line tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import Command, runner


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """A function that runs ``fedmm`` with its arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return runner(monkeypatch, capsys)
