"""What every test runs under: one thread, reproducible examples, and ``problems`` within reach of an import."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent))

torch.set_num_threads(1)

settings.register_profile("fedmm", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("fedmm")
