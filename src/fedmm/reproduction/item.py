"""What a figure or table of the paper is: ``item.toml`` of its folder, as far as drawing needs it.

The same file may hold keys for those who run the experiments; they are not looked at here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.paths import is_name
from fedmm.reporting.fields import finite

FORMS = ("curves", "rates", "accuracy_table", "rounds_table")
_PANEL_BASE = "panel.toml"
"""What the experiments of a panel share; no experiment itself."""
Cell = tuple[str, str]
"""A panel and a curve, by name."""


@dataclass(frozen=True)
class Item:
    """A figure (its panels hold curves) or a table (its panels are rows, its curves columns).

    runs_of: the item whose runs it is made of, itself for most.
    columns_of: the curves of each objective, for tables.
    paper_accuracy, paper_rounds: the paper's own numbers, in percent and in hundreds of rounds.
    """

    folder: Path
    title: str
    form: str
    panels: tuple[str, ...]
    columns: int = 3
    curves: tuple[str, ...] = ()
    runs_of: str = ""
    logarithmic: bool = False
    panel_titles: Mapping[str, str] = field(default_factory=dict)
    columns_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    paper_accuracy: Mapping[Cell, float] = field(default_factory=dict)
    paper_rounds: Mapping[Cell, float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.name

    def panel_title(self, panel: str) -> str:
        return self.panel_titles.get(panel, panel)

    def expected(self) -> list[Cell]:
        """The cells that have an experiment, in order.

        A panel's experiments are the TOML files of its folder; where it has none, every listed curve counts.
        """
        home = self.folder.parent / self.runs_of if self.runs_of else self.folder
        named = dict.fromkeys([*self.curves, *(curve for curves in self.columns_of.values() for curve in curves)])
        cells: list[Cell] = []
        for panel in self.panels:
            files = [path.stem for path in (home / panel).glob("*.toml") if path.name != _PANEL_BASE]
            cells += [(panel, curve) for curve in (in_order(files, self.curves) if files else named)]
        return cells


def in_order(names: Iterable[str], listed: Iterable[str]) -> list[str]:
    """The names without repetition: those that are listed in the order of the list, then the others by name."""
    given, order = set(names), list(dict.fromkeys(listed))
    return [name for name in order if name in given] + sorted(given.difference(order))


def read_item(folder: Path | str) -> Item:
    """The item of a folder with an ``item.toml``."""
    folder = Path(folder).resolve()
    table = _Table(folder / "item.toml", _toml(folder / "item.toml"))
    form = table.text("form")
    require(form in FORMS, f"{table.path} must give 'form' as one of {', '.join(FORMS)}, not {form!r}")
    scale = table.text("x", "linear")
    require(scale in ("linear", "log"), f"{table.path} must give 'x' as linear or log, not {scale!r}")
    columns = table.values.get("columns", 3)
    if not isinstance(columns, int) or isinstance(columns, bool) or columns < 1:
        raise FedmmError(f"{table.path} must give 'columns' as a whole number of at least 1, not {columns!r}")
    panels = table.names("panels")
    require(bool(panels), f"{table.path} must list at least one of its 'panels'")
    require(all(map(is_name, panels)), f"{table.path} must list 'panels' by the names of their folders beside it")
    paper = table.below("paper")
    return Item(
        folder=folder,
        title=table.text("title"),
        form=form,
        panels=panels,
        columns=columns,
        curves=table.names("curves"),
        runs_of=table.text("runs_of", ""),
        logarithmic=scale == "log",
        panel_titles={panel: about.text("title", panel) for panel, about in table.below("panel").tables().items()},
        columns_of={
            objective: table.below("columns_of").names(objective) for objective in table.below("columns_of").values
        },
        paper_accuracy=paper.below("accuracy").cells(),
        paper_rounds=paper.below("rounds").cells(),
    )


@dataclass(frozen=True)
class _Table:
    """A table of a TOML file, whose values are checked as they are taken; a table that is not there is empty."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def text(self, name: str, default: str | None = None) -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            raise FedmmError(f"{self.path} must give '{self.prefix}{name}' as text, not {value!r:.60}")
        return value

    def names(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            raise FedmmError(f"{self.path} must give '{self.prefix}{name}' as a list of names, not {value!r:.60}")
        return tuple(value)

    def below(self, name: str) -> _Table:
        value = self.values.get(name, {})
        if not isinstance(value, dict):
            raise FedmmError(f"{self.path} must give '{self.prefix}{name}' as a table, not {value!r:.60}")
        return _Table(self.path, value, f"{self.prefix}{name}.")

    def tables(self) -> dict[str, _Table]:
        return {name: self.below(name) for name in self.values}

    def cells(self) -> dict[Cell, float]:
        """Numbers by panel and curve, from a table of tables."""
        return {(panel, curve): row.number(curve) for panel, row in self.tables().items() for curve in row.values}

    def number(self, name: str) -> float:
        value = finite(self.values.get(name))
        if value is None:
            raise FedmmError(f"{self.path} must give '{self.prefix}{name}' as a number, not {self.values[name]!r:.60}")
        return value


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise FedmmError(f"{path} is missing; give the folder of a figure or table") from None
    except OSError as error:
        raise FedmmError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise FedmmError(f"{path} is not valid TOML: {error}") from None
