"""``fedmm deploy watch`` and ``metrics``: follow a run, for people and for Prometheus."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedmm.cli.console import DEFAULT_FEDERATION, FederationFolder, console, say
from fedmm.core.errors import require
from fedmm.deploy.layout import Federation, read_settings
from fedmm.deploy.processes import leave_when_told
from fedmm.deploy.prometheus import MetricsServer
from fedmm.deploy.run_view import RefusalView, Row, RunReader, RunView, SiteView, newest_run, require_run

_Run = Annotated[str | None, typer.Argument(help="The run's name; the newest by default.", metavar="RUN")]
_FEW_METRICS, _FEW_ROWS, _MOST_SITES = 8, 6, 20


class _WatchedRun:
    """A run by its name, or the newest as soon as there is one. follow: change to newer runs when they start."""

    def __init__(self, federation: Federation, name: str | None, *, follow: bool = False) -> None:
        read_settings(federation)
        self._federation = federation
        self._follow = follow
        self._reader = RunReader(require_run(federation, name)) if name else None
        self._named = name is not None

    def __call__(self) -> RunView | None:
        if not self._named and (self._follow or self._reader is None):
            name = newest_run(self._federation)
            if name is not None and (self._reader is None or self._reader.folder.name != name):
                self._reader = RunReader(self._federation.run(name))
        return self._reader.read() if self._reader else None


def deploy_watch(
    run: _Run = None,
    federation: FederationFolder = DEFAULT_FEDERATION,
    once: Annotated[bool, typer.Option("--once", help="Show it once and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between updates.")] = 1.0,
) -> None:
    """Watch a run: its sites, rounds, bytes and refusals; Ctrl-C does not stop the run."""
    require(0.1 <= every <= 3600, f"--every must be from 0.1 to 3600 seconds, not {every:g}")
    watched = _WatchedRun(Federation(federation), run)
    if once:
        for line in snapshot(watched()):
            say(line)
    elif console.is_terminal:
        _watch_live(watched, every)
    else:
        _watch_lines(watched, every)


def deploy_metrics(
    run: _Run = None,
    federation: FederationFolder = DEFAULT_FEDERATION,
    port: Annotated[int, typer.Option(help="The port; 0 picks a free one.")] = 9464,
    host: Annotated[str, typer.Option(help="The address of this machine to listen on.")] = "127.0.0.1",
) -> None:
    """Serve a run's state to Prometheus until Ctrl-C, by default at http://127.0.0.1:9464/metrics."""
    with leave_when_told(), MetricsServer(_WatchedRun(Federation(federation), run, follow=True), port, host) as server:
        say(f"metrics at http://{host}:{server.server_address[1]}/metrics; Ctrl-C ends it")
        server.serve_forever()


def _watch_live(watched: _WatchedRun, every: float) -> None:
    view = watched()
    with Live(_screen(view), console=console, auto_refresh=False) as live:
        while view is None or not view.over:
            time.sleep(every)
            view = watched()
            live.update(_screen(view), refresh=True)


def _watch_lines(watched: _WatchedRun, every: float) -> None:
    """Print a line for each new state, round and refusal, for logs and pipes."""
    state, last, refusals = "", 0, 0
    while True:
        view = watched()
        now = view.state if view else "no run yet"
        if now != state:
            state = now
            say(f"{view.name}: {state}" if view else state)
        if view is not None:
            for row in view.rows:
                if (row["round"] or 0) > last:
                    say(_round_line(row, view.rounds))
            new = view.refused - refusals
            for refusal in view.refusals[max(0, len(view.refusals) - new) :] if new > 0 else ():
                say(_refusal_line(refusal))
            last, refusals = view.round, view.refused
            if view.over:
                return
        time.sleep(every)


def snapshot(view: RunView | None) -> list[str]:
    """Return a run as plain lines."""
    if view is None:
        return ["no run yet; `fedmm deploy run` starts one"]
    lines = [f"run {view.name}: {view.state}", _progress(view)]
    lines += [f"site {site.name}: {_site_words(site)}" for site in view.sites]
    lines += [_round_line(row, view.rounds) for row in view.rows]
    lines += [_refusal_line(refusal) for refusal in view.refusals]
    return [*lines, *(f"log {line}" for line in view.log)]


def _screen(view: RunView | None) -> Group:
    if view is None:
        return Group(Text("no run yet; `fedmm deploy run` starts one"))
    sites = Table("site", "online", "since", "last round", "seconds", "refused", box=None)
    away_first = sorted(view.sites, key=lambda site: (site.online is not False, -(site.seconds or 0.0)))
    for site in away_first[:_MOST_SITES]:
        online = Text("yes", "green") if site.online else Text("no", "red") if site.online is False else Text("?")
        seconds = "" if site.seconds is None else f"{site.seconds:.2f}"
        round = "" if site.round is None else str(site.round)
        sites.add_row(Text(site.name), online, Text(site.since[:19]), round, seconds, str(site.refused))
    sites.caption = f"and {len(away_first) - _MOST_SITES} more" if len(away_first) > _MOST_SITES else None
    newest = view.rows[-_FEW_ROWS:]
    rounds = Table("round", *(f"{row['round']:.0f}" for row in newest), box=None)
    for name in ("seconds", "loss", "clients", *list(view.metrics)[:_FEW_METRICS]):
        rounds.add_row(Text(name), *(_short(row.get(name)) for row in newest))
    refusals = [Text(_refusal_line(refusal), "yellow") for refusal in view.refusals]
    log = [Text(line, "dim", overflow="ellipsis", no_wrap=True) for line in view.log]
    head = Text.assemble((f"{view.name}", "bold"), f": {view.state}")
    return Group(head, Text(_progress(view)), Text(), sites, Text(), rounds, Text(), *refusals, *log)


def _progress(view: RunView) -> str:
    of = "" if view.rounds is None else f" of {view.rounds}"
    spent = "" if view.epsilon is None else f", epsilon {view.epsilon:.4g}"
    sizes = f"{_size(view.bytes_up)} up, {_size(view.bytes_down)} down"
    return f"round {view.round}{of}, {sizes}, {view.refused} updates refused{spent}"


def _site_words(site: SiteView) -> str:
    online = {True: "online", False: "not online", None: "unknown"}[site.online]
    answered = "" if site.round is None else f", last answered round {site.round} in {site.seconds or 0.0:.2f} s"
    return f"{online}{answered}, {site.refused} refused"


def _round_line(row: Row, rounds: int | None) -> str:
    of = "" if rounds is None else f"/{rounds}"
    fixed = {"round", "seconds", "loss", "bytes_up", "bytes_down", "clients", "refused"}
    known = [f"{name} {_short(value)}" for name, value in row.items() if name not in fixed and value is not None]
    seconds, loss, counted = (_short(row.get(name)) for name in ("seconds", "loss", "clients"))
    sizes = f"{_size(row.get('bytes_up') or 0)} up, {_size(row.get('bytes_down') or 0)} down"
    return ", ".join(
        [f"round {row['round']:.0f}{of}: {seconds} s", f"loss {loss}", f"{counted} counted", sizes, *known]
    )


def _refusal_line(refusal: RefusalView) -> str:
    return f"round {refusal.round}: {refusal.site} was not counted: {refusal.reason}"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _size(number: float) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "bytes" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError
