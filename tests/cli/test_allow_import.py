"""A file that names code: nothing of it runs before the user has allowed it."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli.commands import Command

from fedmm.config.schema import experiment
from fedmm.config.toml import read_toml, write_toml
from fedmm.runs.run import run_experiment

TABLES: dict[str, dict[str, Any]] = {
    "data": {"name": "moons", "rows": 40, "test_rows": 30},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "run": {"rounds": 1, "batch_size": 8, "label": "small"},
}
NETS = """
from pathlib import Path

from torch import nn

Path({marker!r}).touch()


def tower(width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(2, width), nn.ReLU())
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished") / "run"
    run_experiment(experiment(TABLES), folder, progress=False)
    return folder


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when ``gate_own`` of the current folder is imported, or the payload's command runs."""
    marker = tmp_path / "it-ran"
    (tmp_path / "gate_own.py").write_text(NETS.format(marker=str(marker)))
    (tmp_path / "timm.py").write_text(NETS.format(marker=str(marker)))
    np.savez(tmp_path / "new.npz", x=np.random.default_rng(0).normal(size=(5, 2)))
    monkeypatch.delitem(sys.modules, "gate_own", raising=False)
    return marker


PAYLOADS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "a command": lambda marker: {"backbone": "os:system", "options": {"command": f"touch {marker}"}},
    "a module": lambda marker: {"backbone": "gate_own:tower"},
    "a checkpoint": lambda marker: {"backbone": "timm:resnet18", "options": {"checkpoint_path": str(marker)}},
}
COMMANDS = {
    "run": ["run", "evil.toml"],
    "sweep": ["sweep", "sweep.toml"],
    "run of a sweep": ["run", "sweep.toml"],
    "check": ["check", "evil.toml"],
    "check as JSON": ["check", "evil.toml", "--json"],
    "privacy": ["privacy", "evil.toml"],
    "predict": ["predict", "received", "new.npz"],
    "evaluate": ["evaluate", "received", "test"],
    "export": ["export", "received"],
    "resume": ["run", "received/experiment.toml", "--resume", "--out", "received"],
}


def receive(finished: Path, folder: Path, model: dict[str, Any]) -> None:
    """Leave a run's folder and experiments, as somebody could have sent them, in which the model is another."""
    shutil.copytree(finished, folder / "received")
    tables = read_toml(finished / "experiment.toml")
    tables["model"] = {"name": "backbone", "bottleneck": 0, **model}
    text = write_toml(tables)
    (folder / "received" / "experiment.toml").write_text(text)
    (folder / "evil.toml").write_text(text)
    (folder / "sweep.toml").write_text(text + '\n[sweep]\n"run.seed" = [0, 1]\n')


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_command_runs_what_a_file_names(
    command: Command, finished: Path, tmp_path: Path, marker: Path, payload: str, words: list[str]
) -> None:
    receive(finished, tmp_path, PAYLOADS[payload](marker))
    ended = command(*words)
    assert not marker.exists()
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert ("is not allowed; if you trust it" in ended.err) == (payload != "a checkpoint")


def test_a_report_shows_the_name_and_imports_nothing(
    command: Command, finished: Path, tmp_path: Path, marker: Path
) -> None:
    receive(finished, tmp_path, PAYLOADS["a module"](marker))
    assert command("report", "received", "--out", "report.html").code == 0
    assert not marker.exists()


def test_a_file_cannot_allow_what_it_names(command: Command, finished: Path, tmp_path: Path, marker: Path) -> None:
    receive(finished, tmp_path, PAYLOADS["a module"](marker))
    text = (tmp_path / "evil.toml").read_text()
    (tmp_path / "evil.toml").write_text(f'allow_import = ["gate_own"]\n{text}')
    (tmp_path / "config.toml").write_text('allow_import = ["gate_own"]\n')
    assert command("run", "evil.toml").code == 2
    (tmp_path / "evil.toml").write_text(text + '\n[fedmm]\nallow_import = ["gate_own"]\n')
    assert command("check", "evil.toml").code == 2
    assert not marker.exists()


def test_what_the_user_allows_is_run_and_opened_again(
    command: Command, tmp_path: Path, marker: Path, finished: Path
) -> None:
    receive(finished, tmp_path, PAYLOADS["a module"](marker))
    allowed = ["--allow-import", "os.path", "--allow-import", "gate_own:tower"]
    assert command("run", "evil.toml", "--out", "own", *allowed).code == 0
    assert marker.exists()
    assert command("predict", "own", "new.npz", *allowed).code == 0


@pytest.mark.parametrize("words", [["run", "ray.toml"], ["sweep", "ray_sweep.toml"], ["run", "ray_sweep.toml"]])
def test_a_ray_cluster_is_the_users_choice(command: Command, tmp_path: Path, words: list[str]) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.setblocking(False)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        text = write_toml(TABLES | {"run": TABLES["run"] | {"engine": "ray"}})
        (tmp_path / "ray.toml").write_text(text.replace("[run]", f'[run]\nray_address = "{address}"'))
        (tmp_path / "ray_sweep.toml").write_text(f'{text}\n[sweep]\n"run.ray_address" = ["{address}"]\n')
        ended = command(*words)
        assert ended.code == 2
        assert f"if you trust it, give --ray-address {address}" in ended.err
        with pytest.raises(BlockingIOError):  # nobody called
            server.accept()


def test_processes_that_a_command_starts_do_not_import_from_the_current_folder(command: Command) -> None:
    assert command("--version").code == 0
    assert os.environ["PYTHONSAFEPATH"] == "1"


def test_a_name_that_cannot_be_allowed_is_refused(command: Command, finished: Path) -> None:
    ended = command("predict", finished, "new.npz", "--allow-import", "a-b")
    assert ended.code == 2
    assert "takes a module such as mypackage.models" in ended.err
