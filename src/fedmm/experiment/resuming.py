"""Going on with a run from its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError
from fedmm.experiment.checkpoints import Checkpoints
from fedmm.experiment.config import Experiment, experiment
from fedmm.experiment.folder import EXPERIMENT
from fedmm.experiment.toml import read_toml
from fedmm.experiment.training import Begun

_MAY_DIFFER = (
    "label", "checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "best_by",
)  # fmt: skip
_SHOWN = 6


def run_checkpoints(each: Experiment, folder: Path) -> Checkpoints:
    """The checkpoints of a run, as its section ``[run]`` wants them."""
    run = each.run
    return Checkpoints(
        folder,
        every=run.checkpoint_every,
        seconds=run.checkpoint_seconds,
        keep=run.keep_checkpoints,
        best_by=run.best_by,
    )


def begun_run(each: Experiment, folder: Path, checkpoints: Checkpoints, say: Callable[[str], None]) -> Begun | None:
    """The newest state of the run in a folder; None where none was begun there, or none can be read.

    A run that was begun with another configuration is refused.
    """
    if not (folder / EXPERIMENT).exists():
        return None
    before = experiment(read_toml(folder / EXPERIMENT))
    _require_same(before.tables(), each.tables(), folder)
    begun = checkpoints.newest(each.run.torch_device, say)
    if begun is None:
        say(f"{folder} holds no checkpoint that can be read; the run begins again")
    else:
        say(f"going on after round {begun[0].round}")
    return begun


def _require_same(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    differences = [
        f"{section}.{key} was {before[section].get(key)!r}, now {now[section].get(key)!r}"
        for section in now
        for key in {**before[section], **now[section]}
        if before[section].get(key) != now[section].get(key) and not (section == "run" and key in _MAY_DIFFER)
    ]
    if differences:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise FedmmError(
            f"the run in {folder} was begun with another configuration, so it cannot go on with this one: "
            f"{'; '.join(differences[:_SHOWN])}{more}"
        )
