"""``fedmm reproduce`` on a paper small enough to be run here."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from cli.commands import Command, runner
from fabricated import read
from reproduction.small_paper import changed, numbers, tick_at_every_look, write_paper

from fedmm.reproduction.results import read_lines
from fedmm.training.batched import StackRun

DRAWN = {"figure_1.svg", "figure_1.png", "figure_1.md"}
STATES = Path("runs/reproduce/states")


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs ``fedmm reproduce`` with some arguments in a folder that holds ``paper/``."""
    monkeypatch.chdir(tmp_path)
    write_paper(tmp_path / "paper")

    run = runner(monkeypatch, capsys, "reproduce")
    return lambda *arguments: run(*arguments, "--device", "cpu")


def files(folder: str | Path) -> set[str]:
    return {path.name for path in Path(folder).iterdir() if path.is_file()}


# All of it ------------------------------------------------------------------------------------------------------------


def test_a_figure_is_run_drawn_and_its_numbers_listed(command: Command) -> None:
    ended = command("figure-1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines()[:2] == ["Figure 1: two panels (full)", "8 runs: 0 done before, 8 to do"]
    assert files("paper/figure_1") == {"item.toml", "results.jsonl"} | DRAWN
    listed = json.loads(Path("paper/results.json").read_text())["results"]
    assert len(listed) == len(read_lines(Path("paper/figure_1/results.jsonl"))) == 8
    assert listed[0]["provenance"]["command"].startswith("fedmm reproduce figure-1 --device cpu")
    again = command("figure_1")
    assert again.code == 0
    assert "8 runs: 8 done before, 0 to do" in again.out


def test_a_table_is_made_from_the_figures_runs(command: Command) -> None:
    assert command("table-1", "--curve", "fedmm", "--seed", "0").code == 0
    assert files("paper/table_1") == {"item.toml", "table_1.svg", "table_1.png", "table_1.md"}
    assert {line["item"] for line in read_lines(Path("paper/figure_1/results.jsonl"))} == {"figure_1"}


def test_all_of_them_are_one_command_and_equal_experiments_are_copied(command: Command) -> None:
    ended = command("all", "--seed", "1", "--panel", "even", "--curve", "fedmm")
    assert ended.code == 2, "the second figure has no such panel"
    ended = command("all")
    assert (ended.code, ended.err) == (0, "")
    assert "2 runs are the same experiments as others and were copied" in ended.out
    for name in ("figure_1", "figure_2", "table_1"):
        assert f"{name}.svg" in files(f"paper/{name}")


def test_drawing_runs_nothing(command: Command) -> None:
    ended = command("figure-1", "--draw")
    assert ended.code == 2
    assert "results.jsonl is missing; `fedmm reproduce` writes it as its runs end" in ended.err
    command("figure-1", "--panel", "even", "--seed", "0")
    (Path("paper/figure_1/figure_1.svg")).unlink()
    before = Path("paper/figure_1/results.jsonl").read_bytes()
    assert command("figure-1", "--draw").code == 0
    assert Path("paper/figure_1/results.jsonl").read_bytes() == before
    assert files("paper/figure_1") >= DRAWN


def test_a_file_that_changed_is_run_again_and_said(command: Command) -> None:
    command("figure-1", "--panel", "even", "--seed", "0")
    changed(Path("paper/figure_1/even/fedmm.toml"), "local_steps = 2", "local_steps = 3")
    ended = command("figure-1", "--panel", "even", "--seed", "0")
    assert "even/fedmm seed 0: its file changed since; it is run again" in ended.out
    assert "2 runs: 1 done before, 1 to do" in ended.out


def test_results_may_be_kept_elsewhere(command: Command) -> None:
    before = read(Path("paper"))
    assert command("figure-1", "--seed", "0", "--results", "mine.jsonl").code == 0
    assert len(read_lines(Path("mine.jsonl"))) == 4
    assert files("mine-figure_1") == DRAWN
    assert read(Path("paper")) == before


def test_the_smoke_scale_never_writes_into_the_paper(command: Command) -> None:
    before = read(Path("paper"))
    for _ in range(2):
        ended = command("figure-1", "--scale", "smoke")
        assert (ended.code, ended.err) == (0, "")
    table = command("table-1", "--scale", "smoke")
    assert (table.code, table.err) == (0, "")
    assert read(Path("paper")) == before
    assert files("runs/reproduce/figure_1-smoke") == {"results.jsonl"} | DRAWN
    assert {line["scale"] for line in read_lines(Path("runs/reproduce/figure_1-smoke/results.jsonl"))} == {"smoke"}


# What is not there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-3"], "unknown figure or table 'figure-3'; did you mean 'figure-2'? "
         "(known: all, figure-1, figure-2, table-1)"),
        (["figure-1", "--panel", "evn"], "unknown panel of figure_1 'evn'; did you mean 'even'? (known: even, uneven)"),
        (["figure-1", "--curve", "fedm"], "unknown curve of figure_1 'fedm'; did you mean 'fedmm'? "
         "(known: fedavg_gda, fedmm, source_only)"),
        (["figure-1", "--scale", "half"], "unknown scale of figure_1 'half' (known: full, smoke)"),
        (["figure-1", "--seed", "9"], "unknown seed of figure_1 '9' (known: 0, 1)"),
        (["figure-1", "--precision", "fp8"], "--precision must be one of fp32, tf32, bf16, not 'fp8'"),
        (["figure-1", "--stack", "0"], "--stack must be at least 1, not 0"),
        (["figure-1", "--seconds", "-1"], "--seconds must be 0 or more, not -1.0"),
        (["figure-1", "--paper", "elsewhere"], "elsewhere holds no item.toml of a figure or table; "
         "run this in a checkout, or name the folder --paper"),
    ],
)  # fmt: skip
def test_what_is_unknown_is_answered_in_one_sentence(command: Command, arguments: list[str], message: str) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.err) == (2, f"error: {message}\n")
    assert not Path("runs").exists()
    assert files("paper/figure_1") == {"item.toml"}


