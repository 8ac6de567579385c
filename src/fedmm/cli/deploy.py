"""``fedmm deploy``: federations of sites, each in processes of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from fedmm.cli.allowing import AllowImport
from fedmm.cli.invitations import deploy_accept, deploy_invite, deploy_join
from fedmm.cli.site_records import approve, audit
from fedmm.cli.watching import deploy_metrics, deploy_watch
from fedmm.core.errors import FedmmError, require
from fedmm.deploy.federation import (
    SUPERLINK,
    alive,
    answers,
    down,
    follow,
    opened,
    prepare,
    register,
    resume,
    run_status,
    stop_run,
    submit,
    up,
)
from fedmm.deploy.layout import Federation
from fedmm.deploy.processes import leaving_when_told
from fedmm.sites.config import read_site

deploy_app = typer.Typer(
    help="Federations of sites that do not trust each other, by Flower.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
_console = Console(soft_wrap=True, highlight=False, markup=False)

_Folder = Annotated[Path, typer.Option("--federation", help="The federation's folder.")]
_Settings = Annotated[list[str] | None, typer.Option("--set", help="Change a value: section.key=value.")]
_File = Annotated[Path, typer.Argument(help="The experiment, as TOML; - reads standard input.", metavar="FILE.toml")]
_DEFAULT = Path("federation")

deploy_app.command("invite")(deploy_invite)
deploy_app.command("join")(deploy_join)
deploy_app.command("accept")(deploy_accept)
deploy_app.command("watch")(deploy_watch)
deploy_app.command("metrics")(deploy_metrics)
deploy_app.command("approve")(approve)
deploy_app.command("audit")(audit)


def _say(line: str) -> None:
    _console.print(line)


@deploy_app.command("up")
def deploy_up(
    file: _File,
    federation: _Folder = _DEFAULT,
    settings: _Settings = None,
    host: Annotated[
        str, typer.Option(help="Where the SuperLink listens: an address of this machine's own.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Its port; 0 for any that is free.")] = 0,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text, on this machine alone.")] = False,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="A SuperLink that keeps nothing on disk.")] = False,
    per_process: Annotated[int, typer.Option(help="How many sites share a process.")] = 1,
    site: Annotated[
        list[Path] | None,
        typer.Option(help="A site's own file, where the experiment's rows are at sites. May be repeated."),
    ] = None,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay until Ctrl-C, then end everything.")] = False,
    allow_import: AllowImport = None,
) -> None:
    """Start a SuperLink and a site for each share of the experiment's data, on this machine."""
    from fedmm.deploy.local import local_sites  # noqa: PLC0415 - torch
    from fedmm.sites.experiments import read_experiment  # noqa: PLC0415 - torch

    require(per_process >= 1, f"--per-process must be at least 1, not {per_process}")
    each = read_experiment(file, settings or [])
    there = Federation(federation)
    with leaving_when_told():
        up(
            there, local_sites(each, site or []), host=host, port=port, insecure=insecure, in_memory=in_memory,
            to_a_process=per_process, say=_say,
        )  # fmt: skip
        if foreground:
            _stay(there)
    at = _at(federation)
    _say(f"up; `fedmm deploy run {file}{at}` trains, `fedmm deploy down{at}` ends it")


def _stay(there: Federation) -> NoReturn:
    _say("up; Ctrl-C ends everything")
    try:
        while all(alive(there).values()):
            time.sleep(1.0)
        gone = [name for name, runs in alive(there).items() if not runs]
        raise FedmmError(f"{', '.join(gone)} ended by itself; its log is in {there.logs}")
    finally:
        down(there)


def _at(federation: Path) -> str:
    """How a federation is named to a command."""
    return "" if federation == _DEFAULT else f" --federation {federation}"


