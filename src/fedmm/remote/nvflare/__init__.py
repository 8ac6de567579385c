"""Rounds between the clients of an NVFlare job, in its simulator or its proof of concept. Only here is it imported."""

from __future__ import annotations

from fedmm.remote.nvflare.federation import federation

__all__ = ["federation"]
