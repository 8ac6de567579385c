"""Results as one Markdown table: a row for each curve of each panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedmm.reproduction.item import in_order
from fedmm.reproduction.results import PaperRun, by_cell, read_results
from fedmm.reproduction.tables import ABSENT, escaped

_HEADINGS = ("panel", "curve", "seeds", "target (%)", "min to max", "rounds", "status")


def results_table(results: Path | str) -> str:
    """The runs of a results file in order of its lines; scales stand apart where there are several."""
    runs = read_results(results)
    scales = list(dict.fromkeys(run.scale for run in runs))
    tables = [runs_table([run for run in runs if run.scale == scale]) for scale in scales]
    if len(scales) < 2:
        return tables[0] if tables else runs_table([])
    return "\n".join(f"Scale: {scale}\n\n{table}" for scale, table in zip(scales, tables, strict=True))


def runs_table(
    runs: Sequence[PaperRun],
    panels: Sequence[str] | None = None,
    curves: Sequence[str] | None = None,
    titles: Mapping[str, str] | None = None,
) -> str:
    """The runs as a Markdown table, in the order of the panels and curves that are named."""
    cells = by_cell(runs)
    panels = in_order((run.panel for run in runs), panels or [run.panel for run in runs])
    curves = in_order((run.curve for run in runs), curves or [run.curve for run in runs])
    lines = [list(_HEADINGS), [":--", ":--", *["--:"] * 4, ":--"]]
    lines += [
        [(titles or {}).get(panel, panel), *_row(cells[panel, curve])]
        for panel in panels
        for curve in curves
        if (panel, curve) in cells
    ]
    return "".join("| " + " | ".join(escaped(cell) for cell in line) + " |\n" for line in lines)


def _row(runs: Sequence[PaperRun]) -> list[str]:
    known = [100 * run.target_accuracy for run in runs if run.target_accuracy is not None]
    rounds = sorted({run.rounds for run in runs})
    diverged = sum(run.diverged for run in runs)
    return [
        runs[0].label + (" (bound)" if runs[0].role == "bound" else ""),
        str(len(runs)),
        f"{fmean(known):.1f}" if known else ABSENT,
        f"{min(known):.1f} to {max(known):.1f}" if len(known) > 1 else ABSENT,
        " to ".join(f"{t:,}" for t in dict.fromkeys([rounds[0], rounds[-1]])),
        f"{diverged} of {len(runs)} diverged" if diverged else "completed",
    ]
