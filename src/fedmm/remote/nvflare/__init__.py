"""Rounds between clients of an NVFlare job, in its simulator or POC mode; the only package that imports ``nvflare``."""

from __future__ import annotations

from fedmm.remote.nvflare.federation import federation

__all__ = ["federation"]
