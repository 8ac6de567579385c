"""What ``fedmm compare`` found, from its ``compare.json``: a table for terminal, Markdown and CSV, and a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator
from rich.table import Table

from fedmm.core.errors import FedmmError, require
from fedmm.core.signals.validators import VALIDATORS
from fedmm.reporting.style import FAINT, INK, RULE, SMALL, TEXT, Strip, compose
from fedmm.reporting.tables import FittedRow, fit_table, markdown_lines

_ACCURACIES = (
    "target_accuracy", "source_accuracy", "domain_accuracy", "validation_accuracy", "validation_worst_accuracy",
    "source_worst_accuracy",
)  # fmt: skip
_AREAS = ("auroc", "average_precision")
_SHOWN = ("target_accuracy", "target_information", "target_bnm", "source_risk")
"""In the terminal and in the picture: what the verdict goes by, after what labels say where there are some."""
_HIGHER = {validator.column: validator.higher for validator in VALIDATORS.values()}
_SUPPORTED = {True: "yes", False: "no", None: "unclear"}
_COLOURS = {True: "#D55E00", False: "#0072B2", None: "#0072B2"}

Values = Sequence[float | None]


def read_compared(folder: Path) -> dict[str, Any]:
    """What a folder of ``fedmm compare`` says."""
    path = folder / "compare.json"
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        require(table["format"] == "fedmm-compare-1", f"{path} was written by another version of fedmm")
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as problem:
        raise FedmmError(f"{path} cannot be read: {problem}; let `fedmm compare` end") from problem
    return dict(table)


def rich_compared(table: Mapping[str, Any], width: int) -> Table:
    """The candidates with what the verdict goes by, as far as the width allows: mean and deviation over seeds."""
    columns, judged = _list_shown(table), _list_judged(table)
    headings = [*judged, *(_title(column).replace(" (%)", "\u00a0(%)").replace(" ", "\n") for column in columns)]
    rows = []
    for entry in table["candidates"]:
        cells = [_short(column, entry["measures"].get(column, ())) for column in columns]
        bold = not judged and entry["label"] == table["verdict"]["use"]
        rows.append(FittedRow(_name(entry), [*([_describe_support(entry)] if judged else []), *cells], bold))
    return fit_table("candidate", headings, rows, width)


def write_markdown(table: Mapping[str, Any]) -> str:
    """The verdict, the table of all candidates and all validators, and the word on each candidate."""
    columns = _list_measured(table)
    judged = _list_judged(table)
    head = ["candidate", *(_title(column) for column in columns), *judged]
    lines = [head, [":--", *["--:"] * (len(head) - 1)]]
    for entry in table["candidates"]:
        cells = [_long(column, entry["measures"].get(column, ())) for column in columns]
        lines.append([_name(entry), *cells, *([_describe_support(entry)] if judged else [])])
    seeds = len(table["seeds"])
    over = f"mean (lowest to highest) over {seeds} seeds" if seeds > 1 else "one seed"
    paragraphs = [
        f"# {table['title']}",
        *sentences(table),
        markdown_lines(lines).rstrip("\n"),
        f"After {table['rounds']} rounds, {over}; accuracies in percent.",
        "\n".join(f"- {e['label']}: {e['verdict']['sentence']}" for e in table["candidates"] if "verdict" in e),
    ]
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def csv_compared(table: Mapping[str, Any]) -> str:
    """A line for each run: candidate, seed, folder, and all that was measured after the last round."""
    columns = _list_measured(table)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    judged = _list_judged(table)
    writer.writerow(["candidate", "algorithm", "objective", "seed", "folder", *columns, *judged])
    for entry in table["candidates"]:
        for number, (seed, run) in enumerate(zip(table["seeds"], entry["runs"], strict=True)):
            values = [entry["measures"].get(column, {number: None}) for column in columns]
            cells = ["" if value[number] is None else value[number] for value in values]
            about = [entry["label"], entry["algorithm"], entry["objective"], seed, run]
            writer.writerow([*about, *cells, *([_describe_support(entry)] if judged else [])])
    return text.getvalue()


def sentences(table: Mapping[str, Any]) -> list[str]:
    """The verdict, the class mix it goes by, and what labels of the target or rows to test on say of it, if any."""
    shift = table["label_shift"]
    mix = [shift["sentence"][0].upper() + shift["sentence"][1:] + "."] if shift else []
    labels = [table["target_labels"]] if table["target_labels"] else []
    notes = [f"{note[0].upper()}{note[1:]}." for note in table.get("notes", ())]
    return [table["verdict"]["sentence"], *mix, *labels, *notes]


def draw_compared(folder: Path) -> Path:
    """Write ``compare.png``: every candidate's runs by what the verdict goes by, beside source only."""
    table = read_compared(folder)
    seeds = len(table["seeds"])
    about = f"{table['verdict']['sentence']} A dot is a seed, a bar their mean" + (
        f" over {seeds}" if seeds > 1 else ""
    )
    strip = Strip(0.36 * len(table["candidates"]) + 1.1, lambda part: _draw_dots(part, table))
    first = table["candidates"][0]["label"]
    return compose(table["title"], f"{about}; the dashed line is {first}.", [strip], folder / "compare.png")


