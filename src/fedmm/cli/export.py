"""``fedmm export``: a run's model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say

_SHOWN = 6


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")],
    format: Annotated[str, typer.Option(help="onnx, torchscript or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; RUN/exported.onnx and so on by default.")] = None,
    model: Annotated[
        str | None, typer.Option(help="best, as the run announced it, or last; the default is best if there is one.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Write the model of a run as one file for other programs: from rows as they are stored to probabilities.

    What belongs to the network is inside: centring, normalisation, the centre crop, scaling of bytes. The file holds
    the names of the classes, is loaded again and compared with the run's own probabilities before it gets its name.
    """
    from fedmm.inference.export import FORMATS, export_model  # noqa: PLC0415 - torch
    from fedmm.inference.load_run import open_run  # noqa: PLC0415 - torch

    ending = FORMATS[format].ending if format in FORMATS else ""
    opened = open_run(run, model)
    done = export_model(opened, format, out or run / f"exported{ending}", overwrite=overwrite)
    takes = done.about["takes"]
    shape = ", ".join(map(str, takes["shape"]))
    columns = takes.get("columns", {})
    given = ", ".join(f"{name} ({kind})" for name, kind in list(columns.items())[:_SHOWN])
    more = f" and {len(columns) - _SHOWN} more" if len(columns) > _SHOWN else ""
    given = f"the columns {given}{more}, each [{shape}]" if columns else f"{takes['name']} [{shape}] {takes['dtype']}"
    say(f"{done.path}: {format}, {len(done.about['class_names'])} classes ({opened.model_name})")
    say(f"takes {given}; inside, {'; '.join(takes['inside']) or 'nothing is done'}")
    if takes["prepared_by"]:
        say("its rows are prepared as `fedmm predict` does; the table `takes.prepared_by` in the file says how")
    say(f"gives probabilities and logits [rows, {len(done.about['class_names'])}]")
    say(
        f"loaded again and compared on {done.rows} rows: probabilities differ by at most {done.difference:.2g} "
        f"(tolerance {done.tolerance:g})"
    )
