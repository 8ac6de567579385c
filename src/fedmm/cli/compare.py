"""``fedmm compare``: which method to use on one's own data, judged without labels of the target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say
from fedmm.core.errors import require
from fedmm.core.files import atomic_write

_INTERRUPTED = 130


def compare(
    file: Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
    ] = None,
    objectives: Annotated[
        str, typer.Option(help="The objectives to adapt with, separated by commas.")
    ] = "dann,cdan,mdd",
    seeds: Annotated[int, typer.Option(help="Seeds per method; there is no verdict with fewer than 3.")] = 3,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run, instead of the file's run.rounds.")] = None,
    out: Annotated[Path | None, typer.Option(help="The folder; runs/NAME-compare by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older comparison in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in that folder.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Train source only, per-site standardisation, FedAvgGDA and FedMM on the data of FILE.toml; say which to use.

    The verdict uses validators, never target labels, and may be that the evidence does not support adapting.
    The folder holds compare.md, compare.csv, compare.json, compare.png, and a folder for each run.
    """
    from fedmm.config.toml import read_tables, set_values  # noqa: PLC0415 - torch
    from fedmm.reporting.compared import (  # noqa: PLC0415 - matplotlib
        csv_compared,
        draw_compared,
        markdown_compared,
        rich_compared,
        sentences,
    )
    from fedmm.runs.compare import compare_methods  # noqa: PLC0415 - torch
    from fedmm.runs.run_folder import folder_name, free_folder, latest_folder  # noqa: PLC0415 - torch

    require(not (resume and overwrite), "--resume and --overwrite exclude each other; use one of them")
    changed = [*(settings or []), *([f"run.rounds={rounds}"] if rounds is not None else [])]
    tables = set_values(read_tables(file), changed)
    usual = Path("runs") / f"{folder_name(file.stem)}-compare"
    folder = out or (latest_folder(usual) if resume else free_folder(usual))
    table = compare_methods(
        tables,
        folder,
        title=file.stem,
        objectives=[name.strip() for name in objectives.split(",") if name.strip()],
        seeds=seeds,
        overwrite=overwrite,
        resume=resume,
        say=say,
    )
    if table is None:
        say(f"stopped; finished runs are in {folder}, and --resume continues the comparison")
        raise typer.Exit(_INTERRUPTED)
    for name, text in (("compare.md", markdown_compared(table)), ("compare.csv", csv_compared(table))):
        with atomic_write(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    draw_compared(folder)
    Console().print(rich_compared(table))
    for sentence in sentences(table):
        say(sentence)
    say(f"every validator: {folder / 'compare.md'}; picture: {folder / 'compare.png'}")
