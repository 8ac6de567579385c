"""The commands of ``fedmm data``: list, download, check and show data sets."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from fedmm.cli.console import say
from fedmm.config.dataclass_io import as_table, choose
from fedmm.config.toml import set_values
from fedmm.core.errors import require
from fedmm.core.files import data_folder
from fedmm.data import DATASETS, DomainPair, Labelled
from fedmm.data.download import DownloadPlan, check, count_files, fetch, mirror, plans
from fedmm.data.http import RETRIES, Retries
from fedmm.data.sources import NEEDED, Edition, Source, sources, sources_of
from fedmm.reporting import SampleBlock, draw_sheet
from fedmm.training.progress import bars

data_app = typer.Typer(
    help="The files behind mnist_m, usps and office31, and pre-trained weights.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)

_COLUMNS, _ROWS = 10, 2
_LONG = 8
"""The length of a class name from which on columns are wider."""

_Name = Annotated[
    str, typer.Argument(help="mnist_m, usps, office31, mobilenetv2, or one that 'fedmm data list' shows.")
]
_Folder = Annotated[
    Path | None, typer.Option("--data-dir", help="The data folder; FEDMM_DATA, else ~/.local/share/fedmm, by default.")
]


@data_app.command(name="list")
def list_(data_dir: _Folder = None) -> None:
    """List data sets, their folders, and whether their files are complete, judged by names and sizes."""
    folder = data_dir or data_folder()
    width = 2 + max(map(len, [*sources(), *NEEDED]))
    for source in sources().values():
        say(f"{source.name:{width}}{_state(source, folder)}")
        say(f"{'':{width}}{source.summary}; licence: {source.licence}")
    for name, needed in NEEDED.items():
        say(f"{name:{width}}is made of {' and '.join(needed)}")
    say(f"data folder: {folder}")


def _state(source: Source, folder: Path) -> str:
    held = count_files(source, folder)
    files, wanted = sum(part.files for part in held), sum(part.wanted for part in held)
    editions = " and ".join(dict.fromkeys(part.edition.name for part in held))
    if files == 0:
        return f"not there; editions: {', '.join(map(_edition, source.editions))}"
    there = f"complete: {_files(wanted)}" if files == wanted else f"incomplete: {files} of {_files(wanted)}"
    return f"{there}, {_megabytes(sum(part.bytes for part in held))} ({editions}) in {folder / source.name}"


def _edition(edition: Edition) -> str:
    sizes = [file.size for file in edition.files if file.size is not None]
    return f"{edition.name} ({_files(len(edition.files))}{f', {_megabytes(sum(sizes))}' if sizes else ''})"


def _files(count: int) -> str:
    return f"{count} file" if count == 1 else f"{count} files"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"


@data_app.command(name="fetch")
def fetch_(
    name: _Name,
    data_dir: _Folder = None,
    edition: Annotated[str, typer.Option(help="Which edition to fetch; docs/data.md lists them.")] = "",
    most: Annotated[
        int, typer.Option("--max-bytes", help="Size limit for files without a published size.")
    ] = RETRIES.most,
) -> None:
    """Download missing or wrong files and check them. Interrupted downloads are resumed."""
    folder = data_dir or data_folder()
    wanted = sources_of(name)
    require(not edition or len(wanted) == 1, f"--edition needs the name of a source: {', '.join(NEEDED.get(name, ()))}")
    for source in wanted:
        todo = plans(source, folder, edition=edition, mirror=mirror())
        if not todo:
            say(f"{source.name}: complete and correct, in {folder / source.name}")
            continue
        say(f"{source.name}: {source.citation}; licence: {source.licence}")
        for plan in todo:
            _carry_out(plan, replace(RETRIES, most=most))


def _carry_out(plan: DownloadPlan, retries: Retries) -> None:
    what = ", ".join(archive.file for archive in plan.edition.archives) or _files(len(plan.edition.files))
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    bar = Progress(TextColumn("[bold]{task.description}"), *columns, console=console, disable=not console.is_terminal)
    with bar:
        task = bar.add_task(f"{plan.name}: {what}", total=plan.bytes)
        fetch(plan, lambda count: bar.advance(task, count), retries)
    note = f"; {plan.edition.note}" if plan.edition.note else ", all checksums match"
    say(f"{plan.name}: {what} fetched into {plan.folder} ({plan.edition.name}){note}")


@data_app.command(name="check")
def check_(name: _Name, data_dir: _Folder = None) -> None:
    """Verify every file, and name the first one that is missing, truncated or corrupt."""
    folder = data_dir or data_folder()
    for source in sources_of(name):
        for part, edition in _check_source(source, folder).items():
            note = edition.note or "all checksums match"
            say(f"{part}: {_files(len(edition.files))} ({edition.name}) in {folder / part}: {note}")


def _check_source(source: Source, folder: Path) -> dict[str, Edition]:
    with bars(True) as bar:
        task = bar.add_task(source.name, total=sum(part.wanted for part in count_files(source, folder)))
        return check(source, folder, lambda: bar.advance(task))


@data_app.command()
def show(
    name: Annotated[str, typer.Argument(help=f"The data set: {', '.join(DATASETS)}.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change an option: key=value. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The picture; NAME.png by default.")] = None,
    data_dir: _Folder = None,
) -> None:
    """Draw samples of both domains with their classes."""
    table = set_values(
        {"data": {"name": name}}, [f"data.{setting.removeprefix('data.')}" for setting in settings or []]
    )["data"]
    data = choose(DATASETS, table, "data")
    with _reading_from(data_dir):
        pair = data.load()
    require(pair.source.x.dim() == 4, f"{name} holds no pictures; rows are of shape {list(pair.source.x.shape[1:])}")
    options = ", ".join(f"{key} {value}" for key, value in as_table(data).items() if key != "name" and value != "")
    path = draw_sheet(out or Path(f"{name}.png"), name, options, _blocks(pair))
    rows = f"{len(pair.source.y)} source and {len(pair.target.y)} target rows to train on"
    tested = "no target labels to test on" if pair.target_test is None else f"{len(pair.target_test.y)} to test on"
    say(f"{name}: {rows}, {tested}, {pair.classes} classes; samples are in {path}")


@contextmanager
def _reading_from(folder: Path | None) -> Iterator[None]:
    """Make data sets look for their files in this folder, if one is given."""
    before = dict(os.environ)
    if folder is not None:
        os.environ["FEDMM_DATA"] = str(folder)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _blocks(pair: DomainPair) -> list[SampleBlock]:
    """Return samples of both domains from the same classes, evenly spread over all classes."""
    names = [name.replace("_", " ").encode("utf-8", "replace").decode("utf-8") for name in pair.class_names]
    columns = min(_COLUMNS if max(map(len, names)) < _LONG else _COLUMNS - 2, pair.classes)
    classes = torch.linspace(0, pair.classes - 1, columns).round().long().tolist()
    captions = [names[label] for label in classes]
    return [
        SampleBlock("source (labelled)", _samples(pair.source, classes), captions),
        SampleBlock("target (its labels are not trained on)", _samples(pair.target, classes), captions)
        if bool((pair.target.y >= 0).all())
        else SampleBlock("target (unlabelled)", _spread(pair.target, columns), []),
    ]


def _samples(rows: Labelled, classes: Sequence[int]) -> NDArray[Any]:
    """Return the first rows of each class, ``[_ROWS, classes, C, H, W]``; white if a class has too few."""
    white = 255 if rows.x.dtype == torch.uint8 else 1
    sheet = rows.x.new_full((_ROWS, len(classes), *rows.x.shape[1:]), white)
    for column, label in enumerate(classes):
        members = (rows.y == label).nonzero().squeeze(1)[:_ROWS]
        sheet[: len(members), column] = rows.x[members]
    return np.asarray(sheet)


def _spread(rows: Labelled, columns: int) -> NDArray[Any]:
    """Return evenly spread rows, ``[_ROWS, columns, C, H, W]``."""
    which = torch.linspace(0, len(rows.y) - 1, _ROWS * columns).round().long()
    return np.asarray(rows.x[which].view(_ROWS, columns, *rows.x.shape[1:]))
