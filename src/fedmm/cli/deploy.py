"""``fedmm deploy``: federations of sites that run in separate processes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from fedmm.cli.console import DEFAULT_FEDERATION, AllowImport, FederationFolder, say
from fedmm.cli.deploy_sites import (
    deploy_accept,
    deploy_approve,
    deploy_audit,
    deploy_certify,
    deploy_invite,
    deploy_join,
    deploy_key,
    deploy_prepare,
    deploy_register,
    deploy_site,
)
from fedmm.cli.watch import deploy_metrics, deploy_watch
from fedmm.core.errors import FedmmError, require
from fedmm.deploy.federation import SUPERLINK, alive, answers, down, up
from fedmm.deploy.layout import TUNING, Federation, RunRequest, TuneRequest, describe_tuning, is_tuning, read_settings
from fedmm.deploy.processes import leave_when_told, read_log
from fedmm.deploy.runs import follow, resume, run_status, stop_run, submit
from fedmm.sites.config import read_site

if TYPE_CHECKING:
    from fedmm.config.schema import Experiment

deploy_app = typer.Typer(
    help="Federations of sites that do not trust each other, over Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

_TUNE = "With --tune"
_ERROR = "error: "
"""The start of the last line in the log of a server that failed."""
_Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")]
_File = Annotated[Path, typer.Argument(help="The experiment, as TOML; - reads standard input.", metavar="FILE.toml")]


def deploy_up(
    file: _File,
    federation: FederationFolder = DEFAULT_FEDERATION,
    settings: _Settings = None,
    host: Annotated[str, typer.Option(help="The address of this machine that the SuperLink listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 picks a free one.")] = 0,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text, only on this machine.")] = False,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="Use a SuperLink that keeps nothing on disk.")] = False,
    per_process: Annotated[int, typer.Option(help="How many sites share a process.")] = 1,
    site: Annotated[
        list[Path] | None,
        typer.Option(help="A site's own file, if the experiment's rows are at sites. May be repeated."),
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Run until Ctrl-C, then stop everything.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Start, on this machine, a SuperLink and a site for each share of the experiment's data or each --site file."""
    from fedmm.deploy.local import local_sites  # noqa: PLC0415 - torch
    from fedmm.sites.experiments import read_experiment  # noqa: PLC0415 - torch

    require(per_process >= 1, f"--per-process must be at least 1, not {per_process}")
    experiment = read_experiment(file, settings or [])
    deployment = Federation(federation)
    with leave_when_told():
        up(
            deployment, local_sites(experiment, site or []), host=host, port=port, insecure=insecure,
            in_memory=in_memory, to_a_process=per_process, say=say,
        )  # fmt: skip
        if foreground:
            _stay(deployment)
    at = _at(federation)
    say(f"up; `fedmm deploy run {file}{at}` trains, `fedmm deploy down{at}` ends it")


def _stay(deployment: Federation) -> NoReturn:
    say("up; Ctrl-C ends everything")
    try:
        while all(alive(deployment).values()):
            time.sleep(1.0)
        gone = [name for name, runs in alive(deployment).items() if not runs]
        raise FedmmError(f"{', '.join(gone)} ended by itself; its log is in {deployment.logs}")
    finally:
        down(deployment)


def _at(federation: Path) -> str:
    """Return the option that names a federation; empty for the default one."""
    return "" if federation == DEFAULT_FEDERATION else f" --federation {federation}"


