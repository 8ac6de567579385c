"""``--allow-import``: the modules that a file may name."""

from __future__ import annotations

from typing import Annotated

import typer

from fedmm.core.imports import allow_import


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
"""An option of every command that builds what a file describes; it acts when the command line is read."""
