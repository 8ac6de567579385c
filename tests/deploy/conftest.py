"""Federations of real processes, of which none is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedmm.deploy import processes
from fedmm.deploy.layout import Federation
from fedmm.deploy.lifecycle import down


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """A folder for a federation; whatever a test starts there is ended."""
    there = Federation(tmp_path / "federation")
    yield there
    if there.folder.exists():
        down(there)
        assert processes.marked(there.folder) == []
