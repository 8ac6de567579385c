"""Measure how long a site takes to mask an update, by the number of parameters and sites.

    python benchmarks/masks.py [--out benchmarks/results/masks.json]

Seconds of CPU time on one thread, medians of three.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from fedmm.engines.mask_ledger import MaskLedger
from fedmm.engines.masking import MaskKey, Masks
from fedmm.engines.messages import Invitation, Update

CASES = [(size, sites) for size in (100_000, 2_000_000) for sites in (3, 20)]


def measured(size: int, sites: int, t: int) -> float:
    """Return the CPU seconds that masking one site's update takes; signatures are not checked."""
    masks = [
        Masks(name, "run", MaskKey(name.encode().ljust(32), "run"), lambda text: b"", lambda *_: True, MaskLedger())
        for name in (f"site-{number:02d}" for number in range(sites))
    ]
    offer = {mask.name: mask.signed() for mask in masks}
    update = Update(t, masks[0].name, {"z": torch.randn(size)})
    began = time.process_time()
    masks[0].masked(Invitation(t, {"z": torch.zeros(size)}), update, offer)
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/masks.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for size, sites in CASES:
        seconds = statistics.median(measured(size, sites, t) for t in range(3))
        rows.append({"parameters": size, "sites": sites, "seconds": round(seconds, 3)})
        print(rows[-1])
    about = {"cores": os.cpu_count(), "machine": platform.machine(), "load_average": os.getloadavg()}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
