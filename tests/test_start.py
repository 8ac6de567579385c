"""The ten-minute start shows what its first commands print."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from fedmm.cli import main

PAGE = (Path(__file__).parents[1] / "docs" / "start.md").read_text(encoding="utf-8")


def shown(command: str) -> list[str]:
    """The lines that the page shows below a command, as patterns; three dots, and seconds, stand for anything."""
    _, _, after = PAGE.partition(f"$ {command}\n")
    lines = re.split(r"^(?:```|\$ )", after, maxsplit=1, flags=re.MULTILINE)[0].splitlines()
    lines = [re.sub(r"\(\d+\.\d s\)", "...", line) for line in lines if line != "..."]
    return [re.escape(line).replace(re.escape("..."), ".*") for line in lines]


@pytest.mark.parametrize(
    ("made_by", "commands"),
    [
        ("patients.csv", ["fedmm init patients.csv --label sick --out patients.toml", "fedmm check patients.toml"]),
        ("scanner/", ["fedmm init scanner --target phone --out digits.toml"]),
    ],
)
def test_the_first_commands_say_what_the_page_shows(
    made_by: str,
    commands: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    exec(next(block for block in blocks if made_by in block), {"__name__": "__main__"})
    for command in commands:
        monkeypatch.setattr(sys, "argv", command.split())
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code
        printed = capsys.readouterr().out.splitlines()
        expected = shown(command)
        assert len(expected) >= 2
        for pattern in expected:
            assert any(re.fullmatch(pattern, line.rstrip()) for line in printed), pattern
