"""The paper as data: an item is a figure or a table, with a TOML file for each of its curves or cells.

paper/figure_5/item.toml                 title, form, order of panels and curves, the paper's numbers, scales
paper/figure_5/dann_1s1t/fedmm.toml      an experiment, with its seeds in [sweep]: the curve ``fedmm`` of a panel
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedmm.config.schema import Experiment
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.config.toml import merged, read_tables, read_toml
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.paths import is_folder, is_name

ITEM = "item.toml"
PANEL_BASE = "panel.toml"
FULL = "full"
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


@dataclass(frozen=True)
class Item:
    """A figure or a table. runs_of: the item from whose runs it is made, where it has none of its own."""

    name: str
    folder: Path
    about: Mapping[str, Any]

    @property
    def panels(self) -> list[str]:
        return list(self.about["panels"])

    @property
    def runs_of(self) -> str:
        return str(self.about.get("runs_of", self.name))

    @property
    def scales(self) -> list[str]:
        return [FULL, *(name for name in self.about.get("scale", {}) if name != FULL)]

    def runs(
        self, scale: str = FULL, panels: Sequence[str] = (), curves: Sequence[str] = (), seeds: Sequence[int] = ()
    ) -> list[PaperRun]:
        """All runs at a scale; of some panels, curves and seeds where these are given."""
        if scale not in self.scales:
            raise unknown(f"scale of {self.name}", scale, self.scales)
        for panel in panels:
            if panel not in self.panels:
                raise unknown(f"panel of {self.name}", panel, self.panels)
        known = {path.stem for panel in self.panels for path in self._files(panel)}
        for curve in curves:
            if curve not in known:
                raise unknown(f"curve of {self.name}", curve, sorted(known))
        runs = [
            run
            for panel in self.panels
            if not panels or panel in panels
            for path in self._files(panel)
            if not curves or path.stem in curves
            for run in self._curve(panel, path, scale)
        ]
        there = {str(run.experiment.run.seed) for run in runs}
        for seed in seeds:
            if str(seed) not in there:
                raise unknown(f"seed of {self.name}", str(seed), there)
        return [run for run in runs if not seeds or run.experiment.run.seed in seeds]

    def _files(self, panel: str) -> list[Path]:
        files = sorted(path for path in (self.folder / panel).glob("*.toml") if path.name != PANEL_BASE)
        require(bool(files), f"{self.folder / panel} holds no curve of panel {panel!r}; add a TOML file for each")
        return files

    def _curve(self, panel: str, path: Path, scale: str) -> list[PaperRun]:
        tables = read_tables(path)
        about = tables.pop(_ABOUT, {})
        role = about.get("role", "method") if isinstance(about, dict) else None
        require(role in ("method", "bound"), f"{path}: reproduce.role must be 'method' or 'bound'")
        changes = self.about.get("scale", {}).get(scale, {})
        if SWEEP not in tables:
            tables[SWEEP] = {"run.seed": [0]}
            changes = {section: table for section, table in changes.items() if section != SWEEP}
        tables = merged(tables, changes)
        try:
            experiments = grid(tables)
        except FedmmError as problem:
            raise FedmmError(f"{path}: {problem}") from problem
        label = tables.get("run", {}).get("label")
        for each in experiments:
            require(each.label == label, f"{path}: run.label is missing, or [sweep] has more than run.seed")
        return [PaperRun(self.name, panel, path.stem, str(role), scale, each) for each in experiments]


def items(paper: Path) -> dict[str, Item]:
    """The items in a folder such as ``paper/``, by name."""
    files = sorted(paper.glob(f"*/{ITEM}")) if is_folder(paper) else []
    require(
        bool(files), f"{paper} holds no {ITEM} of a figure or table; run this in a checkout, or name the folder --paper"
    )
    found = {path.parent.name: _item(path) for path in files}
    for item in found.values():
        if item.runs_of not in found:
            raise unknown(f"item in runs_of of {item.folder / ITEM}", item.runs_of, found)
    return found


def _item(path: Path) -> Item:
    about = read_toml(path)
    panels = about.get("panels")
    require(
        isinstance(panels, list)
        and bool(panels)
        and all(isinstance(panel, str) and is_name(panel) for panel in panels),
        f"{path}: panels must be a list of the panels' folders",
    )
    scales = about.get("scale", {})
    require(
        isinstance(scales, dict)
        and all(isinstance(each, dict) and all(isinstance(t, dict) for t in each.values()) for each in scales.values()),
        f"{path}: scale must hold tables of changes for each scale, such as [scale.smoke.run]",
    )
    return Item(path.parent.name, path.parent, about)
