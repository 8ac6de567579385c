"""``fedmm reproduce``: the paper's figures and tables."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from fedmm.cli.console import AllowImport, say
from fedmm.core.errors import unknown
from fedmm.core.validation import at_least, not_negative, one_of
from fedmm.models.devices import read_precision
from fedmm.reproduction import draw_item
from fedmm.reproduction.items import FULL, Item, read_items
from fedmm.reproduction.plan import plan_runs
from fedmm.reproduction.results import RESULTS
from fedmm.reproduction.run import Reproduced, Where
from fedmm.reproduction.run import reproduce as reproduce_runs
from fedmm.reproduction.write_results import collect

_STATES = Path("runs") / "reproduce"


class _Selection(NamedTuple):
    """The selected runs of an item: an empty list of panels, curves or seeds selects all of them."""

    panels: list[str]
    curves: list[str]
    seeds: list[int]
    scale: str


def reproduce(
    item: Annotated[str, typer.Argument(help="figure-2, figure-4, figure-5, table-1, table-2, ... or all.")],
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel (a table's row). May be repeated.")] = None,
    curve: Annotated[list[str] | None, typer.Option(help="Only this curve (a column). May be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed. May be repeated.")] = None,
    scale: Annotated[str, typer.Option(help="full, or smoke: every run for a few rounds on a few rows.")] = "full",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="Precision of float32 products on a GPU: fp32, tf32 or bf16.")
    ] = "fp32",
    stack: Annotated[int, typer.Option(help="The most runs in one program.")] = 16,
    seconds: Annotated[
        float, typer.Option(help="A time limit in seconds; unfinished runs can be continued; 0: no limit.")
    ] = 0.0,
    results: Annotated[
        Path | None,
        typer.Option(help="A results file to use instead of the item's own; the drawing goes into a folder beside it."),
    ] = None,
    paper: Annotated[Path, typer.Option(help="The folder with the paper's items.")] = Path("paper"),
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing; draw the existing results.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Reproduce a figure or table of the paper: run what is missing, resume what was interrupted, and draw it."""
    where = Where(device, read_precision(precision, "--precision"), stack, seconds)
    selection = _Selection(panel or [], curve or [], seed or [], scale)
    for found in _find_items(item, paper):
        left = _reproduce_item(found, paper, selection, where, results, draw_only=draw).left
        if left:
            say(f"{left} runs are left")
            break


def _find_items(name: str, paper: Path) -> list[Item]:
    """Return the item of this name, written with - or _, or all items."""
    known = read_items(paper)
    if name == "all":
        return list(known.values())
    wanted = name.replace("-", "_")
    if wanted not in known:
        raise unknown("figure or table", name, [known_name.replace("_", "-") for known_name in [*known, "all"]])
    return [known[wanted]]


def _reproduce_item(
    item: Item, paper: Path, selection: _Selection, where: Where, results: Path | None, *, draw_only: bool
) -> Reproduced:
    """Run what is missing and draw it; for the paper's own results at full scale, also write ``paper/results.json``."""
    at_least("--stack", where.stack, 1)
    not_negative("--seconds", where.seconds)
    one_of("--precision", where.precision, ("fp32", "tf32", "bf16"))
    items = read_items(paper)
    source, scale = items[item.runs_of], selection.scale
    if scale not in source.scales:
        raise unknown(f"scale of {source.name}", scale, source.scales)
    small = scale != FULL
    folder = _STATES / f"{item.name}-{scale}" if small else item.folder
    if results is not None:  # a part of an item must not be drawn over the whole
        folder = results.parent / f"{results.stem}-{item.name}"
    lines = results or (_STATES / f"{source.name}-{scale}" if small else source.folder) / RESULTS
    say(f"{item.title} ({scale})")
    done = Reproduced(0, 0, 0)
    if not draw_only:
        command = _command(item, selection, where)
        runs = plan_runs(source, scale, selection.panels, selection.curves, selection.seeds)
        others = [] if small else [other.folder / RESULTS for other in items.values()]
        done = reproduce_runs(runs, lines, _STATES / "states", where, command, elsewhere=others, progress=True, say=say)
    if done.left and not lines.exists():
        return done
    for path in draw_item(item.folder, lines, folder):
        say(f"drawn: {path}")
    if not small and results is None:
        say(f"every number: {collect(paper, list(items))}")
    return done


def _command(item: Item, selection: _Selection, where: Where) -> str:
    """Return the command that computes these runs on any machine: options that name folders are left out."""
    words = ["fedmm", "reproduce", item.name.replace("_", "-")]
    options: dict[str, Sequence[object]] = {
        "--panel": selection.panels,
        "--curve": selection.curves,
        "--seed": selection.seeds,
    }
    for option, values in options.items():
        for value in values:
            words += [option, str(value)]
    words += [] if selection.scale == FULL else ["--scale", selection.scale]
    words += ["--device", where.device, "--precision", where.precision]
    return shlex.join(words)
