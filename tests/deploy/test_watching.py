"""What can be seen of a run from its folder: its status file, the view of it, and what Prometheus is told."""

from __future__ import annotations

import http.client
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from deploy.grids import SitesGrid
from deploy.running import until
from deploy.test_serving import served, site_files, small
from rich.console import Console

from fedmm import FedmmError
from fedmm.cli import main, watch
from fedmm.deploy.federation import prepare
from fedmm.deploy.layout import Federation
from fedmm.deploy.prometheus import CONTENT_TYPE, MetricsServer, exposition
from fedmm.deploy.run_state import StatusFile
from fedmm.deploy.run_view import RunReader, RunView, newest_run, require_run
from fedmm.deploy.server import serve
from fedmm.remote.flower.roster import Roster

HOSTILE = 'a"} 1\nfedmm_evil{x="\\'
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')


def parsed(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Prometheus' text format, read strictly: a HELP and a TYPE before each family, every series once."""
    assert text.endswith("\n")
    series: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    family, families, kind = "", set(), ""
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert family not in families
            families.add(family)
            kind = ""
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert (name, kind in ("gauge", "counter")) == (family, True)
            assert (kind == "counter") == name.endswith("_total")
        else:
            found = SAMPLE.fullmatch(line)
            assert found is not None, line
            assert (found[1], bool(kind)) == (family, True)
            labels, place = [], 0
            while place < len(found[2] or ""):
                label = LABEL.match(found[2], place)
                assert label is not None, line
                raw = re.sub(r"\\(.)", lambda each: {"n": "\n"}.get(each[1], each[1]), label[2])
                labels.append((label[1], raw))
                place = label.end()
            key = (found[1], tuple(labels))
            assert key not in series
            series[key] = float(found[3])
    return series


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """An empty run's folder of a federation."""
    federation = Federation(tmp_path / "federation")
    prepare(federation, 9093, [], insecure=True)
    folder = federation.run("first")
    folder.mkdir(parents=True)
    (folder / "submitted.toml").write_text("[run]\nrounds = 7\n")
    return folder


def add(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def row(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "seconds": 0.5, "loss": 1.5, "bytes_up": 10, "bytes_down": 20, "clients": 2, **more}


def shown(view: RunView | None) -> str:
    """The live view as a terminal shows it, and the plain one."""
    console = Console(file=io.StringIO(), width=100, force_terminal=False)
    console.print(watch._screen(view))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue() + "\n".join(watch.snapshot(view))


def in_use(folder: Path) -> None:
    (folder / "server.lock").write_text(f"{os.getpid()}\n")


# The server's own word ------------------------------------------------------------------------------------------------


def test_a_server_tells_of_its_sites(tmp_path: Path) -> None:
    each = small(run={"rounds": 2})
    grid = SitesGrid(site_files(tmp_path / "sites", each))
    serve(grid, served(tmp_path, each))
    folder = tmp_path / "runs" / "one"
    status = json.loads((folder / "status.json").read_text())
    assert {key: status[key] for key in ("version", "round", "rounds")} == {"version": 1, "round": 2, "rounds": 2}
    for name in ("source-1", "target-1"):
        site = status["sites"][name]
        assert site.keys() == {"online", "since", "round", "answered", "seconds", "training"}
        assert (site["online"], site["round"]) == (True, 2)
    view = RunReader(folder).read()
    rows = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert (view.round, view.rounds, view.loss) == (2, 2, rows[-1]["loss"])
    assert view.bytes_up == sum(each["bytes_up"] for each in rows)
    assert view.metrics["target_entropy"] == rows[-1]["target_entropy"]
    parsed(exposition(view))


def test_a_site_that_goes_is_told_at_once(tmp_path: Path) -> None:
    class Grid:
        there: tuple[int, ...] = ()

        def get_nodes(self) -> list[Any]:
            return [type("Node", (), {"node_id": node, "last_activated_at": "now"})() for node in self.there]

    grid, roster = Grid(), Roster(["a", "b"], nodes={"a": 1, "b": 2})
    status = StatusFile(tmp_path, roster, 5)
    roster.on_change = status.write

    def online() -> list[bool]:
        roster.online(grid)  # type: ignore[arg-type]
        sites = json.loads((tmp_path / "status.json").read_text())["sites"]
        return [sites[name]["online"] for name in ("a", "b")]

    assert online() == [False, False]
    grid.there = (1, 2)
    assert online() == [True, True]
    grid.there = (2,)
    assert online() == [False, True]
    status.after_round(1, {"b": {"handled": float("nan"), "trained": "long"}, "a": {"handled": -1, "trained": 1e300}})
    sites = json.loads((tmp_path / "status.json").read_text(), parse_constant=pytest.fail)["sites"]
    assert (sites["b"]["seconds"], sites["a"]["seconds"], sites["a"]["training"]) == (0.0, 0.0, 1e9)


def test_a_status_that_cannot_be_written_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    StatusFile(tmp_path / "file" / "below", Roster(["a"]), 5).after_round(1, {})


# The view -------------------------------------------------------------------------------------------------------------


def test_a_run_is_seen_before_its_first_round_while_it_goes_on_and_after_it(run: Path) -> None:
    reader = RunReader(run)
    assert (reader.read().state, reader.read().rounds, reader.read().over) == ("not begun", 7, False)
    in_use(run)
    (run / "server.log").write_text("10:00:00 waiting for b\n")
    view = reader.read()
    assert (view.state, view.round, view.log) == ("waiting for its sites", 0, ("10:00:00 waiting for b",))
    assert "waiting for b" in shown(view)
    (run / "sites.json").write_text('{"a": {}, "b": {}}')
    assert [site.online for site in reader.read().sites] == [None, None]
    sites = {"a": {"online": True, "since": "x", "round": 1, "seconds": 0.25, "answered": 5.0}, "b": {"online": False}}
    (run / "status.json").write_text(json.dumps({"rounds": 9, "updated": 6.0, "sites": sites}))
    add(run / "rounds.jsonl", row(1, target_entropy=0.5, epsilon=1.25), row(2, target_entropy=None, epsilon=2.5))
    add(run / "refused.jsonl", {"round": 2, "client": "b", "reason": "it did not answer"})
    view = reader.read()
    assert (view.state, view.round, view.rounds, view.epsilon) == ("running", 2, 9, 2.5)
    assert (view.bytes_up, view.bytes_down, view.refused) == (20, 40, 1)
    assert view.metrics == {"target_entropy": 0.5}
    assert [(site.name, site.online, site.seconds, site.refused) for site in view.sites] == [
        ("a", True, 0.25, 0), ("b", False, None, 1),
    ]  # fmt: skip
    for words in ("round 2 of 9", "20 bytes up, 40 bytes down", "epsilon 2.5", "b was not counted: it did not answer"):
        assert words in shown(view)
    add(run / "rounds.jsonl", row(3))
    assert (reader.read().round, reader.read().bytes_up) == (3, 30)
    (run / "server.lock").write_text("")
    assert reader.read().state.startswith("not running; `fedmm deploy resume`")
    (run / "summary.json").write_text('{"status": "completed"}')
    assert (reader.read().state, reader.read().over) == ("completed", True)


def test_a_run_that_goes_on_from_an_earlier_round_is_counted_anew(run: Path) -> None:
    add(run / "rounds.jsonl", *(row(number) for number in (1, 2, 3)))
    reader = RunReader(run)
    assert reader.read().bytes_up == 30
    (run / "partial").write_text(json.dumps(row(1)) + "\n" + json.dumps(row(2)) + "\n" + json.dumps(row(3))[:9])
    (run / "partial").replace(run / "rounds.jsonl")
    assert (reader.read().round, reader.read().bytes_up) == (2, 20)  # a line without an end is still being written
    (run / "rounds.jsonl").unlink()
    assert (reader.read().round, reader.read().bytes_up) == (0, 0)


def test_what_sites_write_into_files_breaks_nothing(run: Path) -> None:
    in_use(run)
    escape = "\x1b[2J\x1b]0;owned\x07[bold]x[/nothing]"
    add(run / "rounds.jsonl", row(1, **{escape: 1.0, "huge": 10**400, "text": "x", "deep": [[]]}))
    with (run / "rounds.jsonl").open("a") as file:
        file.write("[" * 100_000 + "\n" + "3\n" + '{"round": "x"}\n')
    add(run / "refused.jsonl", {"round": None, "client": HOSTILE, "reason": escape * 100}, {"client": [1]})
    sites = {escape: {"online": 1, "round": "x", "seconds": None}, HOSTILE: 3, "\ud800": {}}
    (run / "status.json").write_text(json.dumps({"rounds": "many", "updated": 1e999, "sites": sites}))
    (run / "server.log").write_bytes(b"\xff\x1b[2J\n")
    view = RunReader(run).read()
    assert view.round == 1
    text = shown(view)
    assert not {"\x1b", "\x07"} & set(text)
    series = parsed(exposition(view))
    assert not any(name.startswith("fedmm_evil") for name, _ in series)
    for broken in ("", "[]", "nul", "[" * 100_000, '{"sites": []}'):
        (run / "status.json").write_text(broken)
        parsed(exposition(RunReader(run).read()))


def test_a_flood_of_names_is_bounded(run: Path) -> None:
    add(run / "rounds.jsonl", row(1, target_entropy=None, **{f"metric-{number}": 1.0 for number in range(5000)}))
    add(run / "rounds.jsonl", row(2, target_entropy=0.5))
    add(run / "refused.jsonl", *({"round": 1, "client": f"c{number}" * 99, "reason": "x"} for number in range(3000)))
    (run / "status.json").write_text(json.dumps({"sites": {f"s{number}": {} for number in range(5000)}}))
    view = RunReader(run).read()
    assert (len(view.sites), len(view.metrics) <= 50, view.refused) == (1000, True, 3000)
    assert view.metrics["target_entropy"] == 0.5
    assert len(exposition(view)) < 1 << 20
    assert len(shown(view).splitlines()) < 1100


def test_the_newest_run_is_shown_or_the_one_that_is_named(run: Path) -> None:
    federation = Federation(run.parents[1])
    other = federation.run("other")
    other.mkdir()
    (other / "submitted.toml").write_text("")
    os.utime(other / "submitted.toml", (1, 1))
    assert newest_run(federation) == "first"
    assert require_run(federation, "other") == other
    with pytest.raises(FedmmError, match=r"there is no run 'x' in .* \(known: first, other\)"):
        require_run(federation, "x")
    assert newest_run(Federation(run)) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell of processes")
def test_a_server_that_has_ended_and_is_not_reaped_is_not_at_work(run: Path) -> None:
    """As Flower leaves its own until it ends itself."""
    add(run / "rounds.jsonl", row(1))
    (run / "summary.json").write_text('{"status": "completed"}')
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        (run / "server.lock").write_text(f"{child.pid}\n")
        until(lambda: RunReader(run).read().over, 60, "a dead server is taken for one that works")


# The commands ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def fedmm(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def called(*words: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedmm", "deploy", *map(str, words)])
        with pytest.raises(SystemExit) as end:
            main()
        return int(end.value.code or 0), *capsys.readouterr()

    return called


def test_watching_once_and_in_lines(run: Path, fedmm: Callable[..., tuple[int, str, str]]) -> None:
    there = run.parents[1]
    add(run / "rounds.jsonl", row(1), row(2))
    code, out, _ = fedmm("watch", "--federation", there, "--once")
    assert code == 0
    assert out.startswith("run first: not running")
    add(run / "refused.jsonl", {"round": 2, "client": "b", "reason": "it is late"})
    (run / "summary.json").write_text('{"status": "completed"}')
    code, out, _ = fedmm("watch", "first", "--federation", there)
    assert (code, out.splitlines()[0]) == (0, "first: completed")
    assert [line[:8] for line in out.splitlines()[1:]] == ["round 1/", "round 2/", "round 2:"]


def test_watching_a_federation_without_runs(tmp_path: Path, fedmm: Callable[..., tuple[int, str, str]]) -> None:
    prepare(Federation(tmp_path), 9093, [], insecure=True)
    assert fedmm("watch", "--federation", tmp_path, "--once")[1].startswith("no run yet")
    assert fedmm("watch", "x", "--federation", tmp_path)[0] == 2
    assert fedmm("watch", "--federation", tmp_path / "none")[2].startswith(
        f"error: {tmp_path}/none holds no federation"
    )
    assert fedmm("watch", "--federation", tmp_path, "--every", "0")[2].startswith("error: --every must be from 0.1")
    assert fedmm("metrics", "--federation", tmp_path, "--port", "99999")[2].startswith("error: the port must be")


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "example.org", "::"])
def test_metrics_listen_on_this_machine_alone(run: Path, fedmm: Callable[..., tuple[int, str, str]], host: str) -> None:
    code, _, err = fedmm("metrics", "--federation", run.parents[1], "--host", host)
    assert (code, err) == (
        2,
        f"error: the metrics' endpoint is only for this machine (127.0.0.1), not for {host!r}\n",
    )


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("words", [["watch"], ["metrics", "--port", "0"]])
def test_ctrl_c_leaves(run: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "fedmm", "deploy", *words, "--federation", str(run.parents[1])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "stopped\n")


