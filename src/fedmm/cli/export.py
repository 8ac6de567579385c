"""``fedmm export``: a run's model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say


def export(
    run: Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")],
    format: Annotated[str, typer.Option(help="onnx, torchscript or safetensors.")] = "onnx",
    out: Annotated[Path | None, typer.Option(help="The file; RUN/exported.onnx and so on by default.")] = None,
    checkpoint: Annotated[str, typer.Option(help="last, or best: which of the run's models.")] = "last",
    allow_import: AllowImport = None,
) -> None:
    """Write the model of a run as one file for other programs: from rows as they are stored to probabilities.

    What belongs to the network is inside: centring, normalisation, the centre crop, scaling of bytes. The file holds
    the names of the classes, is loaded again and compared with the run's own probabilities before it gets its name.
    """
    from fedmm.experiment.exporting import FORMATS, export_model  # noqa: PLC0415 - torch
    from fedmm.experiment.finished import open_run  # noqa: PLC0415 - torch

    ending = FORMATS[format].ending if format in FORMATS else ""
    done = export_model(open_run(run, checkpoint), format, out or run / f"exported{ending}")
    takes = done.about["takes"]
    shape = ", ".join(map(str, takes["shape"]))
    which = f"round {done.about['round']} ({done.about['checkpoint']})"
    say(f"{done.path}: {format}, {which}, {len(done.about['class_names'])} classes")
    say(f"takes {takes['name']} [{shape}] {takes['dtype']}; inside, {'; '.join(takes['inside']) or 'nothing is done'}")
    if takes["prepared_by"]:
        say("its rows are prepared as `fedmm predict` does; the table `takes.prepared_by` in the file says how")
    say(f"gives probabilities and logits [rows, {len(done.about['class_names'])}]")
    say(
        f"loaded again and compared on {done.rows} rows: probabilities differ by at most {done.difference:.2g} "
        f"(tolerance {done.tolerance:g})"
    )