@deploy_app.command("run")
def deploy_run(
    file: _File,
    federation: _Folder = _DEFAULT,
    settings: _Settings = None,
    name: Annotated[str | None, typer.Option(help="What the run is called; the file's name by default.")] = None,
    patience: Annotated[float, typer.Option(help="Seconds that a round waits for its sites.")] = 600.0,
    min_sites: Annotated[
        int, typer.Option(help="With how many sites the run begins; others join later. 0: all that are listed.")
    ] = 0,
) -> None:
    """Train over the federation's sites; Ctrl-C ends the run, which `resume` goes on with."""
    from fedmm.sites.experiments import experiment_text, listed_sites, read_experiment, require_quorum  # noqa: PLC0415 - torch  # noqa: PLC0415 - torch

    there, run = Federation(federation), name or file.stem
    require(run != "-", "an experiment from standard input has no name; give the run one with --name")
    opened(there)
    experiment = read_experiment(file, settings or [])
    require_quorum(min_sites, listed_sites(experiment))
    text = experiment_text(experiment)
    folder = there.run(run)
    require(
        not (folder / "experiment.toml").exists(),
        f"the run {run!r} was begun before; `fedmm deploy resume {run}{_at(federation)}` goes on with it, --name makes "
        "another",
    )
    number = submit(
        there, run, text, resume=False, patience=patience, enrol_seconds=patience, min_sites=min_sites, say=_say
    )
    _followed(there, run, number)


@deploy_app.command("resume")
def deploy_resume(
    run: Annotated[str, typer.Argument(help="The run's name.", metavar="RUN")],
    federation: _Folder = _DEFAULT,
    patience: Annotated[float, typer.Option(help="Seconds that a round waits for its sites.")] = 600.0,
    allow_import: AllowImport = None,
) -> None:
    """Go on with a run after its last finished round, as a new run of Flower's; a dead SuperLink is started again."""
    there = Federation(federation)
    opened(there)
    _followed(there, run, resume(there, run, patience=patience, say=_say))


def _followed(there: Federation, run: str, number: int) -> None:
    try:
        status = follow(there, run, number, _say)
    except KeyboardInterrupt:
        _say(f"ending the run; `fedmm deploy resume {run}{_at(there.folder)}` goes on with it")
        stop_run(there, number)
        raise
    require(
        "completed" in status,
        f"the run {run} ended with {status}; {there.run(run) / 'server.log'} says why, and `fedmm deploy resume "
        f"{run}{_at(there.folder)}` goes on with it",
    )
    _say(f"{run}: {status}; everything is in {there.run(run)}")