# Interrupted ----------------------------------------------------------------------------------------------------------


ONE = ["figure-1", "--panel", "even", "--curve", "fedmm", "--seed", "0"]


def test_a_limit_of_time_keeps_what_is_unfinished(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    tick_at_every_look(monkeypatch)
    tries = 0
    while True:
        ended = command(*ONE, "--seconds", "2.5")
        assert (ended.code, ended.err) == (0, "")
        if "runs are left" not in ended.out:
            break
        tries += 1
        assert "1 runs are left" in ended.out
        assert "interrupted: states" in ended.out
    assert tries == 2, "6 rounds, of which each try has time for 2"
    interrupted = read_lines(Path("paper/figure_1/results.jsonl"))
    assert list(STATES.iterdir()) == []
    command(*ONE, "--results", "straight.jsonl")
    assert [numbers(line) for line in read_lines(Path("straight.jsonl"))] == [numbers(line) for line in interrupted]


@pytest.mark.usefixtures("heeding_ctrl_c")
def test_ctrl_c_in_a_round_keeps_what_is_unfinished(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, evaluate = iter(range(10)), StackRun.evaluate

    def interrupted(stack: StackRun) -> Any:
        if next(looks) == 1:
            signal.raise_signal(signal.SIGINT)
        return evaluate(stack)

    with monkeypatch.context() as patch:
        patch.setattr(StackRun, "evaluate", interrupted)
        ended = command(*ONE)
    assert (ended.code, ended.err) == (130, "stopped\n")
    assert "the same command continues from there" in ended.out
    assert len(list(STATES.iterdir())) == 1
    assert command(*ONE).code == 0
    assert list(STATES.iterdir()) == []
    (line,) = read_lines(Path("paper/figure_1/results.jsonl"))
    assert (line["rounds"], line["status"]) == (6, "completed")
    command(*ONE, "--results", "straight.jsonl")
    assert [numbers(each) for each in read_lines(Path("straight.jsonl"))] == [numbers(line)]


DRIVER = """
    import sys
    from pathlib import Path
    from fedmm.cli import main
    from fedmm.training.batched import StackRun

    real = StackRun.evaluate

    def evaluate(stack):
        Path("training").touch()
        return real(stack)

    StackRun.evaluate = evaluate
    main()
"""


@pytest.mark.processes
def test_ctrl_c_keeps_what_is_unfinished_and_the_same_command_goes_on(command: Command, tmp_path: Path) -> None:
    changed(Path("paper/common.toml"), "rounds = 6", "rounds = 1500")
    changed(Path("paper/common.toml"), "evaluate_every = 2", "evaluate_every = 100")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else a child may be born deaf to it
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(DRIVER), "reproduce", *ONE, "--device", "cpu"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    signal.signal(signal.SIGINT, before)
    try:
        until = time.monotonic() + 600
        while not Path("training").exists():
            assert time.monotonic() < until, "it never began"
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
    finally:
        process.kill()
    assert (process.returncode, err) == (130, "stopped\n")
    assert "the same command continues from there" in out
    assert len(list(STATES.iterdir())) == 1
    ended = command(*ONE)
    assert ended.code == 0
    assert list(STATES.iterdir()) == []
    (line,) = read_lines(Path("paper/figure_1/results.jsonl"))
    assert (line["rounds"], line["status"]) == (1500, "completed")
    command(*ONE, "--results", "straight.jsonl")
    assert [numbers(each) for each in read_lines(Path("straight.jsonl"))] == [numbers(line)]