def deploy_run(
    file: _File,
    federation: FederationFolder = DEFAULT_FEDERATION,
    settings: _Settings = None,
    name: Annotated[str | None, typer.Option(help="The run's name; the file's name by default.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds that a round waits for its sites.")] = 600.0,
    min_sites: Annotated[
        int, typer.Option(help="How many sites the run needs to start; others join later. 0: all listed sites.")
    ] = 0,
    tune: Annotated[
        bool, typer.Option("--tune", help="Choose a setting without target labels, as `fedmm tune`, over the sites.")
    ] = False,
    objectives: Annotated[
        str, typer.Option(help="The objectives to try, separated by commas.", rich_help_panel=_TUNE)
    ] = "",
    metric: Annotated[
        str, typer.Option(help="Without a target: accuracy, auc or worst_site.", rich_help_panel=_TUNE)
    ] = "",
    minutes: Annotated[float | None, typer.Option(help="A time budget.", rich_help_panel=_TUNE)] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds per finalist; 3 by default.", rich_help_panel=_TUNE)] = None,
    eta: Annotated[
        int | None, typer.Option(help="The first rung keeps the best 1/eta; 2 by default.", rich_help_panel=_TUNE)
    ] = None,
    max_rounds: Annotated[
        int | None,
        typer.Option(
            help="The most rounds that each site answers; fewer rounds allow fewer candidates.", rich_help_panel=_TUNE
        ),
    ] = None,
) -> None:
    """Train on the federation's sites. Ctrl-C ends the run, and `resume` continues it.

    With --tune, the candidates of `fedmm tune` run one after the other. Sites count every round, and are asked first
    whether their limits leave room. The result is runs/NAME/tuning/tuned.toml in the federation's folder.
    """
    from fedmm.runs.tuning.candidates import TUNE  # noqa: PLC0415 - torch
    from fedmm.sites.experiments import (  # noqa: PLC0415 - torch
        deployed_experiment,
        experiment_text,
        listed_sites,
        read_sections,
        require_quorum,
    )

    deployment, run = Federation(federation), name or file.stem
    require(run != "-", "an experiment from standard input has no name; give the run one with --name")
    read_settings(deployment)
    options = {
        "objectives": objectives, "metric": metric, "minutes": minutes, "seeds": seeds, "eta": eta,
        "max_rounds": max_rounds,
    }  # fmt: skip
    given = {key: value for key, value in options.items() if value not in (None, "")}
    for key in given:
        require(tune, f"--{key.replace('_', '-')} is for --tune")
    if tune:
        experiment, tuning = _read_tuning(file, settings or [], given, run, min_sites)
    else:
        tables = read_sections(file, settings or [])
        require(TUNE not in tables, f"{file} has a [tune] table, which is for --tune; remove it to run the file")
        experiment, tuning = deployed_experiment(tables), ""
    require_quorum(min_sites, listed_sites(experiment))
    text = experiment_text(experiment)
    folder = deployment.run(run)
    require(
        not (folder / "experiment.toml").exists() and not is_tuning(folder),
        f"the run {run!r} was started before; `fedmm deploy resume {run}{_at(federation)}` continues it, --name makes "
        "another",
    )
    request = RunRequest(
        deployment.folder, run, text, patience=patience, enrol_seconds=patience, min_sites=min_sites, tuning=tuning
    )
    _follow(deployment, run, submit(request, say))


def _read_tuning(
    file: Path, settings: Sequence[str], given: Mapping[str, Any], run: str, min_sites: int
) -> tuple[Experiment, str]:
    """Return the experiment as given, and the tuning for the server; refuse what cannot be tuned."""
    from fedmm.deploy.tuning import check_tuning  # noqa: PLC0415 - torch
    from fedmm.sites.experiments import read_sections  # noqa: PLC0415 - torch

    names = [name.strip() for name in str(given.get("objectives", "")).split(",") if name.strip()]
    request = TuneRequest(read_sections(file, settings), **{**given, "objectives": tuple(names)})
    return check_tuning(request, run, min_sites), request.text()


def deploy_resume(
    run: Annotated[str, typer.Argument(help="The run's name.", metavar="RUN")],
    federation: FederationFolder = DEFAULT_FEDERATION,
    patience: Annotated[float, typer.Option(help="Seconds that a round waits for its sites.")] = 600.0,
    allow_import: AllowImport = None,
) -> None:
    """Continue a run after its last finished round, as a new Flower run; restart the SuperLink if it is dead."""
    deployment = Federation(federation)
    read_settings(deployment)
    _follow(deployment, run, resume(deployment, run, patience=patience, say=say))


def _follow(deployment: Federation, run: str, number: int) -> None:
    errors = []

    def tell(line: str) -> None:
        _, _, said = line.partition(" ")  # the time
        if said.startswith(_ERROR):
            errors.append(said.removeprefix(_ERROR))
        else:
            say(line)

    try:
        status = follow(deployment, run, number, tell)
    except KeyboardInterrupt:
        say(f"ending the run; `fedmm deploy resume {run}{_at(deployment.folder)}` continues it")
        stop_run(deployment, number)
        raise
    why = f": {errors[-1]}" if errors else f"; {deployment.run(run) / 'server.log'} says why"
    require(
        "completed" in status,
        f"the run {run} ended with {status}{why}; once that is put right, `fedmm deploy resume "
        f"{run}{_at(deployment.folder)}` continues it",
    )
    say(f"{run}: {status}; everything is in {deployment.run(run)}")
    if is_tuning(deployment.run(run)):
        from fedmm.cli.tune import show_tuned  # noqa: PLC0415 - torch

        at = _at(deployment.folder)
        show_tuned(deployment.run(run) / TUNING, lambda path: f"fedmm deploy run {path} --name {run}-{path.stem}{at}")


