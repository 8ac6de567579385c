"""``fedmm predict``: what a run's model says of new data."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.allowing import AllowImport
from fedmm.cli.saying import say


def predict(
    run: Annotated[Path, typer.Argument(help="The run's folder.", metavar="RUN")],
    data: Annotated[
        Path,
        typer.Argument(
            help="Data like the run's: pictures or a folder of them, .npy, .npz, CSV or Parquet.", metavar="INPUT"
        ),
    ],
    out: Annotated[Path, typer.Option(help="A .csv, .csv.gz or .parquet file; - is standard output, as CSV.")] = Path(
        "-"
    ),
    model: Annotated[
        str | None, typer.Option(help="best, as the run announced it, or last; the default is best if there is one.")
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip files that are not pictures.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda, ...")] = "cpu",
    separator: Annotated[str, typer.Option(help="Tables: the cell separator, if it differs from training.")] = "",
    decimal: Annotated[str, typer.Option(help="Tables: the decimal mark, if it differs from training.")] = "",
    encoding: Annotated[str, typer.Option(help="Tables: the encoding, if it differs from training.")] = "",
    site: Annotated[str, typer.Option(help="Tables scaled per site: the site of the rows.")] = "",
    allow_import: AllowImport = None,
) -> None:
    """Predict the classes of new rows: a line each with its name, its class, and a probability for each class."""
    from fedmm.data.readers.images import skipped_note  # noqa: PLC0415 - torch
    from fedmm.inference.load_run import open_run  # noqa: PLC0415 - torch
    from fedmm.inference.predict import (  # noqa: PLC0415 - torch
        csv_stream,
        open_rows,
        predict_rows,
        prediction_file,
        read_as,
        require_ending,
    )
    from fedmm.training.progress import bars  # noqa: PLC0415 - torch

    shown = str(out) == "-"
    if not shown:
        require_ending(out)
    opened = open_run(run, model, device=device)
    opened = read_as(opened, separator=separator, decimal=decimal, encoding=encoding, site=site)
    rows = open_rows(opened, data, skip_bad=skip_bad)
    with bars(True) as bar:
        task = bar.add_task("rows", total=rows.rows)
        to = nullcontext(csv_stream(sys.stdout, opened.class_names)) if shown else None
        with to or prediction_file(out, opened.class_names) as write:
            for part in rows.parts:
                write(predict_rows(opened, part))
                bar.advance(task, len(part.x))
    for note in skipped_note(rows.skipped):
        sys.stderr.write(f"{note}\n")
    if shown:
        sys.stderr.write(f"model: {opened.model_name}\n")
    else:
        count = rows.rows - len(rows.skipped)
        say(f"{count} rows, {len(opened.class_names)} classes, by the model of {opened.model_name}: {out}")
