"""``fedmm leaderboard``."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli.commands import Command


def test_a_leaderboard_is_run_and_drawn_and_drawn_again(command: Command) -> None:
    arguments = (
        "leaderboard",
        "--scale",
        "smoke",
        "--problems",
        "quadratic",
        "--methods",
        "fedsgda, fedmm",
        "--seeds",
        "1",
    )
    ended = command(*arguments)
    assert (ended.code, ended.err) == (0, "")
    folder = Path("runs/leaderboard-smoke")
    names = {"results.jsonl", "leaderboard.md", "leaderboard.png", "leaderboard.svg"}
    assert {path.name for path in folder.iterdir()} == names
    page = (folder / "leaderboard.md").read_text(encoding="utf-8")
    assert "fedmm leaderboard --scale smoke --problems quadratic --methods 'fedsgda, fedmm' --seeds 1" in page
    before = (folder / "results.jsonl").read_bytes()
    (folder / "leaderboard.md").unlink()
    assert command("leaderboard", "--scale", "smoke", "--draw").code == 0
    assert (folder / "leaderboard.md").read_text(encoding="utf-8") == page
    assert (folder / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--scale", "huge"), "unknown --scale 'huge' (known: full, smoke)"),
        (("--problems", "quadratik"), "unknown problem 'quadratik'; did you mean 'quadratic'?"),
        (("--methods", "fedm"), "unknown algorithm 'fedm'"),
        (("--seeds", "-1"), "--seeds must be at least 0, not -1"),
        (("--seeds", "1000"), "--seeds must be below 1000, not 1000"),
        (("--kappa", "0"), "kappa must be between 1 and 1e+06, not 0.0"),
        (("--kappa", "nan"), "kappa must be finite, not nan"),
        (("--heterogeneity", "-1"), "heterogeneity must be 0 or more, not -1.0"),
        (("--device", "abacus"), "--device"),
        (("--out", "/dev/null/x"), "results cannot be written to /dev/null/x/results.jsonl"),
        (("--draw",), "results.jsonl is missing; `fedmm leaderboard` writes it as its runs end"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_meant_is_one_sentence(command: Command, options: tuple[str, ...], sentence: str) -> None:
    ended = command("leaderboard", *options)
    assert ended.code == 2
    assert ended.err.startswith("error: ")
    assert ended.err.count("\n") == 1
    assert sentence in ended.err
    assert not list(Path().iterdir())
