"""Checkpoints of a call of ``adapt`` in a folder, and going on from them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import write_json
from fedmm.core.validation import at_least, not_negative
from fedmm.training.checkpoints import FOLDER, Checkpoints, newest_common
from fedmm.training.fingerprint import differences, refuse_others
from fedmm.training.loop import Begun
from fedmm.training.selection import Chooser

ABOUT = "adaptation.json"


@dataclass(frozen=True)
class Kept:
    """checkpoints: where states are written; begun: what to go on from; said: what was wrong with what was there."""

    checkpoints: Checkpoints
    begun: Begun | None
    said: list[str]


def kept_in(
    folder: str | Path,
    about: Mapping[str, Mapping[str, Any]],
    device: torch.device,
    *,
    every: int,
    seconds: float,
    keep: int,
    best: Chooser,
) -> Kept:
    """Begin in a folder what is described by ``about``, or go on with it; something else is refused."""
    at_least("checkpoint_every", every, 0)
    not_negative("checkpoint_seconds", seconds)
    at_least("keep_checkpoints", keep, 1)
    require(isinstance(folder, str | Path), f"resume must be a folder's name, not {folder!r}")
    folder = Path(folder)
    checkpoints = Checkpoints(folder, every=every, seconds=seconds, keep=keep, best=best)
    now = json.loads(json.dumps(about))
    if not (folder / ABOUT).exists():
        require(
            not (folder / FOLDER).exists(),
            f"{folder} holds checkpoints of something else than fedmm.adapt; name another folder with resume",
        )
        write_json(folder / ABOUT, now)
        return Kept(checkpoints, None, [])
    try:
        before = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        found = differences(before, now)
    except (OSError, ValueError, AttributeError, TypeError) as problem:
        raise FedmmError(f"{folder / ABOUT} cannot be read; name another folder with resume") from problem
    refuse_others([_with_hint(each) for each in found], f"the run in {folder}")
    said: list[str] = []
    begun = newest_common([checkpoints], device, said.append)
    if said and not begun:
        said.append(f"{folder} holds no checkpoint that can be read; the run begins again")
    return Kept(checkpoints, begun[0] if begun else None, said)


def _with_hint(difference: str) -> str:
    hint = " (call torch.manual_seed before the network is made)"
    return difference + (hint if difference.startswith("model.weights ") else "")
