"""What runs of a folder are computed by: measured once and kept, so that runs that go on are computed as they began."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import FedmmError
from fedmm.core.files import write_json
from fedmm.models.precision import Precision
from fedmm.runs.resume import PLAN
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings
from fedmm.training.checkpoints import FOLDER
from fedmm.training.fingerprint import differences, refuse_others
from fedmm.training.tuning import Tuned, chunk_that_fits, tune

SETTINGS = "settings.json"


@dataclass(frozen=True)
class Program:
    """One stack of the plan: which runs, by their numbers, and how they run."""

    members: tuple[int, ...]
    tuned: Tuned


def plan_in_words(experiments: Sequence[Experiment], programs: Sequence[Program]) -> str:
    """The plan, a line for each program."""
    lines = [f"{len(experiments)} runs in {len(programs)} program(s):"]
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
    """``plan.json`` of a folder of several runs: every run's configuration, and the programs they run in."""
    runs = {name: each.tables() for name, each in zip(names, experiments, strict=True)}
    write_json(folder / PLAN, {"runs": runs, "programs": [asdict(program) for program in programs]})


def read_plan(folder: Path, experiments: Sequence[Experiment], names: Sequence[str]) -> list[Program] | None:
    """The programs of a folder that was begun with the same runs, None where none was; other runs are refused."""
    path = folder / PLAN
    if not path.exists():
        return None
    try:
        plan = json.loads(path.read_text(encoding="utf-8"))
        before = {str(name): experiment(tables).tables() for name, tables in plan["runs"].items()}
        order = [names.index(name) if name in names else -1 for name in before]
        programs = [
            Program(tuple(order[member] for member in each["members"]), _tuned(each["tuned"]))
            for each in plan["programs"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as problem:
        raise FedmmError(f"{path} is no plan of runs that could be gone on with; name another folder") from problem
    now = {name: each.tables() for name, each in zip(names, experiments, strict=True)}
    found = [f"{name} is new" for name in now if name not in before]
    found += [f"{name} is gone" for name in before if name not in now]
    for name in names:
        found += [f"{name}: {each}" for each in differences(before.get(name, now[name]), now[name])]
    refuse_others(found, f"the comparison in {folder}")
    return programs


def keep_settings(folder: Path, settings: StackSettings) -> None:
    """Write down how a run is computed as a stack."""
    write_json(folder / FOLDER / SETTINGS, asdict(settings))


def settings_of(folder: Path, adaptation: Adaptation, chosen: Precision, *, resume: bool) -> StackSettings:
    """How a single run is computed as a stack: as it began; else on a GPU as suits it, on a CPU always in one way.

    A grid is worth measuring what is fastest; one run is worth having the same bits every time.
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
        return tune([adaptation], chosen).settings
    return StackSettings(chunk=chunk_that_fits([adaptation], chosen, StackSettings()))


def fits(settings: StackSettings, device: torch.device) -> bool:
    """Whether settings were chosen for such a device."""
    return settings.capture == (device.type == "cuda")


def _tuned(table: Mapping[str, Any]) -> Tuned:
    return Tuned(**{**table, "settings": StackSettings(**table["settings"])})
