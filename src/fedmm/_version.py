"""The version, where packaging tools and every room can read it without importing anything else."""

from __future__ import annotations

__version__ = "0.1.0"
