"""``fedmm run``, ``sweep``, ``demo`` and ``compare``: the commands that train."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from fedmm.cli.console import INTERRUPTED, AllowImport, ExperimentFile, Settings, console, say
from fedmm.config.demos import DEMOS, demo_experiments
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.config.toml import read_tables, set_values
from fedmm.core.errors import FedmmError, require
from fedmm.core.files import atomic_write
from fedmm.core.validation import at_least
from fedmm.reporting import comparison_rows, draw_comparison, draw_run, read_comparison, rich_table, validator_table
from fedmm.reporting.compared import csv_compared, draw_compared, rich_compared, sentences, write_markdown
from fedmm.runs.compare import compare_methods
from fedmm.runs.comparison import compare as compare_runs
from fedmm.runs.run import run_experiment
from fedmm.runs.run_folder import folder_name, free_folder, latest_folder
from fedmm.runs.summary import NO_TARGET_LABELS
from fedmm.runs.sweep import run_sweep
from fedmm.runs.tuning.candidates import LABELLED_ALGORITHMS, TUNE
from fedmm.runs.verdict import judge_run

_RUNS = Path("runs")
_MOST_SEEDS = 1000
_METHODS = "; ".join(f"{metric}: {', '.join(names)}" for metric, names in LABELLED_ALGORITHMS.items())


def choose_folder(out: Path | None, name: str, *, resume: bool, overwrite: bool) -> Path:
    """Return ``out`` or, if none was named, a free folder in runs/; with ``resume``, the latest one there."""
    require(not (resume and overwrite), "--resume and --overwrite exclude each other; use one of them")
    usual = _RUNS / name
    return out or (latest_folder(usual) if resume else free_folder(usual))


def _ignore(line: str) -> None:
    """Print nothing, in place of :func:`say`."""


def run(
    file: ExperimentFile,
    settings: Settings = None,
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
    """Train the experiment in FILE.toml and write a run folder. A [sweep] table makes it a grid of runs."""
    given = {
        "engine": engine or ("ray" if ray_address else None),
        "ray_address": ray_address,
        "rounds": rounds,
        "seed": seed,
    }
    changed = [*(settings or []), *(f"run.{key}={value}" for key, value in given.items() if value not in (None, ""))]
    changed += [f"run.track={json.dumps(track)}"] if track else []
    tables = set_values(read_tables(file), changed)
    require(TUNE not in tables, f"{file} has a [tune] table, which is for `fedmm tune`; remove it to run the file")
    if SWEEP in tables:
        for key in {"rounds", "seed"} & {key for key, value in given.items() if value is not None}:
            listed = f"run.{key}" in tables[SWEEP]
            require(not listed, f"--{key} has no effect on a sweep over run.{key}; leave it out, or change [sweep]")
        _sweep(tables, changed, out, file.stem, overwrite=overwrite, resume=resume, quiet=quiet)
        return
    resolved = experiment(tables)
    _require_own_cluster([resolved], changed)
    method = resolved.objective.name if resolved.ignores_target else resolved.algorithm.name
    name = f"{folder_name(file.stem)}-{method}-seed{resolved.run.seed}"
    folder = choose_folder(out, name, resume=resume, overwrite=overwrite)
    said = _ignore if quiet else say
    summary = run_experiment(resolved, folder, overwrite=overwrite, resume=resume, progress=not quiet, say=said)
    draw_run(folder)
    same = [*(settings or []), *([f"run.rounds={rounds}"] if rounds is not None else [])]
    judged = judge_run(folder, resolved, _type_compare(file, same, allow_import or []))
    if judged:
        said(f"adaptation: {judged['sentence']}")
    say(
        f"{summary['label']}: {_describe_result(summary)} after {summary['rounds']} rounds ({summary['status']}, "
        f"{summary['seconds']:.1f} s); everything is in {folder}"
    )
    if summary["status"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _type_compare(file: Path, settings: Sequence[str], allowed: Sequence[str]) -> str:
    """Return the command that compares methods on the same file with the same settings."""
    options = [*(("--set", setting) for setting in settings), *(("--allow-import", module) for module in allowed)]
    return shlex.join(["fedmm", "compare", str(file), *(word for pair in options for word in pair)])


def _require_own_cluster(runs: Sequence[Experiment], settings: list[str]) -> None:
    """Refuse a Ray cluster that the file names but the user did not: what its processes send could run code here."""
    given = set_values({}, settings).get("run", {}).get("ray_address", "")
    for address in {run.run.ray_address for run in runs} - {"", given}:
        raise FedmmError(
            f"the file has run.ray_address = {address!r}, a Ray cluster that could run code in this process; if you "
            f"trust it, give --ray-address {address}"
        )


def _describe_result(summary: dict[str, Any]) -> str:
    """Describe a run's result: target accuracy, without a target the scores on test rows, else target information."""
    accuracy, information = summary["target_accuracy"], summary.get("target_information")
    if accuracy is not None:
        return f"target accuracy {accuracy:.1%}"
    tested, auroc = summary["source_accuracy"], summary.get("source_auroc")
    if "note" not in summary and tested is not None:
        return f"{'' if auroc is None else f'AUROC {auroc:.3f}, '}accuracy {tested:.1%} on test rows"
    if "note" not in summary or information is None:
        return str(summary.get("note", "not yet evaluated"))
    return f"target information {information:.3f} nats ({summary['note']})"


