"""Every command with every option, given what nobody would mean: it ends with a known code, and never a traceback."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest
import typer
from fuzz.hostile import examples
from hypothesis import assume, given
from hypothesis import strategies as st

from fedmm.cli import main
from fedmm.cli.app import app

CODES = {0, 2, 130}
"""Done, refused, and stopped by Ctrl-C; see docs/cli.md."""
OWN = "-fedmm.toml"
PAPER = Path(__file__).parents[2] / "paper"
TOML = """
[run]
rounds = 1
batch_size = 2
threads = 1
probe_rows = 4
evaluate_every = 1
[data]
name = "moons"
rows = 8
test_rows = 4
[model]
name = "mlp"
hidden = [3]
adversary_hidden = [3]
[algorithm]
name = "fedmm"
local_steps = 1
"""
ODD = [
    "", " ", "-", "--", "-x", "--help", "..", "../..", "/", "/dev/null/x", "/proc/x", "nothing", "a\nb", "\x1b[2J", "é",
    "\udcff", "\N{GRINNING FACE}", "x" * 300, "-1", "0", "1e9", "nan", "inf", "true", "[bold]", "%s", "{}", "9" * 30,
    "=", "a=b", "run.rounds", "run.rounds=-1", "run.rounds=nan", "data.name=x", "run=1", "..=1", "sweep.x=[]",
    "sweep.run.seed=1", "run.device=cuda:9", "run.device=cpu:x", "run.dtype=int", "model.hidden=[0]", "a.b.c.d=1",
    "run.label='a", 'algorithm.lr_min={"*"=nan}', "fp32", "figure-2", "moons", "digits", "full", "auto", "in_process",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    code: object
    out: str
    err: str


def fedmm(*words: str, encoding: str = "utf-8") -> Ended:
    """The real entry point in this process, before a terminal of this encoding."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding, errors) for errors in ("strict", "backslashreplace"))
    code: object = 0
    with in_time(), patch.object(sys, "argv", ["fedmm", *words]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return Ended(code or 0, *(_text(stream) for stream in (out, err)))


@contextmanager
def in_time(seconds: float = 600.0) -> Iterator[None]:
    """Whatever takes longer hangs."""

    def late(number: int, frame: object) -> None:
        raise AssertionError(f"not done in {seconds} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    content = stream.buffer
    assert isinstance(content, io.BytesIO)
    return content.getvalue().decode("utf-8", "surrogateescape")


def commands(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with its words, also of groups inside."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*before, name))
        else:
            yield (*before, name), command


TOP = typer.main.get_command(app)
assert isinstance(TOP, click.Group)
ALL = dict(commands(TOP))


def everything_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder two below a place that nothing may be written to, no data, and no way to fetch any."""
    folder = tmp_path / "outside" / "here"
    folder.mkdir(parents=True)
    (folder / OWN).write_text(TOML)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("FEDMM_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("FEDMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDMM_MIRROR", "ftp://nowhere")
    return folder


@st.composite
def wrong_words(draw: st.DrawFn, command: click.Command) -> list[str]:
    """Arguments and options of a command in any number and order, at least one of them wrong."""
    words: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            words += draw(st.lists(st.sampled_from(ODD), min_size=0, max_size=2))
        elif draw(st.booleans()):
            option = draw(st.sampled_from(parameter.opts))
            words += [option] if getattr(parameter, "is_flag", False) else [option, draw(st.sampled_from(ODD))]
    return draw(st.permutations(words))


CHEAP = [words for words in ALL if words[-1] not in ("demo", "leaderboard")]
"""All but those that train for long when nothing is wrong. Those of ``deploy`` that start processes need a file or a
federation, of which there is none."""
ELSEWHERE = {"/", "..", "../.."}
"""Folders that are there and in which ``deploy prepare`` would rightly make a federation."""


@pytest.mark.parametrize("words", CHEAP, ids=" ".join)
def test_a_command_ends_with_a_known_code_whatever_it_is_given(words: tuple[str, ...], here: Path) -> None:
    @examples(10)
    @given(wrong_words(ALL[words]))
    def holds(more: list[str]) -> None:
        assume(words != ("deploy", "prepare") or not ELSEWHERE & set(more))
        before = everything_below(here.parents[1])
        ended = fedmm(*words, *more)
        assert ended.code in CODES
        assert "Traceback" not in ended.err
        if ended.code == 2:
            assert everything_below(here.parents[1]) == before
            assert ended.err.strip()

    holds()


def test_every_option_of_run_is_refused_before_anything_is_written(here: Path) -> None:
    before = everything_below(here.parents[1])

    @examples(20)
    @given(st.lists(st.sampled_from([word for word in ODD if not word.startswith("-")]), min_size=1, max_size=3))
    def holds(settings: list[str]) -> None:
        ended = fedmm("run", *(f"--set={each}" for each in settings), "--set", "run.rounds=0", "--", OWN)
        assert ended.code == 2
        assert ended.err.startswith(("error: ", "Usage: "))
        assert everything_below(here.parents[1]) == before

    holds()


PATHS = [
    (words, option.opts[0])
    for words in CHEAP
    for option in ALL[words].params
    if isinstance(option, click.Option) and isinstance(option.type, click.Path)
]
NEEDED = {
    "run": [OWN], "sweep": [OWN], "reproduce": ["figure-2"], "data": ["mnist_m"], "init": ["nothing"],
    "evaluate": ["nothing", "test"], "predict": ["nothing", "nothing"], "export": ["nothing"], "report": ["nothing"],
    "data list": [], "deploy up": [OWN], "deploy run": [OWN], "deploy resume": ["first"], "deploy status": [],
    "deploy down": [],
}  # fmt: skip


@pytest.mark.parametrize(("words", "option"), PATHS)
def test_a_path_that_no_file_system_takes_is_refused(words: tuple[str, ...], option: str, here: Path) -> None:
    given = NEEDED.get(" ".join(words), NEEDED.get(words[0], []))
    needed = ["--", *given] if given else []
    for path in ("x" * 300, "x/" * 3000, "/dev/null/x"):
        ended = fedmm(*words, option, path, *needed)
        assert ended.code in (0, 2)


@pytest.mark.parametrize(
    "options",
    [("--seeds", "0"), ("--seeds", "-1"), ("--seeds", "9" * 12), ("--seeds", "x"), ("--workers", "-1"), ("--data", "")]
    + [("--data", odd) for odd in ("nothing", "../x", "é")],
    ids=" ".join,
)
def test_a_demo_that_cannot_be_meant_is_refused(options: tuple[str, ...], here: Path) -> None:
    ended = fedmm("demo", *options)
    assert (ended.code, list(here.iterdir())) == (2, [here / OWN])


@pytest.mark.parametrize("option", ["--resume", "--overwrite"])
@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"{}", b'{"kind": "run"', b"[" * 3000], ids=["empty", "x", "{}", "cut", "deep"]
)
def test_a_folder_that_holds_no_run_is_left_alone(here: Path, option: str, content: bytes) -> None:
    folder = here / "mine"
    folder.mkdir()
    for name in ("experiment.toml", "summary.json", "rounds.jsonl", "refused.jsonl", "holiday.jpg"):
        (folder / name).write_bytes(content)
    before = everything_below(folder)
    ended = fedmm("run", "--out", "mine", option, "--", OWN)
    assert (ended.code, "Traceback" in ended.err) == (2, False)
    assert everything_below(folder) == before


@pytest.mark.parametrize("suffix", ["", ".png", ".svg", ".xyz", ".pdf", "/"])
def test_a_picture_is_drawn_or_refused(here: Path, suffix: str) -> None:
    ended = fedmm("data", "show", "digits", "--set", "test_rows=1700", "--out", f"sheet{suffix}")
    assert ended.code in CODES
    assert [path.name for path in here.iterdir() if path.name != OWN] == ([f"sheet{suffix}"] if ended.code == 0 else [])


@pytest.mark.parametrize(
    "words",
    [
        ("run", "\udcff\n.toml"),
        ("run", "--out", "/dev/null/x", "--", OWN),
        ("run", "--set", "run.label=\udcff", "--", OWN),
        ("reproduce", "figure-2", "--paper", str(PAPER), "--draw", "--scale", "../../../x"),
        ("reproduce", "figure-2", "--paper", str(PAPER), "--scale", "../../../x"),
    ],
    ids=["file", "folder", "label", "scale", "scale to run"],
)
def test_a_refusal_is_one_line_and_code_2(here: Path, words: tuple[str, ...]) -> None:
    before = everything_below(here.parents[1])
    ended = fedmm(*words)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert everything_below(here.parents[1]) == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to the addresses it may have")
def test_memory_that_is_not_there_is_told_in_one_line(here: Path) -> None:
    (here / "large.toml").write_text('[data]\nname = "digits"\n[model]\nname = "small_cnn"\nchannels = [1000, 1000000]')
    with no_more_than(8 << 30):
        ended = fedmm("run", "large.toml")
    assert ended.code == 2
    assert ended.err.startswith("error: there is not enough memory; ")
    assert ended.err.count("\n") == 1
    assert sorted(path.name for path in here.iterdir()) == [OWN, "large.toml"]


@contextmanager
def no_more_than(more: int) -> Iterator[None]:
    """So many bytes beside what this process has: a limit that holds whatever the system promises without having it."""
    import resource

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


# As it is really called -----------------------------------------------------------------------------------------------


def called(folder: Path, *words: Any, **options: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "fedmm", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, timeout=600, check=False, **options)


@pytest.mark.parametrize("way", ["here", pytest.param("a process", marks=pytest.mark.processes)])
def test_a_name_that_is_not_utf8_and_a_terminal_without_it_are_no_reason_to_fail(here: Path, way: str) -> None:
    words = ["run", "--out", os.fsdecode(b"\xff\n"), "--set", "run.label='é'", "--", OWN]
    if way == "here":
        ended = fedmm(*words, encoding="ascii")
        assert (ended.code, ended.err) == (0, "")
    else:
        done = called(here, *words, env=os.environ | {"PYTHONIOENCODING": "ascii"})
        assert (done.returncode, done.stderr) == (0, b"")
    assert (os.fsencode(here) + b"/\xff\n/summary.json") in [bytes(path) for path in here.rglob("*.json")]
