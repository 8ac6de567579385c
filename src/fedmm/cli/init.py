"""``fedmm init``: an experiment for the data that is there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedmm.cli.saying import say
from fedmm.core.errors import require
from fedmm.core.files import atomic_write


def init(
    paths: Annotated[
        list[Path],
        typer.Argument(
            help="A folder of class folders or of site folders, a .npz archive, or a table (.csv, .tsv, .data, .xlsx, "
            ".parquet); or several tables, or a folder of tables, one of each site.",
            metavar="PATH...",
        ),
    ],
    target: Annotated[
        Path | None, typer.Option(help="The target's folder or archive, if it is not inside PATH.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The file to write; NAME.toml here by default.")] = None,
    label: Annotated[str, typer.Option(help="Tables: the column of classes.")] = "",
    site: Annotated[str, typer.Option(help="Tables: the column that says who holds a row.")] = "",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Tables: whether the first line names the columns.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Tables without header: the names of all columns, with commas between.")
    ] = "",
    sheet: Annotated[str, typer.Option(help="The sheet of an Excel workbook that has several.")] = "",
    target_site: Annotated[
        list[str] | None, typer.Option(help="A site that is the target, if labels do not show it. May be repeated.")
    ] = None,
    as_site: Annotated[
        str,
        typer.Option(
            help="The table is that of a site of this name: write the site's file, and an experiment for all."
        ),
    ] = "",
    with_site: Annotated[
        list[str] | None, typer.Option(help="With --as-site, another site that takes part. May be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an existing file.")] = False,
) -> None:
    """Look at data and write a commented FILE.toml for it, which `fedmm check` and `fedmm run` take."""
    from fedmm.preflight.propose import propose, propose_site  # noqa: PLC0415 - torch
    from fedmm.preflight.table_columns import TableOptions  # noqa: PLC0415 - torch
    from fedmm.preflight.write_experiment import write_experiment  # noqa: PLC0415 - torch
    from fedmm.runs.run_folder import folder_name  # noqa: PLC0415 - torch

    named = tuple(name.strip() for name in columns.split(",")) if columns else ()
    given = TableOptions(label, site, header, named, sheet)
    require(bool(as_site) or not with_site, "--with-site is for --as-site, the site whose table this is")
    own = ""
    if as_site:
        alone = len(paths) == 1 and target is None and not site and not target_site
        require(alone, "--as-site takes the table of that site alone, without --target, --site and --target-site")
        found, own = propose_site(paths[0], as_site, with_site or [], given)
    else:
        found = propose(paths, target, target_sites=target_site or [], table=given)
    path = paths[0] if len(paths) == 1 else paths[0].resolve().parent
    file = out or Path(f"{folder_name(path.resolve().name.partition('.')[0])}.toml")
    text = write_experiment(found, path, file)
    site_file = file.with_name(f"{folder_name(as_site)}.toml") if as_site else None
    require(site_file != file, f"{file} would be the experiment and the site's file; name the experiment with --out")
    for name, content in ((file, text), (site_file, own)):
        if name is not None:
            with atomic_write(name, overwrite=overwrite) as partial:
                partial.write_text(content, encoding="utf-8")
    for line in found.said:
        say(line)
    if site_file:
        say(f"wrote {site_file}, which stays at this site, and {file}, the experiment for the coordinator")
    else:
        say(f"wrote {file}; next: fedmm check {file}")
