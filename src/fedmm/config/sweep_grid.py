"""A grid of experiments from a ``[sweep]`` table, and groups of runs that can be stacked."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product
from typing import Any

from fedmm.algorithms import ALGORITHMS
from fedmm.config.schema import Experiment, experiment
from fedmm.core.errors import require
from fedmm.core.objective import Objective
from fedmm.objectives import OBJECTIVES
from fedmm.training.adaptation import Adaptation

SWEEP = "sweep"
_CHOICES: dict[str, Mapping[str, type[Any]]] = {"algorithm": ALGORITHMS, "objective": OBJECTIVES}
_MOST_RUNS = 10_000


def grid(tables: Mapping[str, Any], lists: str = SWEEP) -> list[Experiment]:
    """Return every combination of the lists in ``[sweep]`` as an experiment with a distinguishing label.

    lists: another name for that table.

    A key of the table is ``section.key`` (as a dotted key or a nested table) with a list of values, or a section with a
    list of tables that replace it. If ``objective.name`` or ``algorithm.name`` is swept, options of the section apply
    only to those that have them, and runs that become identical are run once.
    """
    plain = {section: table for section, table in tables.items() if section != lists}
    for section, table in plain.items():
        require(isinstance(table, dict), f"{section} must be a section of its own: [{section}]")
    axes = grid_axes(tables.get(lists, {}), lists)
    combinations = 1
    for _, values in axes:
        combinations *= len(values)
    require(combinations <= _MOST_RUNS, f"the {lists} has {combinations} runs, more than the maximum of {_MOST_RUNS}")
    names = {path[0]: values for path, values in axes if path[1:] == ("name",) and path[0] in _CHOICES}
    several = {path for path, values in axes if len(values) > 1}
    experiments: dict[str, Experiment] = {}
    for chosen in product(*(values for _, values in axes)):
        changed = {section: dict(table) for section, table in plain.items()}
        for (path, _), value in zip(axes, chosen, strict=True):
            _set(changed, path, value, lists)
        idle = {(section, key) for section in names for key in _idle(section, names[section], changed[section])}
        for section, key in idle:
            changed[section].pop(key, None)
        planned = experiment(changed)
        applied = [(path, value) for (path, _), value in zip(axes, chosen, strict=True) if path[:2] not in idle]
        planned = replace(planned, run=replace(planned.run, label=_label(planned, applied, several)))
        experiments.setdefault(repr(planned), planned)
    return list(experiments.values())


def _idle(section: str, names: Sequence[Any], table: Mapping[str, Any]) -> set[str]:
    """Return the section's options that its current choice does not use, but another choice in the sweep does."""
    rows = _CHOICES[section]
    used = {name: used_options(rows[name]) for name in names if isinstance(name, str) and name in rows}
    return {key for keys in used.values() for key in keys} - used.get(str(table["name"]), set(table))


def used_options(row: type[Any]) -> set[str]:
    """Return the names of the options that a class of a table uses."""
    return row.used_options() if issubclass(row, Objective) else {field.name for field in fields(row)}


def options_for(tables: Mapping[str, Any], section: str, name: str, rows: Mapping[str, type]) -> dict[str, Any]:
    """Return the file's section for another class of its table: its name, and those of the file's options that it uses.

    Options of an adversary are dropped for an objective without one.
    """
    known = used_options(rows[name])
    return {"name": name, **{key: value for key, value in tables.get(section, {}).items() if key in known}}


def grid_axes(table: Any, lists: str = SWEEP) -> list[tuple[tuple[str, ...], list[Any]]]:
    """Return what is varied, by path from the section on, with the values to try; lists: the name of the table."""
    require(isinstance(table, dict), f"{lists} must be a section of its own: [{lists}]")
    axes: list[tuple[tuple[str, ...], list[Any]]] = []

    def walk(part: Mapping[str, Any], before: tuple[str, ...]) -> None:
        for key, value in part.items():
            path = (*before, *key.split("."))
            if isinstance(value, dict):
                walk(value, path)
            else:
                name = ".".join((lists, *path))
                require(
                    isinstance(value, list) and bool(value), f"{name} must be a list of values to try, not {value!r}"
                )
                require(all(path != other for other, _ in axes), f"{name} occurs twice; give one list of values")
                axes.append((path, value))

    walk(table, ())
    example = '"run.seed" = [0, 1, 2]' if lists == SWEEP else '"algorithm.lr_max" = [0.01, 0.02]'
    require(bool(axes), f"[{lists}] must hold at least one list of values, for example {example}")
    return axes


def _set(tables: dict[str, Any], path: tuple[str, ...], value: Any, lists: str) -> None:
    if len(path) == 1:
        require(isinstance(value, dict), f"{lists}.{path[0]} must be a list of tables for [{path[0]}]")
        tables[path[0]] = dict(value)
        return
    table = tables
    for key in path[:-1]:
        inside = table.get(key, {})
        require(isinstance(inside, dict), f"{lists}.{'.'.join(path)}: {key!r} is a value, not a section")
        table[key] = dict(inside)
        table = table[key]
    table[path[-1]] = value


def _label(
    each: Experiment, applied: Sequence[tuple[tuple[str, ...], Any]], several: Collection[tuple[str, ...]]
) -> str:
    """Return the algorithm's name, ``source only`` or the given label, followed by all swept values but the seed.

    several: the paths that are swept over more than one value.
    """
    parts = [each.label]
    for path, value in applied:
        name = value.get("name") if isinstance(value, dict) else value
        if path in several and path in (("objective",), ("objective", "name")):
            parts += [] if each.source_only and not each.run.label else [str(name)]
        elif path in several and path in (("algorithm",), ("algorithm", "name")):
            parts += [str(name)] if each.source_only or each.run.label else []
        elif path[-1] not in ("seed", "name", "label") and len(path) > 1:
            parts.append(f"{path[-1]}={value}")
    return " ".join(parts)


@dataclass(frozen=True)
class Group:
    """Runs that form one program, by number, with runs of the same algorithm next to each other."""

    members: tuple[int, ...]


def groups(experiments: Sequence[Experiment], adaptations: Sequence[Adaptation]) -> list[Group]:
    """Group runs into as few programs as possible: runs of one shape together, those of one algorithm adjacent."""
    found: dict[str, list[int]] = {}
    for number, (planned, adaptation) in enumerate(zip(experiments, adaptations, strict=True)):
        found.setdefault(_shape(planned, adaptation), []).append(number)
    return [
        Group(tuple(sorted(members, key=lambda number: (experiments[number].algorithm.name, number))))
        for members in found.values()
    ]


def _shape(planned: Experiment, adaptation: Adaptation) -> str:
    """Return what runs of one program must share."""
    function = adaptation.function
    return repr(
        (
            [(block.name, block.shape) for block in function.layout.blocks],
            (function.layout.dtype, str(function.layout.device), function.input_shape, planned.model),
            (adaptation.objective.structure(), len(adaptation.problem.clients), planned.run.batch_size),
            adaptation.odds if adaptation.objective.restrained else None,
            (planned.run.rounds, planned.run.evaluate_every, planned.run.precision, planned.run.threads),
            [(list(evaluator.measures), len(evaluator)) for evaluator in adaptation.evaluators],
            (adaptation.row_dtype, adaptation.view, planned.terms.structure()),
        )
    )