def _draw_dots(part: SubFigure, table: Mapping[str, Any]) -> None:
    """Candidates below each other, axes for each metric."""
    entries = table["candidates"]
    columns = _list_shown(table) or list(table.get("shown", _SHOWN))[:1]
    grid = part.subplots(1, len(columns), squeeze=False, sharey=True)[0]
    for axes, column in zip(grid, columns, strict=True):
        _draw_column(axes, column, entries)
    grid[0].set_yticks([row + 0.5 for row in range(len(entries))], [_name(entry) for entry in entries])
    for label, entry in zip(grid[0].get_yticklabels(), entries, strict=True):
        label.set(fontsize=TEXT, color=INK, weight="bold" if entry["label"] == table["verdict"]["use"] else "normal")


def _draw_column(axes: Axes, column: str, entries: Sequence[Mapping[str, Any]]) -> None:
    oracle = ", labels" if column == "target_accuracy" else ""
    better = "higher" if _HIGHER.get(column, True) else "lower"
    axes.set_title(_title(column), loc="left", fontsize=SMALL, weight="bold", color=INK, pad=22)
    axes.annotate(
        f"{better} is better{oracle}", (0, 1), (0, 6), "axes fraction", "offset points", fontsize=SMALL, color=FAINT
    )
    axes.set_ylim(len(entries), 0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(FAINT)
    axes.tick_params(axis="x", labelsize=SMALL, labelcolor=FAINT, color=FAINT, length=3.5)
    axes.tick_params(axis="y", length=0)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=3))
    for row, entry in enumerate(entries):
        values = _numbers(column, entry["measures"].get(column, ()))
        colour = _COLOURS[entry["verdict"]["supported"]] if "verdict" in entry else FAINT
        axes.axhline(row + 0.5, color=RULE, linewidth=0.8, zorder=0)
        axes.scatter(values, [row + 0.5] * len(values), s=26, color=colour, alpha=0.55, linewidths=0, zorder=3)
        if values:
            mean = fmean(values)
            axes.plot([mean, mean], [row + 0.24, row + 0.76], color=colour, linewidth=2.4, zorder=4)
            if not row:
                axes.axvline(mean, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    axes.margins(x=0.1)


def _list_measured(table: Mapping[str, Any]) -> list[str]:
    """The columns that some candidate has, those of the labels first."""
    order = (*table.get("shown", ()), *_ACCURACIES[:2], *_HIGHER)
    found = {column for entry in table["candidates"] for column in entry["measures"]}
    return [column for column in dict.fromkeys(order) if column in found]


def _list_shown(table: Mapping[str, Any]) -> list[str]:
    """The columns of the terminal and the picture."""
    return [column for column in table.get("shown", _SHOWN) if column in _list_measured(table)]


def _list_judged(table: Mapping[str, Any]) -> list[str]:
    """The heading of what is said of adapting; none if there is no target."""
    return [] if table.get("metric") else ["supported"]


def _name(entry: Mapping[str, Any]) -> str:
    diverged = f" ({entry['diverged']} of {len(entry['runs'])} runs diverged)" if entry["diverged"] else ""
    return f"{entry['label']}{diverged}"


def _describe_support(entry: Mapping[str, Any]) -> str:
    return _SUPPORTED[entry["verdict"]["supported"]] if "verdict" in entry else ""


def _title(column: str) -> str:
    return column.replace("_", " ").replace("auroc", "AUROC") + (" (%)" if column in _ACCURACIES else "")


def _numbers(column: str, values: Values) -> list[float]:
    scale = 100.0 if column in _ACCURACIES else 1.0
    return [scale * value for value in values if value is not None]


def _short(column: str, values: Values) -> str:
    digits = 1 if column in _ACCURACIES else 3 if column.endswith(_AREAS) else 2
    return _spread(_numbers(column, values), digits, "{mean} ±{std}")


def _long(column: str, values: Values) -> str:
    return _spread(_numbers(column, values), 1 if column in _ACCURACIES else 3, "{mean} ({low} to {high})")


def _spread(values: Sequence[float], digits: int, form: str) -> str:
    if len(values) < 2:
        return f"{values[0]:.{digits}f}" if values else "-"
    numbers = {"mean": fmean(values), "std": stdev(values), "low": min(values), "high": max(values)}
    return form.format(**{name: f"{number:.{digits}f}" for name, number in numbers.items()})
