"""``fedmm tune``: choose a setting for an experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.console import INTERRUPTED, AllowImport, ExperimentFile, Settings, console, say
from fedmm.cli.train import choose_folder
from fedmm.config.toml import read_tables, set_values
from fedmm.reporting.tuned import read_tuned, rich_tuned
from fedmm.runs.run_folder import folder_name
from fedmm.runs.tuning.rungs import ADAPTED, TUNED
from fedmm.runs.tuning.tune import tune as tune_experiment


def tune(
    file: ExperimentFile,
    settings: Settings = None,
    objectives: Annotated[
        str, typer.Option(help="The objectives to try, separated by commas; by default the file's own.")
    ] = "",
    metric: Annotated[
        str, typer.Option(help="Without a target: accuracy, auc or worst_site; by default what the file trains for.")
    ] = "",
    minutes: Annotated[float | None, typer.Option(help="A time budget; there is none by default.")] = None,
    seeds: Annotated[int, typer.Option(help="Seeds per finalist; adapting is never chosen with fewer than 3.")] = 3,
    eta: Annotated[int, typer.Option(help="The first rung keeps the best 1/eta of the candidates.")] = 2,
    out: Annotated[Path | None, typer.Option(help="The folder; runs/NAME-tune by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older tuning in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the tuning in that folder.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Choose the algorithm, penalty, learning rates and nu for FILE.toml, by successive halving.

    A [tune] table in the file, written like [sweep], replaces the default grid. Validators without target labels, and
    the agreement between near rows or seeds, decide; source only wins if adapting looks harmful. Without a target, a
    metric on rows set aside decides. The folder holds tuned.toml, for `fedmm run`, and tune.json.
    """
    tables = set_values(read_tables(file), settings or [])
    folder = choose_folder(out, f"{folder_name(file.stem)}-tune", resume=resume, overwrite=overwrite)
    stopped = False
    try:
        tune_experiment(
            tables,
            objectives=[name.strip() for name in objectives.split(",") if name.strip()],
            metric=metric,
            minutes=minutes,
            seeds=seeds,
            eta=eta,
            out=folder,
            overwrite=overwrite,
            resume=resume,
            progress=True,
            say=say,
            title=file.stem,
        )
    except KeyboardInterrupt:
        stopped = True
    if stopped:  # raised outside the except block, or the command would report the Ctrl-C once more
        say(f"stopped; finished runs are in {folder}, and --resume continues the tuning")
        raise typer.Exit(INTERRUPTED)
    show_tuned(folder, lambda path: f"fedmm run {path}")


def show_tuned(folder: Path, command: Callable[[Path], str]) -> None:
    """Show what a tuning chose. command: returns the command that trains with a file."""
    tuned = read_tuned(folder)
    if tuned.rows:
        console.print(rich_tuned(tuned, console.width))
    for sentence in (tuned.sentence, *tuned.notes):
        say(sentence)
    say(f"to train with it: {command(folder / TUNED)}")
    if (folder / ADAPTED).exists():
        say(f"the best that adapts, if you decide to: {command(folder / ADAPTED)}")
