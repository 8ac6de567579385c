"""The commands of ``fedmm``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from fedmm._version import __version__
from fedmm.algorithms import ALGORITHMS
from fedmm.cli.allowing import AllowImport
from fedmm.cli.check import check
from fedmm.cli.compare import compare as compare_command
from fedmm.cli.data import data_app
from fedmm.cli.deploy import deploy_app
from fedmm.cli.evaluate import evaluate
from fedmm.cli.export import export
from fedmm.cli.init import init
from fedmm.cli.predict import predict
from fedmm.cli.privacy import tell_privacy
from fedmm.cli.report import report
from fedmm.cli.reproduce import find_items, reproduce_item
from fedmm.config.demos import DEMOS, demo_experiments
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.config.toml import read_tables, set_values
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.errors import FedmmError, require
from fedmm.core.mechanisms import TRANSMISSIONS
from fedmm.core.options import PRESETS
from fedmm.core.schedules import SCHEDULES
from fedmm.core.validation import at_least
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS
from fedmm.models.precision import named_precision
from fedmm.objectives import OBJECTIVES
from fedmm.reporting import comparison_rows, draw_comparison, draw_run, read_comparison, rich_table, validator_table
from fedmm.reproduction.run import Where
from fedmm.runs.comparison import compare
from fedmm.runs.run import NO_TARGET_LABELS, run_experiment
from fedmm.runs.run_folder import folder_name, free_folder, latest_folder
from fedmm.runs.sweep import run_sweep

app = typer.Typer(
    name="fedmm",
    help="Federated minimax optimisation and adversarial domain adaptation.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
app.add_typer(data_app, name="data")
app.add_typer(deploy_app, name="deploy")
app.command()(check)
app.command(name="compare")(compare_command)
app.command()(evaluate)
app.command()(export)
app.command()(init)
app.command()(predict)
app.command()(report)
_console = Console()
_RUNS = Path("runs")
_INTERRUPTED = 130
_MOST_SEEDS = 1000
_ONE_OF_THEM = "--resume and --overwrite exclude each other; use one of them"


def _say(line: str) -> None:
    """A plain line, whatever is in it."""
    _console.print(line, soft_wrap=True, highlight=False, markup=False)


def _nothing(line: str) -> None:
    """In place of :func:`_say` where nothing is to be said."""


def _version(wanted: bool) -> None:
    if wanted:
        _console.print(f"fedmm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print it.")] = False,
) -> None: ...


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; runs/NAME by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older run in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from that folder's newest checkpoint.")] = False,
    engine: Annotated[str | None, typer.Option(help="auto, in_process, batched, ray, nvflare or nvflare_poc.")] = None,
    ray_address: Annotated[
        str | None, typer.Option(help="Run on the Ray cluster at this address, such as HOST:6379.")
    ] = None,
    track: Annotated[
        list[str] | None, typer.Option(help="Show the run live: tensorboard or mlflow. May be repeated.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="The same as --set run.rounds=N.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same as --set run.seed=N.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the last line.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Train as FILE.toml says and leave a run folder: rounds, summary, model, picture. With [sweep], a grid of runs."""
    given = {
        "engine": engine or ("ray" if ray_address else None),
        "ray_address": ray_address,
        "rounds": rounds,
        "seed": seed,
    }
    changed = [*(settings or []), *(f"run.{key}={value}" for key, value in given.items() if value not in (None, ""))]
    changed += [f"run.track={json.dumps(track)}"] if track else []
    tables = set_values(read_tables(file), changed)
    require(not (resume and overwrite), _ONE_OF_THEM)
    if SWEEP in tables:
        for key in {"rounds", "seed"} & {key for key, value in given.items() if value is not None}:
            listed = f"run.{key}" in tables[SWEEP]
            require(not listed, f"--{key} has no effect on a sweep over run.{key}; leave it out, or change [sweep]")
        _sweep(tables, changed, out, file.stem, overwrite=overwrite, resume=resume, quiet=quiet)
        return
    resolved = experiment(tables)
    _require_own_cluster([resolved], changed)
    method = resolved.objective.name if resolved.source_only else resolved.algorithm.name
    usual = _RUNS / f"{folder_name(file.stem)}-{method}-seed{resolved.run.seed}"
    folder = out or (latest_folder(usual) if resume else free_folder(usual))
    said = _nothing if quiet else _say
    summary = run_experiment(resolved, folder, overwrite=overwrite, resume=resume, progress=not quiet, say=said)
    draw_run(folder)
    _say(
        f"{summary['label']}: {_reached(summary)} after {summary['rounds']} rounds ({summary['status']}, "
        f"{summary['seconds']:.1f} s); everything is in {folder}"
    )
    if summary["status"] == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _require_own_cluster(runs: Sequence[Experiment], settings: list[str]) -> None:
    """Refuse a Ray cluster that a file names and the user did not: what comes from its processes may run code here."""
    given = set_values({}, settings).get("run", {}).get("ray_address", "")
    for address in {each.run.ray_address for each in runs} - {"", given}:
        raise FedmmError(
            f"the file has run.ray_address = {address!r}, a Ray cluster that could run code in this process; if you "
            f"trust it, give --ray-address {address}"
        )


