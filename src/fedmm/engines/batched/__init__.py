"""The fast engine, which runs clients, seeds and settings as one program."""

from __future__ import annotations

from fedmm.engines.batched.clients import Replica
from fedmm.engines.batched.engine import Batched, Capture
from fedmm.engines.batched.single import BatchedEngine, round_record
from fedmm.engines.batched.tensors import METRICS

__all__ = ["METRICS", "Batched", "BatchedEngine", "Capture", "Replica", "round_record"]
