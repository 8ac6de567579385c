"""The commands, in this process where that is enough."""

from __future__ import annotations

import copy
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import tomllib
import types
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
import typer
from cli.commands import Command, Ended
from safetensors.torch import load_file

import fedmm
from fedmm import ALGORITHMS, OBJECTIVES
from fedmm.cli import main
from fedmm.cli.app import app
from fedmm.config.demos import DEMOS
from fedmm.core.options import PRESETS
from fedmm.core.schedules import SCHEDULES
from fedmm.core.signals.validators import ALONE
from fedmm.core.target_losses import TARGET_LOSSES
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS
from fedmm.reporting import read_comparison, read_run

MOONS = Path(__file__).parents[2] / "examples" / "moons.toml"
SMALL = shlex.split(
    "--set run.rounds=2 --set run.batch_size=8 --set data.rows=40 --set data.test_rows=20 --set model.hidden=[8] "
    "--set model.adversary_hidden=[4] --set algorithm.local_steps=2"
)
FILES = {
    "experiment.toml", "rounds.jsonl", "summary.json", "model.safetensors", "samples.safetensors",
    "boundary.safetensors", "exhibits.safetensors", "model-best.safetensors", "rounds.png", "checkpoints", "input.json",
    "held.json",
}  # fmt: skip


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """Ctrl-C as a terminal delivers it, whatever this process was started by."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def wait_for(condition: Callable[[], bool], seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it never came"
        time.sleep(0.01)


def wait_for_rounds(folder: Path) -> None:
    """Until some rounds are on disk."""
    path = folder / "rounds.jsonl"
    wait_for(lambda: path.exists() and path.read_text().count("\n") >= 3)


# What there is --------------------------------------------------------------------------------------------------------


def test_the_version_is_shown(command: Command) -> None:
    assert command("--version") == Ended(0, f"fedmm {fedmm.__version__}\n", "")


def test_the_version_needs_none_of_the_commands(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fedmm.cli.app", None)  # to import it would fail
    monkeypatch.setitem(sys.modules, "torch", None)
    assert command("--version").out == f"fedmm {fedmm.__version__}\n"


def every_command(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, group
    for name, each in getattr(group, "commands", {}).items():
        yield from every_command(each, (*path, name))


def test_no_help_text_loses_what_stands_in_brackets(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    bracketed = re.compile(r"\[[\w.]+\]")
    seen = set()
    for path, each in every_command(typer.main.get_command(app)):
        texts = [each.help or "", *(getattr(option, "help", None) or "" for option in each.params)]
        wanted = {word for text in texts for word in bracketed.findall(text)}
        if wanted:
            seen.add(" ".join(path))
            shown = command(*path, "--help").out
            assert all(word in shown for word in wanted), path
    assert {"run", "sweep"} <= seen


def test_help_names_the_commands(command: Command) -> None:
    ended = command("--help")
    assert ended.code == 0
    assert all(name in ended.out for name in ("run", "demo", "list"))


@pytest.mark.parametrize(
    "rows",
    [ALGORITHMS, OBJECTIVES, TARGET_LOSSES, DATASETS, PARTITIONS, MODELS, PRESETS, SCHEDULES],
    ids=["algorithms", "objectives", "target losses", "data sets", "partitions", "models", "presets", "schedules"],
)
def test_list_shows_every_row_of_every_table_with_its_meaning(command: Command, rows: dict[str, Any]) -> None:
    ended = command("list")
    assert ended.code == 0
    lines = [line.split(maxsplit=1) for line in ended.out.splitlines() if line.startswith("  ")]
    shown = {words[0]: words[1] for words in lines if len(words) == 2}
    for name, row in rows.items():
        meaning = row if isinstance(row, str) else getattr(row, "summary", None) or row.__doc__
        assert meaning.startswith(shown[name].strip()[:20])


# Running --------------------------------------------------------------------------------------------------------------


def test_a_run_has_a_folder_of_its_own_and_says_where(command: Command) -> None:
    for folder in ("runs/moons-fedmm-seed0", "runs/moons-fedmm-seed0-2"):
        ended = command("run", MOONS, *SMALL)
        assert (ended.code, ended.err) == (0, "")
        engine, best, *_, rows, adaptation, result = (
            ended.out.splitlines()
        )  # between them, perhaps, a word on label shift
        assert engine.startswith("engine in_process: ")
        assert best.startswith("best by target_information: round ")
        assert best.endswith("kept as model-best.safetensors, which predict, evaluate and export use")
        assert rows.startswith(f"{folder} holds a few rows of the data")
        assert adaptation.startswith("adaptation: ")
        assert result.startswith("FedMM: target accuracy ")
        assert ended.out.endswith(f"everything is in {folder}\n")
        assert {path.name for path in Path(folder).iterdir()} == FILES


def test_rounds_and_seed_have_options_of_their_own(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--rounds", "1", "--seed", "0", "--out", "x")
    assert (ended.code, ended.err) == (0, "")
    resolved = tomllib.loads(Path("x/experiment.toml").read_text())["run"]
    assert (resolved["rounds"], resolved["seed"]) == (1, 0)
    ended = command("run", MOONS, *SMALL, "--rounds", "0")
    assert (ended.code, ended.out) == (2, "")
    assert "rounds must be at least 1" in ended.err


def test_a_quiet_run_says_one_line(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--quiet", "--out", "x")
    assert (ended.code, ended.err) == (0, "")
    assert len(ended.out.splitlines()) == 1
    assert ended.out.endswith("everything is in x\n")


def test_a_run_says_whether_adapting_helped(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--rounds", "2", "--out", "runs/adapted")
    lines = ended.out.splitlines()
    (said,) = [line for line in lines if line.startswith("adaptation: ")]
    told = json.loads(Path("runs/adapted/summary.json").read_text())["adaptation"]
    assert said == f"adaptation: {told['sentence']}"
    assert said != lines[-1], "the last line says what was reached, and where"
    typed = ["fedmm", "compare", str(MOONS), *SMALL, "--set", "run.rounds=2"]
    assert f"{ALONE}; a source-only run of the same data" in said
    assert f"`{shlex.join(typed)}` trains and judges what is missing" in said
    plain = command("run", MOONS, *SMALL, "--rounds", "2", "--set", "objective.name=source_only", "--out", "runs/plain")
    assert "adaptation: " not in plain.out
    again = command("run", MOONS, *SMALL, "--rounds", "2", "--out", "runs/again")
    assert "judged against 1 source-only run beside it" in again.out


def test_a_further_ctrl_c_shows_no_traceback(command: Command, monkeypatch: pytest.MonkeyPatch, ctrl_c: None) -> None:
    handlers = []

    def exit_(code: int) -> NoReturn:
        handlers.append(signal.getsignal(signal.SIGINT))
        raise SystemExit(code)

    def interrupted(*_: Any, **__: Any) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedmm.cli.train.run_experiment", interrupted)
    monkeypatch.setattr("fedmm.cli._from_ctrl_c", interrupted)  # another while the first is answered
    monkeypatch.setattr("fedmm.cli.sys.exit", exit_)
    ended = command("run", MOONS, *SMALL, "--out", "x")
    assert ended.code == 130
    assert "Traceback" not in ended.err
    assert handlers[-1] == signal.SIG_IGN  # nor does one while Python ends


def test_a_file_needs_data_and_a_model_alone(command: Command) -> None:
    own = (
        '[run]\nrounds = 2\nbatch_size = 8\n[data]\nname = "moons"\nrows = 40\ntest_rows = 20\n[model]\nname = "mlp"\n'
    )
    Path("own.toml").write_text(own)
    ended = command("run", "own.toml")
    assert (ended.code, ended.err) == (0, "")
    summary = json.loads(Path("runs/own-fedmm_restrained-seed0/summary.json").read_text())
    assert (summary["algorithm"], summary["objective"]) == ("fedmm_restrained", "dann")


def test_a_file_may_extend_another(command: Command) -> None:
    Path("own.toml").write_text(f'extends = "{MOONS.as_posix()}"\n[algorithm]\nname = "fedavg_gda"\n')
    ended = command("run", "own.toml", *SMALL, "--out", "x")
    assert (ended.code, ended.err) == (0, "")
    resolved = tomllib.loads(Path("x/experiment.toml").read_text())
    assert resolved["algorithm"]["name"] == "fedavg_gda"
    assert resolved["model"]["name"] == "mlp"
    assert "extends" not in resolved


def test_settings_are_what_is_run(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--set", "run.seed=7", "--set", "algorithm.name=fedsgda", "--out", "x")
    assert ended.code == 2  # FedSGDA has no penalties
    changed = ["run.label=other", "run.client_weights={source-1 = 2.0}", "objective.nu_schedule=dann_warmup"]
    ended = command("run", MOONS, *SMALL, *(word for c in changed for word in ("--set", c)), "--out", "deep/x")
    assert (ended.code, ended.err) == (0, "")
    resolved = tomllib.loads(Path("deep/x/experiment.toml").read_text())
    assert (resolved["run"]["label"], resolved["run"]["rounds"]) == ("other", 2)
    assert resolved["run"]["client_weights"] == {"source-1": 2.0}
    assert resolved["objective"]["nu_schedule"] == {"name": "dann_warmup", "gamma": 10.0}


def test_the_resolved_file_can_be_run_again(command: Command) -> None:
    command("run", MOONS, *SMALL, "--out", "first")
    assert command("run", "first/experiment.toml", "--out", "second").code == 0
    first, second = (load_file(f"{folder}/model.safetensors") for folder in ("first", "second"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_older_run_is_replaced_only_with_overwrite(command: Command) -> None:
    command("run", MOONS, *SMALL, "--out", "x")
    ended = command("run", MOONS, *SMALL, "--out", "x")
    assert ended == Ended(2, "", "error: the folder x is not empty; name another with --out, or pass --overwrite\n")
    assert command("run", MOONS, *SMALL, "--set", "run.seed=1", "--out", "x", "--overwrite").code == 0
    assert json.loads(Path("x/summary.json").read_text())["seed"] == 1


def test_a_label_may_hold_brackets(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--set", "run.label=mu [/2]", "--out", "x")
    assert ended.out.splitlines()[-1].startswith("mu [/2]: target accuracy ")


def test_a_folder_may_hold_brackets(command: Command) -> None:
    ended = command("run", MOONS, *SMALL, "--out", "mu[a]b")
    assert ended.out.endswith("everything is in mu[a]b\n")


# What the user gets wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "nowhere.toml"], "there is no file nowhere.toml"),
        (["run", "folder"], "folder is a folder; give a TOML file"),
        (["tune", "folder"], "folder is a folder; give a TOML file"),
        (["run", MOONS, "--set", "run.best_by=risk"], "[run] has an unknown best_by 'risk'"),
        (["run", MOONS, "--set", "run.best_by=worst_site"], "set best_by = 'validation_worst_accuracy'"),
        (["run", MOONS, "--set", "objective.name=worst-site"], "did you mean 'worst_site'? (known: auc, "),
        (["run", "bad.toml"], "bad.toml is not valid TOML"),
        (["run", "binary.toml"], "binary.toml cannot be read"),
        (["run", "empty.toml"], "the section [data] is missing"),
        (["run", MOONS, "--set", "run.rouds=3"], "unknown key in [run] 'rouds'; did you mean 'rounds'?"),
        (["run", MOONS, "--set", "rum.rounds=3"], "unknown section 'rum'; did you mean 'run'?"),
        (["run", MOONS, "--set", "run.rounds"], "--set 'run.rounds' must have the form section.key=value"),
        (["run", MOONS, "--set", "run.rounds=many"], "run.rounds must be a whole number, not 'many'"),
        (["run", MOONS, "--set", "run.rounds.a=1"], "'rounds' is a value, not a section"),
        (["run", MOONS, "--set", "algorithm.lr_min=-1"], "algorithm.lr_min must be above 0"),
        (["run", MOONS, "--set", "run.device=tpu"], "run.device 'tpu' cannot be used here"),
        (["run", MOONS, "--set", "partition.source_clients=5000"], "source_clients is 5000"),
        (["run", MOONS, "--set", "run.preset=nonsense"], "unknown preset 'nonsense'"),
        (["run", MOONS, "--out", "bad.toml"], "bad.toml is a file; name a folder for the run"),
        (["run", MOONS, "--out", "bad.toml/x"], "the folder bad.toml/x cannot be used"),
        (["run", MOONS, "--out", "/proc/nobody/x"], "the folder /proc/nobody/x cannot be used"),
        (["run", MOONS, "--out", "folder", "--overwrite"], "holds no run of fedmm, so it is not overwritten"),
        (["demo", "--data", "digit"], "unknown demo 'digit'; did you mean 'digits'?"),
        (["demo", "--seeds", "0"], "--seeds must be at least 1"),
        (["demo", "--workers", "-1"], "--workers must be at least 0"),
        (["demo", "--out", "folder"], "holds no run of fedmm, so it is not overwritten"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(
    command: Command, tmp_path: Path, arguments: list[str | Path], words: str
) -> None:
    (tmp_path / "bad.toml").write_text("[run\n")
    (tmp_path / "empty.toml").write_text("")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("precious")
    before = sorted(tmp_path.rglob("*"))
    ended = command(*arguments)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert words in ended.err
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments", [["run"], ["nonsense"], ["run", "a.toml", "--nonsense"], ["demo", "--seeds", "x"]]
)
def test_a_mistake_in_the_arguments_themselves_ends_with_2_as_well(command: Command, arguments: list[str]) -> None:
    ended = command(*arguments)
    assert (ended.code, ended.out) == (2, "")
    assert "Error" in ended.err


def test_a_run_that_diverges_ends_with_2_and_says_where_it_is(command: Command) -> None:
    fast = ["--set", "algorithm.lr_min=1e3", "--set", "run.rounds=50"]
    ended = command("run", MOONS, *SMALL, *fast, "--out", "x")
    assert ended.code == 2
    assert ended.err.startswith("error: client 'source-1' produced non-finite parameters in round ")
    assert ended.err.endswith(" is in x\n")
    assert read_run(Path("x")).status == "diverged"


# The whole program ----------------------------------------------------------------------------------------------------


def fedmm_process(*arguments: str | Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [Path(sys.executable).with_name("fedmm"), *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.processes
def test_the_installed_program_ends_a_mistake_with_2_and_one_line(tmp_path: Path) -> None:
    with fedmm_process("run", "nowhere.toml", folder=tmp_path) as process:
        out, err = process.communicate()
    assert (process.returncode, out, err) == (2, "", "error: there is no file nowhere.toml\n")
    assert list(tmp_path.iterdir()) == []


@dataclass(frozen=True)
class Interrupted:
    """A run that was ended by Ctrl-C."""

    folder: Path
    ended: Ended


ENDLESS = ["run", str(MOONS), *SMALL, "--set", "run.rounds=1000000", "--out", "x"]


@pytest.fixture(scope="module", params=["here", pytest.param("the installed program", marks=pytest.mark.processes)])
def interrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Interrupted:
    folder = tmp_path_factory.mktemp("interrupted")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # else a child may be born deaf to it
    try:
        ended = interrupted_here(folder) if request.param == "here" else interrupted_program(folder)
    finally:
        signal.signal(signal.SIGINT, before)
    return Interrupted(folder / "x", ended)


def interrupted_here(folder: Path) -> Ended:
    out, err, code = io.StringIO(), io.StringIO(), 0
    presser = pressing(folder / "x")
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(folder)
        patch.setattr(sys, "argv", ["fedmm", *ENDLESS])
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            presser.join()
    return Ended(code, out.getvalue(), err.getvalue())


def interrupted_program(folder: Path) -> Ended:
    with fedmm_process(*ENDLESS, folder=folder) as process:
        try:
            wait_for_rounds(folder / "x")
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
    return Ended(process.returncode, out, err)


def pressing(folder: Path) -> threading.Thread:
    """Presses Ctrl-C in this process when some rounds of a run are on disk."""

    def press() -> None:
        wait_for_rounds(folder)
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    return presser


def test_ctrl_c_leaves_a_readable_folder(interrupted: Interrupted) -> None:
    run = read_run(interrupted.folder)
    assert {path.name for path in interrupted.folder.iterdir()} == FILES
    assert run.status == "interrupted"
    assert len(run.records) >= 3
    assert run.target_accuracy is not None


def test_ctrl_c_shows_no_traceback_and_says_where_the_run_is(interrupted: Interrupted) -> None:
    assert "Traceback" not in interrupted.ended.err
    assert "(interrupted, " in interrupted.ended.out
    assert "everything is in x" in interrupted.ended.out


def test_ctrl_c_ends_with_130(interrupted: Interrupted) -> None:
    assert interrupted.ended.code == 130


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_before_the_first_evaluation_is_no_different(command: Command, tmp_path: Path) -> None:
    presser = pressing(tmp_path / "x")
    seldom = ["--set", "run.rounds=1000000", "--set", "run.evaluate_every=1000000"]
    try:
        ended = command("run", MOONS, *SMALL, *seldom, "--out", "x")
    finally:
        presser.join()
    assert read_run(tmp_path / "x").status == "interrupted"
    assert "everything is in x" in ended.out


@pytest.mark.parametrize("moment", ["while the commands are imported", "before a command begins", "in a command"])
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_at_any_time_ends_with_one_line_and_130(
    command: Command, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def press(*_: object, **__: object) -> NoReturn:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    if moment == "while the commands are imported":
        monkeypatch.delitem(sys.modules, "fedmm.cli.app", raising=False)
        monkeypatch.setattr(sys, "meta_path", [types.SimpleNamespace(find_spec=press)])
    elif moment == "before a command begins":
        monkeypatch.setattr("fedmm.cli.app.app", press)
    else:
        monkeypatch.setattr("fedmm.cli.train.read_tables", press)
    assert command("run", MOONS) == Ended(130, "", "stopped\n")


@pytest.mark.processes
@pytest.mark.parametrize("wait", ["for a round", "for a moment"])
def test_ctrl_c_ends_a_demo_and_all_its_processes(tmp_path: Path, wait: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with fedmm_process("demo", "--data", "moons", "--workers", "2", "--out", "x", folder=tmp_path) as process:
        signal.signal(signal.SIGINT, before)
        try:
            if wait == "for a round":
                wait_for_rounds(tmp_path / "x" / "source-only-seed0")
            else:  # the workers are still busy with their imports
                wait_for((tmp_path / "x" / "summary.json").exists)
                time.sleep(0.5)
            os.killpg(process.pid, signal.SIGINT)  # a terminal sends it to all
            _, err = process.communicate(timeout=600)
        finally:
            process.kill()
    summary = json.loads((tmp_path / "x" / "summary.json").read_text())
    assert (process.returncode, err) == (130, "")
    assert summary["status"] == "interrupted"
    assert {each["status"] for each in summary["runs"]} <= {"completed", "interrupted"}
    assert len(summary["runs"]) < 4


# The demo -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.processes)])
def test_a_demo_leaves_a_comparison_with_its_picture_and_shows_a_table(
    command: Command, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    shrunken = copy.deepcopy(DEMOS["moons"])
    shrunken["tables"]["run"] = {"rounds": 2, "batch_size": 8}
    shrunken["tables"]["data"] |= {"rows": 40, "test_rows": 20}
    monkeypatch.setitem(DEMOS, "moons", shrunken)
    ended = command("demo", "--data", "moons", "--workers", workers)
    assert (ended.code, ended.err) == (0, "")
    folder = Path("runs/demo-moons")
    assert {path.name for path in folder.iterdir()} == {
        "summary.json", "plan.json", "comparison.png",
        "source-only-seed0", "fedavggda-seed0", "fedproxgda-seed0", "fedmm-seed0",
    }  # fmt: skip
    assert (folder / "comparison.png").read_bytes().startswith(b"\x89PNG")
    runs = json.loads((folder / "summary.json").read_text())["runs"]
    assert [(run["algorithm"], run["objective"]) for run in runs] == [
        ("fedavg_gda", "source_only"), ("fedavg_gda", "dann"), ("fedprox_gda", "dann"), ("fedmm", "dann")
    ]  # fmt: skip
    for run in runs:
        assert {"algorithm", "objective", "seed", "rounds", "target_accuracy", "seconds"} <= set(run)
        assert (run["seed"], run["rounds"], run["status"]) == (0, 2, "completed")
        assert run["label"] in ended.out
    assert "runs/demo-moons/comparison.png" in ended.out
    assert len(read_comparison(folder).runs) == 4