def deploy_status(federation: FederationFolder = DEFAULT_FEDERATION) -> None:
    """Show the running processes and the progress of the runs."""
    deployment = Federation(federation)
    made = read_settings(deployment)
    say(f"SuperLink {made.address}{' in plain text' if made.insecure else ', TLS and node authentication'}")
    here = alive(deployment) or {SUPERLINK: answers(made)}  # one that a service started
    for name, runs in here.items():
        say(f"  {name}: {'running' if runs else 'not running'}")
    for folder in sorted(deployment.runs.glob("*")):
        rounds, numbers = (
            len(read_log(folder / "rounds.jsonl").splitlines()),
            read_log(folder / "flower-runs.txt").split(),
        )
        known = ""
        if numbers and here.get(SUPERLINK):
            known = f", Flower says {run_status(deployment, int(numbers[-1]))}"
        done = describe_tuning(folder) if is_tuning(folder) else f"{rounds} rounds finished"
        say(f"{'tuning' if is_tuning(folder) else 'run'} {folder.name}: {done}{known}")


def deploy_down(federation: FederationFolder = DEFAULT_FEDERATION) -> None:
    """Stop everything that the federation runs on this machine."""
    deployment = Federation(federation)
    read_settings(deployment)
    say(f"{down(deployment)} processes ended")


def deploy_clean(
    file: Annotated[
        Path | None, typer.Argument(help="A site's file; without one, the coordinator's folder.", metavar="[SITE.toml]")
    ] = None,
    federation: FederationFolder = DEFAULT_FEDERATION,
    keep: Annotated[list[str] | None, typer.Option(help="A run to keep. May be repeated.")] = None,
    days: Annotated[float, typer.Option(help="Keep what was used within this many days.")] = 30.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what old runs left behind: states, copies of rows, checkpoints of completed runs, unpacked apps."""
    from fedmm.deploy.clean import Keeping, Leftover, clean_coordinator, clean_site  # noqa: PLC0415 - fcntl

    keeping = Keeping(keep or (), days)

    def clean(*, remove: bool) -> list[Leftover]:
        if file is not None:
            return clean_site(read_site(file), keeping, remove=remove)
        return clean_coordinator(Federation(federation), keeping, remove=remove)

    found = clean(remove=False)
    for leftover in found:
        say(f"{leftover.bytes / 1e6:10.1f} MB  {leftover.what}: {leftover.path}")
    total = f"{len(found)} of {sum(leftover.bytes for leftover in found)} bytes"
    if not found or dry_run:
        say(f"nothing is removed; found {total}")
        return
    if not yes:
        require(typer.confirm(f"remove {total}?"), "nothing is removed")
    removed = clean(remove=True)
    say(f"removed {len(removed)} of {sum(leftover.bytes for leftover in removed)} bytes")


def deploy_demo(
    out: Annotated[Path, typer.Option(help="The folder.")] = Path("runs/deploy-demo"),
    rounds: Annotated[int, typer.Option(help="Rounds; each takes seconds.")] = 5,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text instead of TLS.")] = False,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="Use a SuperLink that keeps nothing on disk.")] = False,
) -> None:
    """Run two sites of scanned digits in separate processes, and check that one process gives the same bits."""
    from fedmm.deploy.local import demo  # noqa: PLC0415 - torch

    with leave_when_told():
        alike = demo(out, rounds, insecure=insecure, in_memory=in_memory, say=say)
    if not alike:
        raise typer.Exit(1)


for command in (
    deploy_invite, deploy_join, deploy_accept, deploy_watch, deploy_metrics, deploy_approve, deploy_audit, deploy_up,
    deploy_run, deploy_resume, deploy_status, deploy_down, deploy_prepare, deploy_register, deploy_certify, deploy_key,
    deploy_site, deploy_clean, deploy_demo,
):  # fmt: skip
    deploy_app.command(command.__name__.removeprefix("deploy_"))(command)
