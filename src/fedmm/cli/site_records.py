"""``fedmm deploy approve`` and ``fedmm deploy audit``: what a site's owner decides and reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedmm.sites.config import read_site
from fedmm.sites.owner.audit import Entry
from fedmm.sites.owner.review import approve_experiment, describe_entry, list_experiments, verify

_console = Console(soft_wrap=True, highlight=False, markup=False)
_Site = Annotated[Path, typer.Argument(help="The site's file.", metavar="SITE.toml")]


def approve(
    file: _Site,
    what: Annotated[
        str | None,
        typer.Argument(help="Its hash, 8 characters or more, or the experiment itself.", metavar="HASH|FILE.toml"),
    ] = None,
) -> None:
    """List the experiments that a site was asked for, or approve one (policy.require_approval)."""
    config = read_site(file)
    if what is not None:
        _console.print(f"approved {approve_experiment(config, what)}")
        return
    for line in list_experiments(config) or ["no experiment was asked for"]:
        _console.print(line)


def audit(
    file: _Site,
    json: Annotated[bool, typer.Option("--json", help="Every entry as it is, one JSON object a line.")] = False,
    expect: Annotated[
        str, typer.Option(help="A head that was noted elsewhere: it must be the hash of an entry.", metavar="HASH")
    ] = "",
) -> None:
    """Check the chain of a site's audit log and print it; exit code 2 where it is broken."""

    def show(entry: Entry) -> None:
        typer.echo(describe_entry(entry, whole=json))

    config = read_site(file)
    for line in verify(config, show, expect):
        typer.echo(line, err=json)
