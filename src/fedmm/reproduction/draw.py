"""From the results of an item's runs to its picture and page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedmm.core.files import atomic_write
from fedmm.reporting.style import save
from fedmm.reproduction.caption import made_by, missing
from fedmm.reproduction.figures import draw_curves
from fedmm.reproduction.item import Item, read_item
from fedmm.reproduction.panels import panels_of
from fedmm.reproduction.pictures import draw_tables
from fedmm.reproduction.rates import rates_table
from fedmm.reproduction.results import PaperRun, read_results, runs_of_item
from fedmm.reproduction.summary import runs_table
from fedmm.reproduction.tables import accuracy_grids, markdown, rounds_grids


def draw_item(item_folder: Path | str, results: Path | str, out: Path | str) -> list[Path]:
    """Write a figure or table of the paper from its results, as ``<item>.svg``, ``.png`` and ``.md`` in ``out``.

    item_folder: holds ``item.toml``. results: JSON lines, one finished run each; what is not there yet is said in the
    picture and on the page. Returns the files written.
    """
    item, out = read_item(item_folder), Path(out)
    runs = runs_of_item(read_results(results), item, Path(results))
    figure, body = _figure(item, runs) if item.form in ("curves", "rates") else _table(item, runs)
    page = out / f"{item.name}.md"
    parts = [
        f"# {item.title}\n",
        f"![{item.title}]({item.name}.svg)\n",
        body,
        made_by(item, runs),
        missing(item, runs),
    ]
    with atomic_write(page) as partial:
        partial.write_text("\n".join(parts), "utf-8")
    return [save(figure, out / f"{item.name}.svg"), save(figure, out / f"{item.name}.png"), page]


def _figure(item: Item, runs: Sequence[PaperRun]) -> tuple[Figure, str]:
    tables = [runs_table(runs, item.panels, item.curves, item.panel_titles)]
    if item.form == "rates":
        tables.insert(0, rates_table(panels_of(item, runs)))
    return draw_curves(item, runs), "\n".join(tables)


def _table(item: Item, runs: Sequence[PaperRun]) -> tuple[Figure, str]:
    grids = accuracy_grids(item, runs) if item.form == "accuracy_table" else rounds_grids(item, runs)
    return draw_tables(item.title, grids), "\n".join(markdown(grid) for grid in grids)