# Prometheus -----------------------------------------------------------------------------------------------------------


@contextmanager
def serving(view: Callable[[], RunView | None]) -> Iterator[MetricsServer]:
    with MetricsServer(view, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def asked(port: int, method: str = "GET", path: str = "/metrics", **headers: str) -> tuple[int, str, str]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()


def test_prometheus_is_answered_and_nobody_else(run: Path) -> None:
    add(run / "rounds.jsonl", row(1, target_entropy=0.5, epsilon=2.0))
    (run / "status.json").write_text(json.dumps({"rounds": 7, "sites": {HOSTILE: {"online": True}}}))
    with serving(RunReader(run).read) as server:
        port = server.server_address[1]
        assert server.server_address[0] == "127.0.0.1"
        status, kind, text = asked(port)
        assert (status, kind) == (200, CONTENT_TYPE)
        series = parsed(text)
        assert series["fedmm_round", (("run", "first"),)] == 1
        assert series["fedmm_rounds_planned", (("run", "first"),)] == 7
        assert series["fedmm_epsilon", (("run", "first"),)] == 2
        assert series["fedmm_metric", (("run", "first"), ("name", "target_entropy"))] == 0.5
        name = HOSTILE.replace("\n", " ")
        assert series["fedmm_site_online", (("run", "first"), ("site", name))] == 1
        for path in ("/", "/metrics/", "/metrics?x", "/../metrics", "/status.json"):
            assert asked(port, path=path)[0] == 404, path
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert asked(port, method)[0] == 501
        for host in ("evil.example.org", "evil.example.org:9464", "127.0.0.1.evil.example.org", ""):
            assert asked(port, Host=host)[0] == 403, host
        assert asked(port, Host="localhost:1")[0] == 200
        add(run / "rounds.jsonl", row(2))
        assert parsed(asked(port)[2])["fedmm_round", (("run", "first"),)] == 2


def test_without_a_run_there_is_little_to_say() -> None:
    assert parsed(exposition(None)) == {("fedmm_runs", ()): 0.0}


def test_those_who_only_hold_connections_open_are_bounded(run: Path) -> None:
    with serving(RunReader(run).read) as server:
        port = server.server_address[1]
        held = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(20)]
        try:
            closed = held[-1].recv(1)  # one too many: hung up on, while the first ones may still speak
            assert closed == b""
            assert threading.active_count() < 20
        finally:
            for each in held:
                each.close()
        until(lambda: _answered(port), 60, "nobody is answered any more")


def _answered(port: int) -> bool:
    try:
        return asked(port)[0] == 200
    except (OSError, http.client.HTTPException):
        time.sleep(0.1)
        return False


def test_a_port_that_is_taken_is_said(run: Path) -> None:
    with serving(RunReader(run).read) as server, pytest.raises(FedmmError, match=r"nothing can listen at 127\.0\.0\.1"):
        MetricsServer(RunReader(run).read, server.server_address[1])
