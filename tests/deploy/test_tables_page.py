"""The section "Tables" of docs/deploy.md, as it stands: from `fedmm init` at one hospital to a model that predicts."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cli.commands import Command, runner
from deploy.grids import SitesGrid
from fabricated import HOSPITALS, like_the_hospitals

from fedmm.config.toml import read_toml, write_toml
from fedmm.deploy.layout import RunRequest
from fedmm.deploy.server import serve
from fedmm.sites.experiments import experiment_text, read_experiment

pytest.importorskip("pandas", reason="tables need fedmm[tables]")

PAGE = (Path(__file__).parents[2] / "docs" / "deploy.md").read_text(encoding="utf-8")
SECTION = PAGE[PAGE.index("\n## Tables\n") : PAGE.index("\n## What leaves a site\n")]
COMMANDS = [
    shlex.split(line.replace("\\\n", " "))[1:]
    for line in re.findall(r"^\$ ((?:[^\n]*\\\n)*[^\n]*)$", SECTION, re.MULTILINE)
]
SAID = re.findall(r"^```console\n\$ fedmm init.*?\n([^$ ].*?)```$", SECTION, re.MULTILINE | re.DOTALL)[0]
FOR_ALL, FOR_ONE = re.findall(r"^```text\n(classes = .*?)```$", SECTION, re.MULTILINE | re.DOTALL)
NAMES = ("cleveland", "hungarian", "switzerland", "va")


@pytest.fixture(params=["like UCI's", "UCI's"])
def hospitals(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """A folder with four tables, real or not, of which the last has no diagnosis; whether they are real."""
    monkeypatch.chdir(tmp_path)
    real = bool(request.param == "UCI's")
    folder = Path(os.environ.get("FEDMM_DATA", "")) / "heart"
    if real and not (os.environ.get("FEDMM_DATA") and (folder / "processed.va.data").exists()):
        pytest.skip("needs the four hospitals of UCI heart disease in FEDMM_DATA/heart")
    if not real:
        like_the_hospitals(tmp_path)
    for name in HOSPITALS if real else ():
        (tmp_path / f"processed.{name}.data").write_text((folder / f"processed.{name}.data").read_text())
    (tmp_path / "labelled.data").write_text((tmp_path / "processed.va.data").read_text())
    bare = "".join(line.rpartition(",")[0] + "\n" for line in Path("labelled.data").read_text().splitlines())
    (tmp_path / "processed.va.data").write_text(bare)
    return real


def edited() -> None:
    """What the page says to change by hand."""
    experiment, site = Path("heart.toml"), Path("cleveland.toml")
    experiment.write_text(re.sub(r"^classes = .*\n", lambda _: FOR_ALL, experiment.read_text(), count=1, flags=re.M))
    site.write_text(re.sub(r"^label = .*\n", lambda line: line[0] + FOR_ONE, site.read_text(), count=1, flags=re.M))
    for name in NAMES[1:]:
        text = site.read_text().replace("cleveland", name)
        Path(f"{name}.toml").write_text(text.replace('"source"', '"target"') if name == "va" else text)


def test_the_section_in_one_process(
    hospitals: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Command = runner(monkeypatch, capsys)
    begin, up, run, down, evaluate = COMMANDS
    ended = command(*begin)
    assert ended.code == 0, ended.err
    if hospitals:
        assert ended.out == SAID
    edited()
    assert [word for word in up if word.endswith(".toml")] == ["heart.toml", *(f"{name}.toml" for name in NAMES)]
    each = read_experiment(Path(run[2]), ["run.rounds=2", "run.batch_size=8"])
    in_memory = []
    for name in NAMES:
        tables = read_toml(Path(f"{name}.toml"))
        tables["superlink"] = {"address": "127.0.0.1:1", "insecure": True}
        in_memory.append(Path(f"memory/{name}.toml").absolute())
        in_memory[-1].parent.mkdir(exist_ok=True)
        in_memory[-1].write_text(write_toml(tables))
    text = experiment_text(each)
    serve(SitesGrid(in_memory), RunRequest(Path("federation"), run[-1], text))
    checked(hospitals)
    assert down == ["deploy", "down"]
    shown = command(*[word.replace("processed.va", "labelled") for word in evaluate])
    assert shown.code == 0, shown.err
    assert f"{200 if hospitals else HOSPITALS['va']} labelled rows" in shown.out
    assert command("predict", "federation/runs/heart", "processed.va.data", "--out", "predicted.csv").code == 0
    assert len(Path("predicted.csv").read_text().splitlines()) == 1 + len(Path("processed.va.data").read_text().split())


def checked(real: bool) -> None:
    """What the server of the finished run says and keeps."""
    folder = Path("federation/runs/heart")
    log = (folder / "server.log").read_text()
    shown = re.findall(r"^tables: .*$", SECTION, re.MULTILINE)
    for line in shown if real else ():
        assert line in log
    assert "completed after round 2" in log
    assert json.loads((folder / "input.json").read_text())["class_names"] == ["healthy", "sick"]


@pytest.mark.processes
def test_the_section_with_processes(hospitals: bool) -> None:
    begin, up, run, down, evaluate = COMMANDS
    fedmm(*begin)
    edited()
    try:
        fedmm(*up)
        fedmm(*run, "--set", "run.rounds=2", "--patience", "400")
    finally:
        fedmm(*down)
    checked(hospitals)
    fedmm(*[word.replace("processed.va", "labelled") for word in evaluate])


def fedmm(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "fedmm", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