def _reached(summary: dict[str, Any]) -> str:
    """What a run reached, in words; without labels of the target, by what needs none."""
    accuracy, information = summary["target_accuracy"], summary.get("target_information")
    if accuracy is not None:
        return f"target accuracy {accuracy:.1%}"
    if "note" not in summary or information is None:
        return str(summary.get("note", "not yet evaluated"))
    return f"target information {information:.3f} nats ({summary['note']})"


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(help="The experiment with a [sweep] table, as TOML.", metavar="FILE.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder; runs/NAME by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older sweep in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep in that folder.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Run every combination of the lists in [sweep], stacked into as few programs as possible."""
    require(not (resume and overwrite), _ONE_OF_THEM)
    tables = set_values(read_tables(file), settings or [])
    require(SWEEP in tables, f'{file} has no [sweep] table; add one, for example [sweep] with "run.seed" = [0, 1, 2]')
    _sweep(tables, settings or [], out, file.stem, overwrite=overwrite, resume=resume)


def _sweep(
    tables: dict[str, Any],
    settings: list[str],
    out: Path | None,
    title: str,
    *,
    overwrite: bool,
    resume: bool,
    quiet: bool = False,
) -> None:
    usual = _RUNS / folder_name(title)
    folder = out or (latest_folder(usual) if resume else free_folder(usual))
    runs = grid(tables)
    _require_own_cluster(runs, settings)
    said = _nothing if quiet else _say
    summary = run_sweep(runs, folder, title=title, overwrite=overwrite, resume=resume, progress=not quiet, say=said)
    if not quiet:
        _show_comparison(summary, folder, judged=True)
        return
    if summary["runs"]:
        draw_comparison(folder)
    _say(f"{len(summary['runs'])} runs ({summary['status']}); everything is in {folder}")
    if summary["status"] == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _show_comparison(summary: dict[str, Any], folder: Path, *, judged: bool = False) -> None:
    """Tables and pictures of several runs; judged: also what their validators say, and the rule's verdicts."""
    if summary["runs"]:
        pictures = draw_comparison(folder)
        rows = comparison_rows(read_comparison(folder))
        unlabelled = all(each["target_accuracy"] is None and each["rounds"] for each in summary["runs"])
        if not unlabelled:
            _console.print(rich_table(rows))
        if judged or unlabelled:
            _console.print(validator_table(rows))
        if unlabelled:
            _say(NO_TARGET_LABELS)
        if judged:
            _say_verdicts(summary["evidence"])
        _say(f"pictures: {', '.join(map(str, pictures))}")
    if summary["status"] == "interrupted":
        raise typer.Exit(_INTERRUPTED)


def _say_verdicts(evidence: dict[str, Any]) -> None:
    shift = evidence["label_shift"]
    if shift:
        _say(f"as {evidence['source_only']} tells it: {shift['sentence']}")
    for each in evidence["verdicts"]:
        _say(f"{each['label']}: {each['sentence']}")
    if evidence["note"]:
        _say(evidence["note"])
    _say(f"the rule: {evidence['rule']}")


@app.command()
def demo(
    data: Annotated[str, typer.Option(help=f"What to run on: {', '.join(DEMOS)}.")] = "digits",
    seeds: Annotated[int, typer.Option(help="How many seeds of each method.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder; runs/demo by default (runs/demo-NAME for others).")
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs in parallel; 0: one per core.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in that folder.")] = False,
) -> None:
    """Compare source-only training, FedAvgGDA, FedProxGDA and FedMM on data that comes with our dependencies."""
    at_least("--seeds", seeds, 1)
    require(seeds <= _MOST_SEEDS, f"--seeds must be at most {_MOST_SEEDS}, not {seeds}")
    at_least("--workers", workers, 0)
    experiments = demo_experiments(data, seeds)
    folder = out or _RUNS / ("demo" if data == "digits" else f"demo-{data}")
    _say(f"{DEMOS[data]['title']}; {len(experiments)} runs of {experiments[0].run.rounds} rounds")
    summary = compare(
        experiments,
        folder,
        title=DEMOS[data]["title"],
        workers=workers or os.cpu_count() or 1,
        overwrite=not resume,
        resume=resume,
        say=_say,
    )
    _show_comparison(summary, folder)


@app.command()
def reproduce(
    item: Annotated[str, typer.Argument(help="figure-2, figure-4, figure-5, table-1, table-2, ... or all.")],
    panel: Annotated[list[str] | None, typer.Option(help="Only this panel (a table's row). May be repeated.")] = None,
    curve: Annotated[list[str] | None, typer.Option(help="Only this curve (a column). May be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed. May be repeated.")] = None,
    scale: Annotated[str, typer.Option(help="full, or smoke: every run for a few rounds on a few rows.")] = "full",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto.")] = "auto",
    precision: Annotated[str, typer.Option(help="fp32, tf32 or bf16: of float32 products on a GPU.")] = "fp32",
    stack: Annotated[int, typer.Option(help="Runs in one program, at most.")] = 16,
    seconds: Annotated[float, typer.Option(help="Stop in time and keep what is unfinished; 0: no limit.")] = 0.0,
    results: Annotated[
        Path | None, typer.Option(help="Another results file than the item's own; drawn in a folder beside it.")
    ] = None,
    paper: Annotated[Path, typer.Option(help="The folder with the paper's items.")] = Path("paper"),
    draw: Annotated[bool, typer.Option("--draw", help="Run nothing; draw the existing results.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Reproduce a figure or table of the paper: run what is missing, resume what was interrupted, draw it."""
    where = Where(device, named_precision(precision, "--precision"), stack, seconds)
    for each in find_items(item, paper):
        left = reproduce_item(
            each,
            paper,
            panels=panel or [],
            curves=curve or [],
            seeds=seed or [],
            scale=scale,
            where=where,
            results=results,
            draw_only=draw,
            say=_say,
        ).left
        if left:
            _say(f"{left} runs are left")
            break


@app.command()
def privacy(
    file: Annotated[Path, typer.Argument(help="The experiment, as TOML.", metavar="FILE.toml")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a value: section.key=value. May be repeated.")
    ] = None,
    epsilon: Annotated[float, typer.Option(help="Also compute the noise for this epsilon.")] = 0.0,
    allow_import: AllowImport = None,
) -> None:
    """Compute the epsilon of FILE.toml's noise, and the noise for a given epsilon. Trains nothing."""
    tell_privacy(set_values(read_tables(file), settings or []), epsilon, _say)


@app.command(name="list")
def list_() -> None:
    """List all algorithms, objectives, data sets, partitions, models, aggregations, presets, schedules."""
    tables: dict[str, Mapping[str, Any]] = {
        "algorithms": ALGORITHMS,
        "objectives": OBJECTIVES,
        "data sets": DATASETS,
        "partitions": PARTITIONS,
        "models": MODELS,
        "aggregations": AGGREGATIONS,
        "transmissions": TRANSMISSIONS,
        "presets": PRESETS,
        "schedules": SCHEDULES,
    }
    grid = Table.grid(padding=(0, 2))
    for title, rows in tables.items():
        grid.add_row(f"[bold]{title}")
        for name, row in rows.items():
            grid.add_row(
                f"  {name}", row if isinstance(row, str) else getattr(row, "summary", None) or _first_line(row)
            )
    _console.print(grid)


def _first_line(documented: object) -> str:
    return (documented.__doc__ or "").strip().splitlines()[0]