def sweep(
    file: Annotated[Path, typer.Argument(help="The experiment with a [sweep] table, as TOML.", metavar="FILE.toml")],
    settings: Settings = None,
    out: Annotated[Path | None, typer.Option(help="The folder; runs/NAME by default.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older sweep in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the sweep in that folder.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Run every combination of the lists in [sweep], stacked into as few programs as possible."""
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
    folder = choose_folder(out, folder_name(title), resume=resume, overwrite=overwrite)
    runs = grid(tables)
    _require_own_cluster(runs, settings)
    said = _ignore if quiet else say
    summary = run_sweep(runs, folder, title=title, overwrite=overwrite, resume=resume, progress=not quiet, say=said)
    if not quiet:
        show_comparison(summary, folder, judged=True)
        return
    if summary["runs"]:
        draw_comparison(folder)
    say(f"{len(summary['runs'])} runs ({summary['status']}); everything is in {folder}")
    if summary["status"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def show_comparison(summary: dict[str, Any], folder: Path, *, judged: bool = False) -> None:
    """Show tables and pictures of several runs; judged: also what validators measured, and the rule's verdicts."""
    if summary["runs"]:
        pictures = draw_comparison(folder)
        rows = comparison_rows(read_comparison(folder))
        unlabelled = all(run["target_accuracy"] is None and run["rounds"] for run in summary["runs"])
        if not unlabelled:
            console.print(rich_table(rows))
        if judged or unlabelled:
            console.print(validator_table(rows))
        if unlabelled and any("note" in run for run in summary["runs"]):
            say(NO_TARGET_LABELS)
        if judged:
            _say_verdicts(summary["evidence"])
        say(f"pictures: {', '.join(map(str, pictures))}")
    if summary["status"] == "interrupted":
        raise typer.Exit(INTERRUPTED)


def _say_verdicts(evidence: dict[str, Any]) -> None:
    estimated = {verdict["source_only"]: shift for verdict in evidence["verdicts"] if (shift := verdict["label_shift"])}
    for label, shift in estimated.items():
        say(f"as estimated with {label}: {shift['sentence']}")
    for verdict in evidence["verdicts"]:
        say(f"{verdict['label']}: {verdict['sentence']}")
    if evidence["note"]:
        say(evidence["note"])
    say(f"the rule: {evidence['rule']}")


def demo(
    data: Annotated[str, typer.Option(help=f"What to run on: {', '.join(DEMOS)}.")] = "digits",
    seeds: Annotated[int, typer.Option(help="Seeds per method.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="The folder; runs/demo by default (runs/demo-NAME for others).")
    ] = None,
    workers: Annotated[int, typer.Option(help="Runs in parallel; 0: one per core.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in that folder.")] = False,
) -> None:
    """Compare source-only training, FedAvgGDA, FedProxGDA and FedMM on data that needs no download."""
    at_least("--seeds", seeds, 1)
    require(seeds <= _MOST_SEEDS, f"--seeds must be at most {_MOST_SEEDS}, not {seeds}")
    at_least("--workers", workers, 0)
    experiments = demo_experiments(data, seeds)
    folder = out or _RUNS / ("demo" if data == "digits" else f"demo-{data}")
    say(f"{DEMOS[data]['title']}; {len(experiments)} runs of {experiments[0].run.rounds} rounds")
    summary = compare_runs(
        experiments,
        folder,
        title=DEMOS[data]["title"],
        workers=workers or os.cpu_count() or 1,
        overwrite=not resume,
        resume=resume,
        say=say,
    )
    show_comparison(summary, folder)


def compare(
    file: ExperimentFile,
    settings: Settings = None,
    objectives: Annotated[
        str | None,
        typer.Option(
            help="With a target: the objectives to adapt with, separated by commas; dann,cdan,mdd by default."
        ),
    ] = None,
    metric: Annotated[
        str,
        typer.Option(
            help="Without a target: the score on rows set aside that says which method is best. It also says which "
            f"algorithms are compared: {_METHODS}. By default what the file trains for."
        ),
    ] = "",
    seeds: Annotated[
        int,
        typer.Option(
            help="Runs per method, with run.seed and the seeds after it. With a target there is no verdict with fewer "
            "than 3."
        ),
    ] = 3,
    rounds: Annotated[int | None, typer.Option(help="Rounds of every run, instead of the file's run.rounds.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder to write; runs/NAME-compare by default, where NAME is that of the file."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older comparison in that folder.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the comparison in that folder.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Train several methods on the data of FILE.toml, all in the same way, and say which to use.

    With a target: source only, per-site standardisation, and fedavg_gda and fedmm_restrained (fedmm if the file names
    it) with each objective. The verdict uses validators, never target labels, and may be that the evidence does not
    support adapting. Without a target: the algorithms for the metric. The file's own algorithm is always compared too.
    The folder holds compare.md, compare.csv, compare.json, compare.png, and a folder for each run.
    """
    changed = [*(settings or []), *([f"run.rounds={rounds}"] if rounds is not None else [])]
    tables = set_values(read_tables(file), changed)
    folder = choose_folder(out, f"{folder_name(file.stem)}-compare", resume=resume, overwrite=overwrite)
    table = compare_methods(
        tables,
        folder,
        title=file.stem,
        objectives=None if objectives is None else [name.strip() for name in objectives.split(",") if name.strip()],
        metric=metric,
        seeds=seeds,
        overwrite=overwrite,
        resume=resume,
        say=say,
    )
    if table is None:
        say(f"stopped; finished runs are in {folder}, and --resume continues the comparison")
        raise typer.Exit(INTERRUPTED)
    for name, text in (("compare.md", write_markdown(table)), ("compare.csv", csv_compared(table))):
        with atomic_write(folder / name) as partial:
            partial.write_text(text, encoding="utf-8")
    draw_compared(folder)
    console.print(rich_compared(table, console.width))
    for sentence in sentences(table):
        say(sentence)
    say(f"every validator: {folder / 'compare.md'}; picture: {folder / 'compare.png'}")
