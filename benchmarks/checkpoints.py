"""Measure how many bytes a deployed server writes per checkpoint and how much disk its checkpoints take.

    python benchmarks/checkpoints.py

The state is that of FedMM's server: its point, the mean of the duals, and for each site its initial state and the sum
of its updates. Each round counts the updates of some sites. ``whole`` writes everything to one file per round, as
single-process runs do; ``parts`` keeps each site's tensors in files of their own, rewritten only when they change.
"""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from fedmm.core.engine import FederatedState
from fedmm.training.checkpoints import Checkpoints
from fedmm.training.history import History

SIZE, ROUNDS, KEEP = 250_000, 6, 2
MODEL = 4 * SIZE
SITES, SHARES = (3, 20, 100), (1.0, 0.1)


def first(sites: int) -> FederatedState:
    names = [f"site-{number:03d}" for number in range(sites)]
    zero = {"z": torch.zeros(SIZE)}
    clients = {name: {"dual": torch.zeros(SIZE)} for name in names}
    server = {"z": torch.randn(SIZE), "h": torch.zeros(SIZE)}
    return FederatedState(0, server, clients, totals=dict.fromkeys(names, zero))


def next_state(state: FederatedState, counted: int) -> FederatedState:
    """Return the state after a round that counts ``counted`` sites, different ones each round."""
    names = list(state.totals)
    drawn = [names[(state.round * counted + place) % len(names)] for place in range(counted)]
    totals = {**state.totals, **{name: {"z": state.totals[name]["z"] + torch.randn(SIZE)} for name in drawn}}
    return replace(state, round=state.round + 1, server={"z": torch.randn(SIZE), "h": torch.randn(SIZE)}, totals=totals)


def files(folder: Path) -> dict[tuple[str, int], int]:
    found = [path for path in folder.rglob("*") if path.is_file()]
    return {(str(path), path.stat().st_ino): path.stat().st_size for path in found}


class Counted(Checkpoints):
    """Checkpoints that record in ``there`` the files on disk just before old checkpoints are removed."""

    def tidy(self) -> None:
        self.there = files(self.folder)
        super().tidy()


def measure(sites: int, share: float, *, in_parts: bool) -> dict[str, object]:
    counted = max(1, round(share * sites))
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Counted(Path(folder), every=1, seconds=0.0, keep=KEEP, in_parts=in_parts)
        state, written, most, seconds = first(sites), [], 0, []
        for _ in range(ROUNDS):
            before = files(checkpoints.folder)
            state, began = next_state(state, counted), time.perf_counter()
            checkpoints.save(state, History())
            seconds.append(time.perf_counter() - began)
            written.append(sum(size for key, size in checkpoints.there.items() if key not in before))
            most = max(most, sum(checkpoints.there.values()))
        kept = sum(files(checkpoints.folder).values())
    return {
        "sites": sites,
        "counted": counted,
        "form": "parts" if in_parts else "whole",
        "models written a round": round(sum(written[1:]) / (ROUNDS - 1) / MODEL, 2),
        "models on disk": round(kept / MODEL, 2),
        "at most, while writing": round(most / MODEL, 2),
        "seconds": round(sorted(seconds)[len(seconds) // 2], 3),
    }


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [
        measure(sites, share, in_parts=in_parts) for sites in SITES for share in SHARES for in_parts in (False, True)
    ]
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "--:|" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |")
    path = Path(__file__).parent / "results" / "checkpoints.json"
    path.write_text(json.dumps({"model_bytes": MODEL, "keep": KEEP, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
