"""``fedmm compare`` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli.commands import Command

from fedmm.runs import sweep as sweeping
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

FILE = """
[run]
rounds = 2
batch_size = 8
[data]
name = "moons"
rows = 60
test_rows = 30
[model]
name = "mlp"
hidden = [6]
adversary_hidden = [4]
[algorithm]
name = "fedmm"
local_steps = 2
"""
SMALL = ("--objectives", "mdd", "--seeds", "2", "--rounds", "1")


@pytest.fixture(autouse=True)
def _file(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
    Path("mine.toml").write_text(FILE, encoding="utf-8")


def test_it_leaves_tables_a_picture_and_a_verdict_and_goes_on_without_running_again(command: Command) -> None:
    first = command("compare", "mine.toml", *SMALL)
    folder = Path("runs/mine-compare")
    assert first.code == 0, first.err
    assert "8 runs in 2 programs" in first.out
    table = json.loads((folder / "compare.json").read_text())
    assert table["rounds"] == 1
    assert table["seeds"] == [0, 1]
    assert " ".join(table["verdict"]["sentence"].split()) in " ".join(first.out.split())
    for name in ("compare.md", "compare.csv", "compare.png"):
        assert (folder / name).stat().st_size > 0
    runs = {path: path.stat().st_mtime_ns for path in folder.glob("*/rounds.jsonl")}
    again = command("compare", "mine.toml", *SMALL, "--resume")
    assert again.code == 0
    assert {path: path.stat().st_mtime_ns for path in folder.glob("*/rounds.jsonl")} == runs
    other = command("compare", "mine.toml", *SMALL[:-1], "2", "--resume")
    assert other.code == 2
    assert "was started with another configuration" in other.err
    taken = command("compare", "mine.toml", *SMALL, "--out", folder)
    assert taken.code == 2
    assert "is not empty" in taken.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--seeds", "0"), "--seeds must be from 1 to 100, not 0"),
        (("--rounds", "0"), "run.rounds must be at least 1"),
        (("--objectives", "dann,can"), "unknown objective in --objectives 'can'"),
        (("--resume", "--overwrite"), "--resume and --overwrite exclude each other"),
        (("--set", "transmission.name=gaussian"), "adds noise to updates"),
        (("--set", "run.engine=ray"), "run.engine must be 'auto' or 'batched'"),
        (("--set", "sweep.run.seed=[0,1]"), "[sweep] table"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(command: Command, arguments: tuple[str, ...], sentence: str) -> None:
    ended = command("compare", "mine.toml", *arguments)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert sentence in ended.err
    assert not Path("runs").exists()


def test_a_table_without_target_rows_is_refused(command: Command) -> None:
    Path("x.csv").write_text("a,label\n" + "".join(f"{row},{row % 2}\n" for row in range(20)), encoding="utf-8")
    Path("mine.toml").write_text(
        '[data]\nname = "table"\nfile = "x.csv"\nlabel = "label"\n[model]\nname = "mlp"\n', encoding="utf-8"
    )
    ended = command("compare", "mine.toml")
    assert ended.code == 2
    assert "has no row of the target" in ended.err
