"""What a folder of several runs says of them."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.core.errors import FedmmError
from fedmm.runs.evidence import judge_runs

_SHOWN = ("label", "algorithm", "objective", "seed", "rounds", "target_accuracy", "seconds", "status")
_LONGEST = 100


def folder_names(experiments: Sequence[Experiment]) -> list[str]:
    """A folder name for each run, from its label and seed."""
    names = [f"{_slug(each.label)}-seed{each.run.seed}" for each in experiments]
    for name, count in Counter(names).items():
        if count > 1:
            raise FedmmError(f"two runs would both be called {name!r}; give them different labels or seeds")
    return names


def _slug(label: str) -> str:
    """Letters that every file system knows, and no more of them than it takes; what is cut off still counts."""
    slug = re.sub(r"[^a-z0-9.=-]+", "-", label.lower()).strip("-.") or "run"
    return slug if len(slug) <= _LONGEST else f"{slug[:_LONGEST]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"


def comparison_summary(
    title: str, status: str, summaries: Sequence[dict[str, Any]], folders: Sequence[str]
) -> dict[str, Any]:
    """The ``summary.json`` of a comparison."""
    return {
        "kind": "comparison",
        "title": title,
        "status": status,
        "runs": [
            {**{key: each[key] for key in _SHOWN}, "folder": folder}
            for each, folder in zip(summaries, folders, strict=True)
        ],
        "evidence": judge_runs(summaries),
        "versions": summaries[0]["versions"] if summaries else {},
        "hardware": summaries[0]["hardware"] if summaries else {},
    }
