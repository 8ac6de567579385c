"""Going on with runs from their folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment, experiment
from fedmm.config.toml import read_toml
from fedmm.core.errors import FedmmError
from fedmm.core.files import write_json
from fedmm.runs.run_folder import EXPERIMENT, HELD, MODEL, SUMMARY
from fedmm.training.adaptation import Adaptation
from fedmm.training.callbacks import BestModel
from fedmm.training.checkpoints import Checkpoints, checkpoints_of, newest_common
from fedmm.training.fingerprint import differences, held_rows, refuse_others
from fedmm.training.snapshots import ResumePoint

PLAN = "plan.json"


def run_checkpoints(
    each: Experiment, folder: Path, best: BestModel | None = None, *, in_parts: bool = False
) -> Checkpoints:
    """The checkpoints of a run, as its section ``[run]`` wants them, with the best model beside them."""
    return checkpoints_of(each.run, folder, best, in_parts=in_parts)


def resume_points(
    experiments: Sequence[Experiment],
    adaptations: Sequence[Adaptation],
    folders: Sequence[Path],
    checkpoints: Sequence[Checkpoints],
    say: Callable[[str], None],
) -> list[ResumePoint]:
    """The newest states that all of these runs have after one round; none where they begin, or begin again.

    A run that was started with another configuration, or with other rows, is refused.
    """
    if not any((folder / EXPERIMENT).exists() for folder in folders):
        return []
    for each, adaptation, folder in zip(experiments, adaptations, folders, strict=True):
        if (folder / EXPERIMENT).exists():
            require_same_run(each, folder)
            require_same_rows(adaptation, folder)
    points = newest_common(checkpoints, experiments[0].run.torch_device, say)
    if points:
        say(f"going on after round {max(state.round for state, _ in points)}")
    elif len(folders) == 1:
        say(f"{folders[0]} holds no checkpoint that can be read; the run begins again")
    else:
        say(f"the runs in {folders[0].parent} have no readable checkpoints of one round; they begin again")
    return points


def require_same_run(each: Experiment, folder: Path) -> None:
    """Refuse a folder whose run was started with another configuration."""
    before = experiment(read_toml(folder / EXPERIMENT))
    refuse_others(differences(before.tables(), each.tables()), f"the run in {folder}")


def keep_rows(adaptation: Adaptation, folder: Path) -> None:
    """Write down what each client holds, to know it again by."""
    write_json(folder / HELD, held_rows(adaptation))


def require_same_rows(adaptation: Adaptation, folder: Path) -> None:
    """Refuse a folder whose run was begun with other rows, as far as their numbers and some of them tell."""
    path = folder / HELD
    if not path.exists():
        return
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(f"{path} cannot be read, so it is unknown how the run was started: {problem}") from None
    now = held_rows(adaptation)
    others = [name for name in now if before.get(name) != now[name]] or sorted(set(before) - set(now))
    if others:
        raise FedmmError(
            f"the data has changed since the run in {folder} started: client {others[0]!r} held "
            f"{before.get(others[0], 'nothing')}, now {now.get(others[0], 'nothing')}; "
            "bring the old data back, or start another run"
        )


def only_begun(folder: Path) -> bool:
    """Whether a folder was made and nothing else: a crash came before it was written what is run there."""
    return folder.is_dir() and all(path.name == SUMMARY or path.suffix == ".partial" for path in folder.iterdir())


def completed_run(folder: Path) -> dict[str, Any] | None:
    """The summary of a run that completed in a folder; None for one that has something left to do."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        completed = summary["kind"] == "run" and summary["status"] == "completed" and (folder / MODEL).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary if completed else None
