"""The paper as data: an item is a figure or a table, with a TOML file for each of its curves or cells.

paper/figure_5/item.toml                 title, form, order of panels and curves, the paper's numbers, scales
paper/figure_5/dann_1s1t/fedmm.toml      an experiment, with its seeds in [sweep]: the curve ``fedmm`` of a panel
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmm.core.errors import require, unknown
from fedmm.core.files import is_folder, is_name
from fedmm.reporting.fields import Fields, read_toml

FORMS = ("curves", "rates", "accuracy_table", "rounds_table")
FULL = "full"
"""The scale of the paper's own experiments."""
ITEM, _PANEL_BASE = "item.toml", "panel.toml"
"""``panel.toml`` has what a panel's experiments share; it is not an experiment."""
Cell = tuple[str, str]
"""A panel and a curve, by name."""


@dataclass(frozen=True)
class Item:
    """A figure (its panels contain curves) or a table (its panels are rows, its curves columns).

    runs_of: the item whose runs it shows, for most items itself.
    scale_changes: for each smaller scale, the values that it changes in every experiment, by section.
    columns_of: the curves of each objective, for tables.
    paper_accuracy, paper_rounds: the paper's own numbers, in percent and in hundreds of rounds.
    """

    folder: Path
    title: str
    form: str
    panels: tuple[str, ...]
    runs_of: str
    columns: int = 3
    curves: tuple[str, ...] = ()
    logarithmic: bool = False
    panel_titles: Mapping[str, str] = field(default_factory=dict)
    columns_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paper_accuracy: Mapping[Cell, float] = field(default_factory=dict)
    paper_rounds: Mapping[Cell, float] = field(default_factory=dict)
    scale_changes: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def scales(self) -> list[str]:
        return [FULL, *(name for name in self.scale_changes if name != FULL)]

    def panel_title(self, panel: str) -> str:
        return self.panel_titles.get(panel, panel)

    def curve_files(self, panel: str) -> list[Path]:
        """Return the TOML file of each curve of a panel, from the folder of the item whose runs it shows."""
        folder = self.folder.parent / self.runs_of / panel
        return sorted(path for path in folder.glob("*.toml") if path.name != _PANEL_BASE)

    def expected(self) -> list[Cell]:
        """Return the cells that have an experiment, in order.

        A panel's experiments are the TOML files in its folder; if there are none, every listed curve counts.
        """
        named = dict.fromkeys([*self.curves, *(curve for curves in self.columns_of.values() for curve in curves)])
        cells: list[Cell] = []
        for panel in self.panels:
            files = [path.stem for path in self.curve_files(panel)]
            cells += [(panel, curve) for curve in (in_order(files, self.curves) if files else named)]
        return cells


def in_order(names: Iterable[str], listed: Iterable[str]) -> list[str]:
    """Return the names once each: first those in ``listed``, in its order, then the others sorted."""
    given, order = set(names), list(dict.fromkeys(listed))
    return [name for name in order if name in given] + sorted(given.difference(order))


def read_item(folder: Path | str) -> Item:
    """Read the item of a folder with an ``item.toml``."""
    folder = Path(folder).resolve()
    path = folder / ITEM
    table = read_toml(path, "give the folder of a figure or table")
    panels = table.names("panels")
    require(bool(panels), f"{path} must list at least one of its 'panels'")
    require(all(map(is_name, panels)), f"{path} must list 'panels' by the names of their folders beside it")
    scales = {
        scale: {section: changes.values for section, changes in sections.tables().items()}
        for scale, sections in table.table("scale").tables().items()
    }
    paper = table.table("paper")
    return Item(
        folder=folder,
        title=table.text("title"),
        form=table.one_of("form", FORMS),
        panels=panels,
        columns=table.whole("columns", 3, least=1),
        curves=table.names("curves"),
        runs_of=table.text("runs_of", folder.name),
        logarithmic=table.one_of("x", ("linear", "log"), "linear") == "log",
        panel_titles={panel: about.text("title", panel) for panel, about in table.table("panel").tables().items()},
        columns_of={
            objective: table.table("columns_of").names(objective) for objective in table.table("columns_of").values
        },
        paper_accuracy=_cells(paper.table("accuracy")),
        paper_rounds=_cells(paper.table("rounds")),
        scale_changes=scales,
    )


def _cells(table: Fields) -> dict[Cell, float]:
    """Return numbers by panel and curve, from a table of tables."""
    return {(panel, curve): row.number(curve) for panel, row in table.tables().items() for curve in row.values}


def read_items(paper: Path) -> dict[str, Item]:
    """Read all items in a folder such as ``paper/``, by name."""
    files = sorted(paper.glob(f"*/{ITEM}")) if is_folder(paper) else []
    require(
        bool(files), f"{paper} holds no {ITEM} of a figure or table; run this in a checkout, or name the folder --paper"
    )
    items = {path.parent.name: read_item(path.parent) for path in files}
    for item in items.values():
        if item.runs_of not in items:
            raise unknown(f"item in runs_of of {item.folder / ITEM}", item.runs_of, items)
    return items
