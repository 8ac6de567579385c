"""Tables without a target, as people have them: sites without a name, hundreds of sites, and columns with gaps."""

from __future__ import annotations

import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
import torch
from cli.commands import Command
from problems import generator

pytest.importorskip("pandas", reason="tables need fedmm[tables]")


def table(folder: Path, *, rows: int = 120, sites: int = 3, gaps: int = 0, unnamed: int = 0) -> Path:
    """Rows of sites in turn, every fifth of class 1; the first sites have no amount, the first rows no site."""
    numbers = torch.randn(rows, generator=generator(3)).tolist()
    lines = ["bank,amount,hour,fraud"]
    for row, number in enumerate(numbers):
        bank, amount = "" if row < unnamed else f"b{row % sites}", "" if row % sites < gaps else number
        lines.append(f"{bank},{amount},{number**2},{int(row % 5 == 0)}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder / "t.csv"


def init(command: Command, file: Path, metric: str = "auc") -> tuple[int, str, Path]:
    toml = file.with_suffix(".toml")
    ended = command("init", file, "--label", "fraud", "--site", "bank", "--metric", metric, "--out", toml)
    return ended.code, " ".join((ended.out + ended.err).split()), toml


def test_rows_that_do_not_say_whose_they_are_are_refused_before_a_file_is_written(
    tmp_path: Path, command: Command
) -> None:
    code, said, toml = init(command, table(tmp_path, unnamed=7))
    assert code == 2
    assert "--site bank: 7 of 120 rows of" in said
    assert "do not say whose they are; every row needs a site" in said
    assert not toml.exists()


@pytest.mark.parametrize("metric", ["auc", "worst_site"])
def test_of_hundreds_of_sites_a_few_work_in_a_round(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    code, _, toml = init(command, table(tmp_path, rows=900, sites=300), metric)
    assert code == 0
    assert tomllib.loads(toml.read_text())["run"]["participation"] == 0.067
    assert "scaled" not in tomllib.loads(toml.read_text())["objective"]
    assert "of the 300 sites, about 20 work in a round" in toml.read_text()
    folder = tmp_path / "run"
    assert command("run", toml, "--set", "run.rounds=1", "--out", folder).code == 0
    by_site = command("evaluate", folder, "source-test", "--group", "site").out.splitlines()
    assert sum(bool(re.match(r"\W+b\d+\W", line)) for line in by_site) == 40
    assert any(" others " in line for line in by_site)
    monkeypatch.setattr(import_module("fedmm.preflight.check"), "_LONG_RUN", 0.0)
    all_of_them = command("check", toml, "--set", "run.participation=1.0")
    assert "a GPU, a smaller run.participation, a smaller network" in " ".join(all_of_them.out.split())
    toml.unlink()
    few = tomllib.loads(init(command, table(tmp_path), metric)[2].read_text())
    assert "participation" not in few["run"]
    assert few["objective"].get("scaled", False) == (metric == "auc")


def test_all_of_hundreds_of_sites_work_where_one_of_them_is_the_target(tmp_path: Path, command: Command) -> None:
    toml = tmp_path / "t.toml"
    given = ("--label", "fraud", "--site", "bank", "--target-site", "b7", "--out", toml)
    assert command("init", table(tmp_path, rows=900, sites=300), *given).code == 0
    assert "participation" not in toml.read_text()


def test_of_hundreds_of_sites_with_gaps_some_are_named(tmp_path: Path, command: Command) -> None:
    code, said, toml = init(command, table(tmp_path, rows=600, sites=300, gaps=200))
    assert code == 0
    assert said.count("never filled amount") == 20
    assert "180 more such gaps at the 300 sites are not listed" in said
    assert command("check", toml).out.count("never filled amount") == 20


def test_one_column_that_tells_much_is_told_as_one(tmp_path: Path, command: Command) -> None:
    file = table(tmp_path, rows=400)
    told = ["bank,amount,hour,fraud"]
    for row, line in enumerate(file.read_text().splitlines()[1:]):
        bank, _, hour, fraud = line.split(",")
        told.append(f"{bank},{int(fraud) if row % 11 else 1 - int(fraud)},{hour},{fraud}")
    file.write_text("\n".join(told) + "\n")
    _, _, toml = init(command, file)
    said = " ".join(command("check", toml).out.split())
    assert "alone predicts much of the class (classes weighted equally); is it known for new rows?" in said


def test_a_class_that_one_site_alone_has_is_a_note(tmp_path: Path, command: Command) -> None:
    file = table(tmp_path)
    file.write_text("".join(f"{line[:-1]}{int(line.startswith('b0'))}\n" for line in file.read_text().splitlines()[1:]))
    file.write_text("bank,amount,hour,fraud\n" + file.read_text())
    _, _, toml = init(command, file)
    assert "note: all rows of '1' are at b0: a model that recognises this client's rows" in " ".join(
        command("check", toml).out.split()
    )