@deploy_app.command("status")
def deploy_status(federation: _Folder = _DEFAULT) -> None:
    """Which processes run, and how far the runs are."""
    there = Federation(federation)
    made = opened(there)
    _say(f"SuperLink {made.address}{' in plain text' if made.insecure else ', TLS and node authentication'}")
    here = alive(there) or {SUPERLINK: answers(made)}  # one that a service started
    for name, runs in here.items():
        _say(f"  {name}: {'runs' if runs else 'does not run'}")
    for folder in sorted((there.folder / "runs").glob("*")):
        try:
            rounds = len((folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines())
            numbers = (folder / "flower-runs.txt").read_text(encoding="utf-8").split()
        except OSError:
            rounds, numbers = 0, []
        known = ""
        if numbers and here.get(SUPERLINK):
            known = f", Flower says {run_status(there, int(numbers[-1]))}"
        _say(f"run {folder.name}: {rounds} rounds finished{known}")


@deploy_app.command("down")
def deploy_down(federation: _Folder = _DEFAULT) -> None:
    """End everything that the federation runs on this machine."""
    there = Federation(federation)
    opened(there)
    _say(f"{down(there)} processes ended")


@deploy_app.command("prepare")
def deploy_prepare(
    federation: Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")],
    host: Annotated[list[str], typer.Option(help="The host as sites reach it. May be repeated.")],
    port: Annotated[int, typer.Option(help="The SuperLink's own port on this machine.")] = 9093,
    site: Annotated[list[str] | None, typer.Option(help="A site to make a key for here. May be repeated.")] = None,
) -> None:
    """Make a coordinator's folder for sites on other machines: certificates, and how Flower reaches the SuperLink."""
    made = prepare(Federation(federation), port, site or [], known_as=host)
    _say(f"made {federation} for a SuperLink at {made.address}, known to sites as {', '.join(host)}")
    _say(f"`fedmm deploy invite {federation} NAME...` invites its sites")


@deploy_app.command("register")
def deploy_register(
    federation: Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")],
) -> None:
    """Tell the running SuperLink the keys in keys/NAME.pub, so that it lets those sites in."""
    there = Federation(federation)
    opened(there)
    register(there, _say)


@deploy_app.command("certify")
def deploy_certify(
    federation: Annotated[Path, typer.Argument(help="The coordinator's folder.", metavar="FOLDER")],
) -> None:
    """Sign a certificate for every keys/NAME.pub that has none, for a proxy that asks sites for one."""
    from fedmm.sites.credentials.certificates import issue_certificates  # noqa: PLC0415 - needs the extra

    there = Federation(federation)
    made = issue_certificates(there.keys, there.certificates)
    for path in made:
        _say(f"made {path}; give it to the site, whose file names it as superlink.client_certificate")
    if not made:
        _say(f"nothing to do: {Federation(federation).keys} has no .pub without its .pem")


@deploy_app.command("key")
def deploy_key(
    path: Annotated[Path, typer.Argument(help="The file for the private key, named as the site.", metavar="FILE")],
) -> None:
    """Make a site's key where it is used; only FILE.pub goes to the coordinator."""
    from fedmm.sites.credentials.keys import make_node_key  # noqa: PLC0415 - needs the extra

    make_node_key(path)
    _say(f"made {path} and {path}.pub")


@deploy_app.command("site")
def deploy_site(
    files: Annotated[
        list[Path],
        typer.Argument(help="The site's file; several for sites that share a process.", metavar="SITE.toml..."),
    ],
) -> None:
    """Run a site until it is told to end: it asks its SuperLink for questions, and answers them itself."""
    from fedmm.sites.node import run_sites, say_to_stderr  # noqa: PLC0415 - Flower

    run_sites([read_site(file) for file in files], say_to_stderr)


@deploy_app.command("clean")
def deploy_clean(
    file: Annotated[
        Path | None, typer.Argument(help="A site's file; without one, the coordinator's folder.", metavar="[SITE.toml]")
    ] = None,
    federation: _Folder = _DEFAULT,
    keep: Annotated[list[str] | None, typer.Option(help="A run that stays. May be repeated.")] = None,
    days: Annotated[float, typer.Option(help="What was used in so many days stays.")] = 30.0,
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
    for each in found:
        _say(f"{each.bytes / 1e6:10.1f} MB  {each.what}: {each.path}")
    total = f"{len(found)} of {sum(each.bytes for each in found)} bytes"
    if not found or dry_run:
        _say(f"nothing is removed; found {total}")
        return
    if not yes:
        require(typer.confirm(f"remove {total}?"), "nothing is removed")
    removed = clean(remove=True)
    _say(f"removed {len(removed)} of {sum(each.bytes for each in removed)} bytes")


@deploy_app.command("demo")
def deploy_demo(
    out: Annotated[Path, typer.Option(help="The folder.")] = Path("runs/deploy-demo"),
    rounds: Annotated[int, typer.Option(help="Rounds; each takes seconds.")] = 5,
    insecure: Annotated[bool, typer.Option("--insecure", help="Plain text instead of TLS.")] = False,
    in_memory: Annotated[bool, typer.Option("--in-memory", help="A SuperLink that keeps nothing on disk.")] = False,
) -> None:
    """Two sites of scanned digits in processes of their own; the result must be that of one process, bit for bit."""
    from fedmm.deploy.demo import demo  # noqa: PLC0415 - torch

    with leaving_when_told():
        alike = demo(out, rounds, insecure=insecure, in_memory=in_memory, say=_say)
    if not alike:
        raise typer.Exit(1)
