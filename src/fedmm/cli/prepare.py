"""``fedmm init``, ``check`` and ``privacy``: write an experiment for given data, and examine it before it runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from fedmm.cli.console import AllowImport, ExperimentFile, Settings, console, say
from fedmm.config.schema import Experiment
from fedmm.config.schema import experiment as resolve
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.config.toml import read_tables, set_values
from fedmm.core.errors import FedmmError, count_of, require
from fedmm.core.federation import head_count
from fedmm.core.files import atomic_write
from fedmm.core.validation import at_least
from fedmm.preflight.check import Checked
from fedmm.preflight.check import check as check_experiment
from fedmm.preflight.propose import propose
from fedmm.preflight.propose_site import propose_site
from fedmm.preflight.table_columns import TableOptions
from fedmm.preflight.write_experiment import write_experiment
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.run_folder import folder_name
from fedmm.runs.tuning.candidates import AS_GIVEN, TUNE
from fedmm.runs.tuning.tune import plan_tuning

_WARNED = 1
_MOST_CLIENTS = 40


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
    label: Annotated[str, typer.Option(help="Tables: the column with the classes.")] = "",
    site: Annotated[str, typer.Option(help="Tables: the column that says who holds a row.")] = "",
    header: Annotated[
        bool | None, typer.Option("--header/--no-header", help="Tables: whether the first line names the columns.")
    ] = None,
    columns: Annotated[
        str, typer.Option(help="Tables without a header: the names of all columns, separated by commas.")
    ] = "",
    sheet: Annotated[str, typer.Option(help="Which sheet to read of an Excel workbook with several.")] = "",
    target_site: Annotated[
        list[str] | None, typer.Option(help="A site that is the target, if labels do not show it. May be repeated.")
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Tables in which every row has a label and there is no target: accuracy, auc (for a rare class) or "
            "worst_site.",
        ),
    ] = "",
    as_site: Annotated[
        str,
        typer.Option(
            help="The table belongs to the site of this name: write the site's file, and an experiment for all sites."
        ),
    ] = "",
    with_site: Annotated[
        list[str] | None, typer.Option(help="With --as-site: another site of the federation. May be repeated.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", "--force", help="Replace an existing file.")] = False,
) -> None:
    """Inspect data and write a commented FILE.toml for it, ready for `fedmm check` and `fedmm run`."""

    require(out is None or out.suffix.lower() == ".toml", f"--out {out} must end in .toml, as experiments do")
    named = tuple(name.strip() for name in columns.split(",")) if columns else ()
    given = TableOptions(label, site, header, named, sheet)
    require(bool(as_site) or not with_site, "--with-site is for --as-site, the site whose table this is")
    own = ""
    if as_site:
        alone = len(paths) == 1 and target is None and not site and not target_site
        require(alone, "--as-site takes only that site's table, without --target, --site and --target-site")
        found, own = propose_site(paths[0], as_site, with_site or [], given, metric)
    else:
        found = propose(paths, target, target_sites=target_site or [], table=given, metric=metric)
    path = paths[0] if len(paths) == 1 else paths[0].resolve().parent
    file = out or Path(f"{folder_name(path.resolve().name.partition('.')[0])}.toml")
    text = write_experiment(found, path, file)
    site_file = file.with_name(f"{folder_name(as_site)}.toml") if as_site else None
    require(site_file != file, f"{file} would be the experiment and the site's file; name the experiment with --out")
    with atomic_write(file, overwrite=overwrite) as partial:
        partial.write_text(text, encoding="utf-8")
        if site_file:  # both, or none
            with atomic_write(site_file, overwrite=overwrite) as partial_site:
                partial_site.write_text(own, encoding="utf-8")
    for line in found.said:
        say(line)
    if site_file:
        say(f"wrote {site_file}, which stays at this site, and {file}, the experiment for the coordinator")
    else:
        say(f"wrote {file}; next: fedmm check {file}")


def check(
    file: ExperimentFile,
    settings: Settings = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if there are warnings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
    pictures: Annotated[int, typer.Option(help="How many pictures to read from larger folders.")] = 600,
    allow_import: AllowImport = None,
) -> None:
    """Check data and configuration before you train: classes, shapes, data leakage, memory, time.

    The exit code is 0, or 1 with --strict if there are warnings, or 2 if the experiment cannot run.
    """

    try:
        at_least("--pictures", pictures, 1)
        tables = set_values(read_tables(file), settings or [])
        runs = _runs_of(tables)
        found = check_experiment(runs[0], pictures)
    except FedmmError as problem:
        if as_json:
            typer.echo(json.dumps({"format": "fedmm-check-1", "error": str(problem)}, indent=2))
        raise
    if as_json:
        typer.echo(json.dumps({**found.table(), "runs": len(runs)}, indent=2, allow_nan=False))
    else:
        _show(found, len(runs), "tuning" if TUNE in tables else "sweep")
    if strict and found.warnings:
        raise typer.Exit(_WARNED)


def _runs_of(tables: Mapping[str, Any]) -> list[Experiment]:
    """Return what a file describes: a run, the runs of a sweep, or the experiment as given and the other candidates."""
    if TUNE not in tables:
        return grid(tables) if SWEEP in tables else [resolve(tables)]
    own = resolve({section: table for section, table in tables.items() if section != TUNE})
    candidates, _ = plan_tuning(tables, own)
    return [own, *(each for label, each in candidates.items() if label != AS_GIVEN)]


def _show(found: Checked, runs: int, what: str) -> None:
    experiment = found.experiment
    if runs > 1:
        say(f"a {what} of {runs} runs that can all be built; this is the first")
    method = (
        f"source only ({experiment.algorithm.name})"
        if experiment.ignores_target
        else f"{experiment.algorithm.name}, {experiment.objective.name}"
    )
    say(f"{method}, {experiment.model.name} on {experiment.data.name}, {experiment.partition.name}")
    console.print(_parts(found))
    console.print(_clients(found, console.width))
    needs = found.needs
    say(
        f"{needs.parameters:,} parameters; memory about {_size(needs.memory)} beside torch itself: data "
        f"{_size(needs.data)}, states of server and clients {_size(needs.states)}, activations "
        f"{_size(needs.activations)} (engine {found.engine})"
    )
    say(
        f"a local step takes {_time(needs.step)} on this CPU, a round {_time(needs.round)}, an evaluation "
        f"{_time(needs.evaluation)}: about {_time(needs.run)} for {experiment.run.rounds} rounds"
    )
    for finding in found.findings:
        style = "bold yellow" if finding.level == "warning" else "dim"
        console.print(Text(f"{finding.level}: {finding.text}", style=style), soft_wrap=True)
    warned = len(found.warnings)
    many = count_of(warned, "warning") if warned else "no warnings"
    say(f"it can run; {many} ({found.seconds:.1f} s)")


def _parts(found: Checked) -> Table:
    table = Table()
    table.add_column("part")
    for heading in ("rows", "labelled", "shape", "type", "values", "mean"):
        table.add_column(heading, justify="right", no_wrap=True)
    for part in found.parts:
        shape, values = "x".join(map(str, part.shape)), f"{part.low:.3g} to {part.high:.3g}"
        table.add_row(part.name, f"{part.rows:,}", f"{part.labelled:,}", shape, part.dtype, values, f"{part.mean:.3g}")
    return table


def _clients(found: Checked, width: int) -> Table:
    """Show each client's source rows by class if they fit, else its number of classes and the range of their rows."""
    names = found.class_names
    longest = max(len(client.name) for client in found.clients[:_MOST_CLIENTS])
    apart = longest + 30 + sum(max(len(name[:10]), 5) + 3 for name in names) <= width
    table = Table()
    table.add_column("client", no_wrap=True)
    for heading in ("source", "target", *(name[:10] for name in names if apart), *([] if apart else ["classes"])):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for client in found.clients[:_MOST_CLIENTS]:
        held = [count for count in client.classes if count]
        if apart:
            cells = [str(count) if count else "·" for count in client.classes]
        else:
            cells = [f"{len(held)} of {len(names)}, {min(held)} to {max(held)} rows" if held else "·"]
        table.add_row(Text(client.name), f"{client.source:,}", f"{client.target:,}", *cells)
    if len(found.clients) > _MOST_CLIENTS:
        table.add_row(f"and {len(found.clients) - _MOST_CLIENTS} more")
    return table


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _time(seconds: float) -> str:
    if seconds < 1:
        return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"
    if seconds < 120:
        return f"{seconds:.{0 if seconds >= 10 else 1}f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def privacy(
    file: ExperimentFile,
    settings: Settings = None,
    epsilon: Annotated[float, typer.Option(help="Also compute the noise for this epsilon.")] = 0.0,
    allow_import: AllowImport = None,
) -> None:
    """Compute the epsilon of FILE.toml's noise, and the noise for a given epsilon. Trains nothing."""
    experiment = resolve(set_values(read_tables(file), settings or []))
    account = prepare(experiment, DataCache()).account
    if account is None:
        raise FedmmError("there is no epsilon without noise: set transmission.name to 'gaussian'")
    rounds, sample = experiment.run.rounds, head_count(len(account.clients), account.share)
    spent = account.spent([sample] * rounds)
    known = replace(account, secret_sample=False).spent([sample] * rounds)
    behind = "hidden from the server and all others" if account.noise.trust == "nobody" else "hidden from all others"
    say(f"{len(account.clients)} clients, {sample} in a round, {rounds} rounds; a client is {behind}")
    say(f"epsilon {spent:.4g} with delta {account.noise.delta:g} after the last round")
    if known > spent:
        say(f"epsilon {known:.4g} if others learn who takes part, as the sites of a deployment do")
    if epsilon:
        noise = account.noise_for(epsilon, rounds)
        say(f"epsilon {epsilon:g} is kept with transmission.noise_min = transmission.noise_max = {noise:.4g}")
