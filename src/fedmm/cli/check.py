"""``fedmm check``: an experiment looked at before it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say
from fedmm.core.errors import FedmmError

if TYPE_CHECKING:
    from fedmm.preflight.check import Checked

_WARNED = 1
_MOST_CLIENTS = 40


def check(
    file: Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if there are warnings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    pictures: Annotated[int, typer.Option(help="How many pictures to read from larger folders.")] = 600,
    allow_import: AllowImport = None,
) -> None:
    """Check data and configuration before you train: classes, shapes, data leakage, memory, time.

    The exit code is 0, or 1 with --strict if there are warnings, or 2 if the experiment cannot run.
    """
    from fedmm.config.schema import experiment  # noqa: PLC0415 - torch
    from fedmm.config.sweep_grid import SWEEP, grid  # noqa: PLC0415 - torch
    from fedmm.config.toml import read_tables, set_values  # noqa: PLC0415 - torch
    from fedmm.core.validation import at_least  # noqa: PLC0415 - torch
    from fedmm.preflight.check import check as checked  # noqa: PLC0415 - torch

    try:
        at_least("--pictures", pictures, 1)
        tables = set_values(read_tables(file), settings or [])
        runs = grid(tables) if SWEEP in tables else [experiment(tables)]
        found = checked(runs[0], pictures)
    except FedmmError as problem:
        if as_json:
            typer.echo(json.dumps({"format": "fedmm-check-1", "error": str(problem)}, indent=2))
        raise
    if as_json:
        typer.echo(json.dumps({**found.table(), "runs": len(runs)}, indent=2, allow_nan=False))
    else:
        _show(found, len(runs))
    if strict and found.warnings:
        raise typer.Exit(_WARNED)


def _show(found: Checked, runs: int) -> None:
    console, each = Console(), found.experiment
    if runs > 1:
        say(f"a sweep of {runs} runs that can all be built; this is the first")
    method = (
        f"source only ({each.algorithm.name})" if each.source_only else f"{each.algorithm.name}, {each.objective.name}"
    )
    say(f"{method}, {each.model.name} on {each.data.name}, {each.partition.name}")
    console.print(_parts(found))
    console.print(_clients(found, console.width))
    needs = found.needs
    say(
        f"{needs.parameters:,} parameters; memory about {_size(needs.memory)} beside torch itself: data "
        f"{_size(needs.data)}, states of server and clients {_size(needs.states)}, activations "
        f"{_size(needs.activations)} (engine {found.engine})"
    )
    say(
        f"a local step takes {_time(needs.step)} on this CPU, a round {_time(needs.round)}, an evaluation "
        f"{_time(needs.evaluation)}: about {_time(needs.run)} for {each.run.rounds} rounds"
    )
    for finding in found.findings:
        style = "bold yellow" if finding.level == "warning" else "dim"
        console.print(Text(f"{finding.level}: {finding.text}", style=style), soft_wrap=True)
    warned = len(found.warnings)
    many = "no warnings" if not warned else f"{warned} warning{'s' if warned > 1 else ''}"
    say(f"it can run; {many} ({found.seconds:.1f} s)")


def _parts(found: Checked) -> Table:
    table = Table()
    table.add_column("part")
    for heading in ("rows", "labelled", "shape", "type", "values", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in found.parts:
        shape, values = "x".join(map(str, part.shape)), f"{part.low:.3g} to {part.high:.3g}"
        table.add_row(part.name, f"{part.rows:,}", f"{part.labelled:,}", shape, part.dtype, values, f"{part.mean:.3g}")
    return table


def _clients(found: Checked, width: int) -> Table:
    """Source rows by class where they fit, else how many classes a client has and their smallest and largest."""
    names = found.class_names
    longest = max(len(client.name) for client in found.clients[:_MOST_CLIENTS])
    apart = longest + 30 + sum(max(len(name[:10]), 5) + 3 for name in names) <= width
    table = Table()
    table.add_column("client", no_wrap=True)
    for heading in ("source", "target", *(name[:10] for name in names if apart), *([] if apart else ["classes"])):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for client in found.clients[:_MOST_CLIENTS]:
        held = [count for count in client.classes if count]
        if apart:
            cells = [str(count) if count else "·" for count in client.classes]
        else:
            cells = [f"{len(held)} of {len(names)}, {min(held)} to {max(held)} rows" if held else "·"]
        table.add_row(Text(client.name), f"{client.source:,}", f"{client.target:,}", *cells)
    if len(found.clients) > _MOST_CLIENTS:
        table.add_row(f"and {len(found.clients) - _MOST_CLIENTS} more")
    return table


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < 120:
        return f"{seconds:.{0 if seconds >= 10 else 1}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
