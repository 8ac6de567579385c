"""Fixtures for federations of real processes; none of them may be left after a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deploy.machines import Machine
from deploy.running import free_ports

from fedmm.deploy import processes
from fedmm.deploy.federation import down
from fedmm.deploy.layout import Federation


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    """A folder for a federation; processes that a test starts there are stopped."""
    there = Federation(tmp_path / "federation")
    yield there
    if there.folder.exists():
        down(there)
        assert processes.find_marked(there.folder) == []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A folder for a coordinator's machine, with two free ports."""
    outside, inside = free_ports(2)
    return Machine(tmp_path, outside, inside)
