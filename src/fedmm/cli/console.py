"""What commands share: printing of plain lines, and options that several of them have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmm.core.imports import allow_import

console = Console()
INTERRUPTED = 130


def say(line: str) -> None:
    """Print a line to standard output as it is, without interpreting markup."""
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
        help="Allow the given files to import and run this module (package.module or package.module:factory). "
        "May be repeated.",
    ),
]
"""An option of every command that builds what a file describes; it takes effect when the command line is parsed."""
ExperimentFile = Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")]
Settings = Annotated[
    list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
]
RunFolder = Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")]
ModelName = Annotated[
    str | None, typer.Option(help="best, as the run announced it, or last; the default is best if there is one.")
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Skip files that are not pictures.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, ...")]
Separator = Annotated[str, typer.Option(help="Tables: the cell separator, if it differs from training.")]
Decimal = Annotated[str, typer.Option(help="Tables: the decimal mark, if it differs from training.")]
Encoding = Annotated[str, typer.Option(help="Tables: the encoding, if it differs from training.")]
RowsSite = Annotated[str, typer.Option(help="Tables scaled per site: the site of the rows.")]
FederationFolder = Annotated[Path, typer.Option("--federation", help="The federation's folder.")]
Coordinator = Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")]
DEFAULT_FEDERATION = Path("federation")
