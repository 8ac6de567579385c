"""From the results of an item's runs to its picture and page."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from fedmm.core.files import atomic_write
from fedmm.reporting.fields import finite
from fedmm.reporting.style import save
from fedmm.reproduction.figures import draw_curves, rates_table
from fedmm.reproduction.items import FULL, Item, read_item
from fedmm.reproduction.panels import collect_panels
from fedmm.reproduction.pictures import draw_tables
from fedmm.reproduction.results import RunResult, by_cell, read_results, select_runs
from fedmm.reproduction.tables import accuracy_grids, markdown, rounds_grids, runs_table

_ENOUGH_SEEDS = 3
"""From how many on a spread says something."""


def draw_item(item_folder: Path | str, results: Path | str, out: Path | str) -> list[Path]:
    """Write a figure or table of the paper from its results, as ``<item>.svg``, ``.png`` and ``.md`` in ``out``.

    item_folder: holds ``item.toml``. results: JSON lines, one finished run each; what is not there yet is said in the
    picture and on the page. Returns the files written.
    """
    item, out = read_item(item_folder), Path(out)
    runs = select_runs(read_results(results), item, Path(results))
    figure, body = _figure(item, runs) if item.form in ("curves", "rates") else _table(item, runs)
    page = out / f"{item.name}.md"
    parts = [
        f"# {item.title}\n",
        f"![{item.title}]({item.name}.svg)\n",
        body,
        _describe_runs(item, runs),
        _list_missing(item, runs),
    ]
    with atomic_write(page) as partial:
        partial.write_text("\n".join(parts), "utf-8")
    return [save(figure, out / f"{item.name}.svg"), save(figure, out / f"{item.name}.png"), page]


def _figure(item: Item, runs: Sequence[RunResult]) -> tuple[Figure, str]:
    tables = [runs_table(runs, item.panels, item.curves, item.panel_titles)]
    if item.form == "rates":
        tables.insert(0, rates_table(collect_panels(item, runs)))
    return draw_curves(item, runs), "\n".join(tables)


def _table(item: Item, runs: Sequence[RunResult]) -> tuple[Figure, str]:
    grids = accuracy_grids(item, runs) if item.form == "accuracy_table" else rounds_grids(item, runs)
    return draw_tables(item.title, grids), "\n".join(markdown(grid) for grid in grids)


# What stands below: how it was made, on what, and what is missing -----------------------------------------------------


def _describe_runs(item: Item, runs: Sequence[RunResult]) -> str:
    """A Markdown section with the commands, runs, hardware, versions, seconds and commits of the runs."""
    commands = _distinct(runs, "command") or [f"fedmm reproduce {item.runs_of}"]
    lines = ["## How it was made", "", *(f"    {command}" for command in commands), ""]
    lines += [f"- {name}: {words}" for name, words in _facts(runs).items() if words]
    return "\n".join(lines) + "\n"


def _list_missing(item: Item, runs: Sequence[RunResult]) -> str:
    """A Markdown section with what was not computed, diverged, or has a caveat."""
    cells = by_cell(runs)
    lines = []
    for panel in item.panels:
        expected = [curve for name, curve in item.expected() if name == panel]
        absent = [curve for curve in expected if (panel, curve) not in cells]
        if absent:
            what = "everything" if len(absent) == len(expected) else ", ".join(f"`{curve}`" for curve in absent)
            lines.append(f"- {item.panel_title(panel)}: {what} not computed")
    for role in ("method", "bound"):
        groups = [group for group in cells.values() if group[0].role == role]
        wanted = min(_ENOUGH_SEEDS, max((len(group) for group in groups), default=0))
        few = {group[0].cell for group in groups if len(group) < wanted}
        lines += [f"- fewer than {wanted} seeds: {_cells_in_words(item, few)}"] if few else []
    lines += [f"- {_divergence(item, run)}" for run in runs if run.diverged]
    lines += [f"- {words}: {_named(item, runs, words)}" for words in _distinct(runs, "caveat")]
    return "## What is missing\n\n" + ("\n".join(lines) if lines else "Nothing: all runs completed.") + "\n"


def _named(item: Item, runs: Sequence[RunResult], caveat: str) -> str:
    """The cells with runs that have a caveat."""
    cells = {run.cell for run in runs if run.provenance.get("caveat") == caveat}
    return _cells_in_words(item, cells)


def _cells_in_words(item: Item, cells: Collection[tuple[str, str]]) -> str:
    """Curves by panel, in the order of the item."""
    ordered = [cell for cell in item.expected() if cell in cells]
    by_panel = {panel: [f"`{curve}`" for name, curve in ordered if name == panel] for panel, _ in ordered}
    return "; ".join(f"{item.panel_title(panel)} {', '.join(curves)}" for panel, curves in by_panel.items())


def _divergence(item: Item, run: RunResult) -> str:
    measured = run.series("target_accuracy").rounds
    last = f"; last measured in round {measured[-1]:,}" if measured else ""
    return f"{item.panel_title(run.panel)}, {run.label}, seed {run.seed}: diverged{last}"


def _facts(runs: Sequence[RunResult]) -> dict[str, str]:
    seconds = [value for run in runs if (value := finite(run.provenance.get("seconds"))) is not None]
    seeds = sorted({run.seed for run in runs})
    dates = sorted(_distinct(runs, "date"))
    scales = sorted({run.scale for run in runs} - {FULL})
    return {
        "runs": f"{len(runs):,}" + (f", seeds {', '.join(map(str, seeds))}" if seeds else ""),
        "scale": ", ".join(scales) + " (not the paper's size)" if scales else "",
        "seconds": f"{sum(seconds):,.0f} in all, {_between(seconds)} a run" if seconds else "",
        "hardware": "; ".join(_distinct(runs, "hardware")),
        "versions": "; ".join(_distinct(runs, "versions")),
        "precision": ", ".join(_distinct(runs, "precision")),
        "engine": "; ".join(_distinct(runs, "engine")),
        "commit": ", ".join(f"`{commit}`" for commit in _distinct(runs, "commit")),
        "dates": " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else "",
    }


def _between(values: Sequence[float]) -> str:
    return " to ".join(dict.fromkeys(f"{value:,.1f}" for value in (min(values), max(values))))


def _distinct(runs: Sequence[RunResult], name: str) -> list[str]:
    """The different values of a fact about the runs, in order of the runs."""
    given = [run.provenance.get(name) for run in runs]
    return list(dict.fromkeys(words for value in given if (words := _words(value))))


def _words(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_words(part)}" for name, part in value.items() if part is not None)
    if isinstance(value, list | tuple):
        return " ".join(_words(part) for part in value)
    return "" if value is None else str(value)
