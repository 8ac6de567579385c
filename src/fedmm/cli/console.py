"""What the commands share: plain lines for the user, and the options that several of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmm.core.imports import allow_import

console = Console()
INTERRUPTED = 130


def say(line: str) -> None:
    """A line on standard output, whatever is in it."""
    console.print(line, soft_wrap=True, highlight=False, markup=False)


def _allow(names: list[str] | None) -> list[str] | None:
    allow_import(*names or ())
    return names


AllowImport = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-import",
        metavar="NAME",
        callback=_allow,
        help="Let the files given name code of this module (package.module or package.module:factory), which runs it. "
        "May be repeated.",
    ),
]
"""An option of every command that builds what a file describes; it acts when the command line is read."""
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
]
RunFolder = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")]
ModelName = Annotated[
    str | None, typer.Option(help="best, as the run announced it, or last; by default best where there is one.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out files that are no pictures.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Separator = Annotated[str, typer.Option(help="Tables: between cells, where it is not as in training.")]
Decimal = Annotated[str, typer.Option(help="Tables: the decimal mark, where it is not as in training.")]
Encoding = Annotated[str, typer.Option(help="Tables: the encoding, where it is not as in training.")]
RowsSite = Annotated[str, typer.Option(help="Tables scaled per site: whose the rows are.")]
FederationFolder = Annotated[Path, typer.Option("--federation", help="The federation's folder.")]
Coordinator = Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")]
DEFAULT_FEDERATION = Path("federation")
