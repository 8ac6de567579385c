"""Resume runs from their folders: checkpoints, checks for the same configuration and rows, and plans of programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment, experiment
from fedmm.config.sites import experiment_anywhere
from fedmm.config.toml import read_toml
from fedmm.core.errors import FedmmError, Say, count_of, require
from fedmm.core.files import write_json
from fedmm.data.domains import DomainPair
from fedmm.data.inputs import tell_apart
from fedmm.models.devices import Precision
from fedmm.runs.run_folder import EXPERIMENT, HELD, INPUT, MODEL, SUMMARY, read_input
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings
from fedmm.training.checkpoints import FOLDER, Checkpoints, newest_common
from fedmm.training.fingerprint import differences, fingerprint_rows, refuse_others
from fedmm.training.snapshots import ResumePoint
from fedmm.training.stack_settings import Tuned, choose_settings, chunk_that_fits

PLAN = "plan.json"


def resume_points(
    experiments: Sequence[Experiment],
    adaptations: Sequence[Adaptation],
    folders: Sequence[Path],
    checkpoints: Sequence[Checkpoints],
    say: Say,
) -> list[ResumePoint]:
    """Return the newest states that all of these runs have after the same round; empty if they start from scratch.

    Refuse a run that was started with another configuration or other rows.
    """
    if not any((folder / EXPERIMENT).exists() for folder in folders):
        return []
    for now, adaptation, folder in zip(experiments, adaptations, folders, strict=True):
        if (folder / EXPERIMENT).exists():
            require_same_run(now, folder)
            require_same_rows(adaptation, folder)
    points = newest_common(checkpoints, experiments[0].run.torch_device, say)
    if points:
        say(f"continuing after round {max(state.round for state, _ in points)}")
    elif len(folders) == 1:
        say(f"{folders[0]} holds no checkpoint that can be read; the run starts again")
    else:
        say(f"the runs in {folders[0].parent} have no readable checkpoints of the same round; they start again")
    return points


def require_same_run(now: Experiment, folder: Path) -> None:
    """Refuse a folder whose run was started with another configuration."""
    before = experiment_anywhere(read_toml(folder / EXPERIMENT))
    refuse_others(differences(before.tables(), now.tables()), f"the run in {folder}")


def keep_rows(adaptation: Adaptation, folder: Path) -> None:
    """Store fingerprints of the clients' rows, to recognise them on resuming."""
    write_json(folder / HELD, fingerprint_rows(adaptation))


def require_same_rows(adaptation: Adaptation, folder: Path) -> None:
    """Refuse a folder whose run was started with other rows, as far as their number and a checksum of some tell."""
    path = folder / HELD
    if not path.exists():
        return
    try:
        before = dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as problem:
        raise FedmmError(f"{path} cannot be read, so it is unknown how the run was started: {problem}") from None
    now = fingerprint_rows(adaptation)
    others = [name for name in now if before.get(name) != now[name]] or sorted(set(before) - set(now))
    if others:
        raise FedmmError(
            f"the data has changed since the run in {folder} started: client {others[0]!r} held "
            f"{before.get(others[0], 'nothing')}, now {now.get(others[0], 'nothing')}; "
            "bring the old data back, or start another run"
        )


def require_same_input(pair: DomainPair, folder: Path) -> None:
    """Refuse a folder whose run had other classes, or turned the same files into other rows."""
    if not (folder / INPUT).exists():
        return
    names, before = read_input(folder)
    changed = tell_apart(before, pair.input) if before and pair.input else ""
    if names != tuple(pair.class_names):
        changed = f"its classes were {', '.join(names)}"
    require(
        not changed,
        f"the data has changed since the run in {folder} started: {changed}; bring the old data back, or start another "
        "run",
    )


def read_completed(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a completed run; None if the run in a folder did not complete."""
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
        completed = summary["kind"] == "run" and summary["status"] == "completed" and (folder / MODEL).exists()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return summary if completed else None


SETTINGS = "settings.json"


@dataclass(frozen=True)
class Program:
    """One stack of the plan: the numbers of its runs, and how they run."""

    members: tuple[int, ...]
    tuned: Tuned


def plan_in_words(experiments: Sequence[Experiment], programs: Sequence[Program]) -> str:
    """Return the plan in words, with a line for each program."""
    lines = [f"{len(experiments)} runs in {count_of(len(programs), 'program')}:"]
    for number, program in enumerate(programs, start=1):
        first = experiments[program.members[0]]
        algorithms = sorted({experiments[member].algorithm.name for member in program.members})
        lines.append(
            f"  {number}. {len(program.members)} runs of {first.run.rounds} rounds, {first.model.name}, "
            f"{first.objective.name}, {', '.join(algorithms)}; {program.tuned.why}"
        )
    return "\n".join(lines)


def write_plan(
    folder: Path, experiments: Sequence[Experiment], names: Sequence[str], programs: Sequence[Program] = ()
) -> None:
    """Write ``plan.json`` for a folder of several runs: every run's configuration, and the programs they run in."""
    runs = {name: run.tables() for name, run in zip(names, experiments, strict=True)}
    write_json(folder / PLAN, {"runs": runs, "programs": [asdict(program) for program in programs]})


def read_plan(folder: Path, experiments: Sequence[Experiment], names: Sequence[str]) -> list[Program]:
    """Return the programs of a folder that was started with the same runs; refuse other runs."""
    path = folder / PLAN
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        before = {str(name): experiment(tables).tables() for name, tables in plan["runs"].items()}
        order = [names.index(name) if name in names else -1 for name in before]
        programs = [
            Program(tuple(order[member] for member in program["members"]), _read_tuned(program["tuned"]))
            for program in plan["programs"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        raise FedmmError(f"{path} is not a plan of runs that can be continued; use another folder") from problem
    now = {name: run.tables() for name, run in zip(names, experiments, strict=True)}
    problems = [f"{name} is new" for name in now if name not in before]
    problems += [f"{name} is gone" for name in before if name not in now]
    for name in names:
        problems += [f"{name}: {difference}" for difference in differences(before.get(name, now[name]), now[name])]
    refuse_others(problems, f"the comparison in {folder}")
    return programs


def keep_settings(folder: Path, settings: StackSettings) -> None:
    """Store how a run is computed as a stack."""
    write_json(folder / FOLDER / SETTINGS, asdict(settings))


def settings_of(folder: Path, adaptation: Adaptation, chosen: Precision, *, resume: bool) -> StackSettings:
    """Return how to compute a single run as a stack: as it started; else to suit a GPU, or always alike on a CPU.

    For a grid, it pays to measure what is fastest; for a single run, the same bits every time matter more.
    """
    path = folder / FOLDER / SETTINGS
    if resume:
        try:
            kept = StackSettings(**json.loads(path.read_text(encoding="utf-8")))
            if fits(kept, adaptation.function.layout.device):
                return kept
        except (OSError, ValueError, TypeError):
            pass
    if adaptation.function.layout.device.type == "cuda":
        return choose_settings([adaptation], chosen).settings
    return StackSettings(chunk=chunk_that_fits([adaptation], chosen, StackSettings()))


def fits(settings: StackSettings, device: torch.device) -> bool:
    """Return whether settings were chosen for this kind of device."""
    return settings.capture == (device.type == "cuda")


def _read_tuned(table: Mapping[str, Any]) -> Tuned:
    return Tuned(**{**table, "settings": StackSettings(**table["settings"])})
