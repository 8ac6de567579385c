"""The runs of an item: an experiment for every panel, curve and seed at a scale."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedmm.config.schema import Experiment
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.config.toml import merge_tables, read_tables
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.reproduction.items import FULL, Item

_ABOUT = "reproduce"


@dataclass(frozen=True)
class PaperRun:
    """One run of a curve. role: ``method``, or ``bound`` for what no federated method could be."""

    item: str
    panel: str
    curve: str
    role: str
    scale: str
    experiment: Experiment


def plan_runs(
    item: Item, scale: str = FULL, panels: Sequence[str] = (), curves: Sequence[str] = (), seeds: Sequence[int] = ()
) -> list[PaperRun]:
    """Return all runs of an item at a scale, or those of the given panels, curves and seeds."""
    _check_names(f"scale of {item.name}", [scale], item.scales)
    _check_names(f"panel of {item.name}", panels, item.panels)
    files = {panel: item.curve_files(panel) for panel in item.panels}
    for panel, paths in files.items():
        require(bool(paths), f"{item.folder / panel} holds no curve of panel {panel!r}; add a TOML file for each")
    _check_names(f"curve of {item.name}", curves, {path.stem for paths in files.values() for path in paths})
    runs = [
        run
        for panel, paths in files.items()
        if not panels or panel in panels
        for path in paths
        if not curves or path.stem in curves
        for run in _plan_curve(item, panel, path, scale)
    ]
    _check_names(f"seed of {item.name}", map(str, seeds), {str(run.experiment.run.seed) for run in runs})
    return [run for run in runs if not seeds or run.experiment.run.seed in seeds]


def _check_names(kind: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            raise unknown(kind, name, known)


def _plan_curve(item: Item, panel: str, path: Path, scale: str) -> list[PaperRun]:
    tables = read_tables(path)
    about = tables.pop(_ABOUT, {})
    role = about.get("role", "method") if isinstance(about, dict) else None
    require(role in ("method", "bound"), f"{path}: reproduce.role must be 'method' or 'bound'")
    changes = item.scale_changes.get(scale, {})
    if SWEEP not in tables:
        tables[SWEEP] = {"run.seed": [0]}
        changes = {section: table for section, table in changes.items() if section != SWEEP}
    tables = merge_tables(tables, changes)
    try:
        experiments = grid(tables)
    except FedmmError as problem:
        raise FedmmError(f"{path}: {problem}") from problem
    label = tables.get("run", {}).get("label")
    for experiment in experiments:
        require(experiment.label == label, f"{path}: run.label is missing, or [sweep] has more than run.seed")
    return [PaperRun(item.name, panel, path.stem, str(role), scale, experiment) for experiment in experiments]
