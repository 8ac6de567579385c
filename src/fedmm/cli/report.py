"""``fedmm report``: show runs, finished or not, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.console import say
from fedmm.core.errors import count_of, require, unknown
from fedmm.core.files import is_folder

FORMATS = ("html", "pdf", "png")


def report(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs, comparisons or sweeps.", metavar="RUN...")],
    out: Annotated[Path, typer.Option(help="The file to write.")],
    format: Annotated[str, typer.Option(help="html, pdf or png; by default the suffix of --out decides.")] = "",
) -> None:
    """Write one file that shows runs side by side: an HTML page for any browser, without a server or a network.

    For papers, write pdf or png. Runs in progress are shown up to their latest round.
    """
    from fedmm.reporting.html import collect_runs, write_html, write_pdf, write_png  # noqa: PLC0415 - slow to import

    ending = out.suffix.removeprefix(".").lower()
    ending = "html" if ending == "htm" else ending
    if format and format not in FORMATS:
        raise unknown("format", format, FORMATS)
    kind = format or ending or FORMATS[0]
    require("\0" not in str(out), "a file name must not contain a zero byte")
    require(not is_folder(out), f"{out} is a folder; name a file, for example {out / f'report.{format or FORMATS[0]}'}")
    endings = {kind} if kind == "png" else {kind, ""}
    fits = kind in FORMATS and ending in endings
    require(fits, f"--out {out} must end in .{kind if format else ', .'.join(FORMATS)}: no other file can be written")
    report_data = collect_runs(runs)
    written = {"html": write_html, "pdf": write_pdf, "png": write_png}[kind](report_data, out)
    count = len(report_data.entries)
    if report_data.holds_rows and kind == "html":
        say("rows of the data are inside; run.keep_rows = false leaves them out of a run and of its reports")
    say(f"{written}: {count_of(count, 'run')}, {written.stat().st_size / 1e6:.1f} MB")
