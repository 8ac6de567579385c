"""The sessions of the pages, typed as they stand, in a folder that has what they speak of; runs have two rounds."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fabricated import like_the_hospitals

from fedmm.cli import main

ROOT = Path(__file__).parents[1]
ELSEWHERE = ("data", "demo", "deploy", "list", "reproduce", "--version")
"""Commands with tests of their own: they need a network, other processes, or minutes."""


def commands(page: str) -> list[list[str]]:
    """What a page says to type, in order, but for what runs elsewhere or on another engine."""
    text = (ROOT / page).read_text(encoding="utf-8")
    lines = re.findall(r"^(?:\$ |    )fedmm ((?:[^\n]*\\\n)*[^\n]*)$", text, re.MULTILINE)
    typed = [shlex.split(line.replace("\\\n", " "), comments=True) for line in lines]
    return [words for words in typed if words[0] not in ELSEWHERE and not {"ray", "--ray-address"} & set(words)]


def blocks(page: str, having: str) -> str:
    """The page's Python block that has a text in it."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return next(block for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S) if having in block)


def shortened(folder: Path) -> None:
    """Two rounds for every experiment in a folder."""
    for path in folder.rglob("*.toml"):
        path.write_text(re.sub(r"^rounds = \d+", "rounds = 2", path.read_text("utf-8"), flags=re.M), encoding="utf-8")


def typed(words: list[str]) -> int:
    """Type a command; its exit code."""
    sys.argv = ["fedmm", *(re.sub(r"^run\.rounds=\d+$", "run.rounds=2", word) for word in words)]
    with pytest.raises(SystemExit) as ended:
        main()
    shortened(Path())
    return int(ended.value.code or 0)


def tables() -> None:
    exec(blocks("docs/start.md", "patients.csv"), {"__name__": "__main__"})
    shutil.copy("rome_checked.csv", "new_patients.csv")


def hospitals() -> None:
    tables()
    Path("heart").mkdir()
    like_the_hospitals(Path("heart"))


def proposed() -> None:
    tables()
    typed(["init", "patients.csv", "--label", "sick", "--out", "patients.toml"])


def pictures() -> None:
    exec(blocks("docs/start.md", "scanner/"), {"__name__": "__main__"})


def both() -> None:
    tables()
    pictures()


def scans() -> None:
    tables()
    for name, like in (("scans", "patients"), ("labelled", "rome_checked"), ("new", "rome_checked")):
        text = Path(f"{like}.csv").read_text(encoding="utf-8")
        Path(f"{name}.csv").write_text(text.replace("sick", "diagnosis", 1), encoding="utf-8")


def used_model() -> None:
    pictures()
    tables()
    typed(["run", "examples/digits.toml", "--out", "runs/digits"])
    np.savez("new.npz", x=np.zeros((5, 1, 8, 8), dtype=np.float32))


def several_runs() -> None:
    for name in ("demo", "one", "another"):
        typed(["run", "examples/digits.toml", "--out", f"runs/{name}"])
    grid_file()
    typed(["sweep", "grid.toml", "--out", "runs/sweep"])
    proposed()
    typed(["run", "patients.toml", "--out", "runs/patients"])


def grid_file() -> None:
    text = Path("examples/digits.toml").read_text(encoding="utf-8")
    Path("grid.toml").write_text(f'{text}\n[sweep]\n"run.seed" = [0, 1]\n', encoding="utf-8")


def noisy() -> None:
    page = (ROOT / "docs/privacy.md").read_text(encoding="utf-8")
    noise = next(block for block in re.findall(r"^```toml\n(.*?)^```$", page, re.M | re.S) if "delta" in block)
    Path("noise.toml").write_text(noise, encoding="utf-8")
    Path("FILE.toml").write_text('extends = "noise.toml"\n[data]\nname = "digits"\n', encoding="utf-8")


def transactions() -> None:
    random = np.random.default_rng(0)
    lines = [
        f"{bank},{random.normal() + 2 * (row < frauds):.3f},{random.normal():.3f},{'yes' if row < frauds else 'no'}"
        for bank, frauds in (("north", 8), ("south", 0), ("west", 12))
        for row in range(60)
    ]
    Path("transactions.csv").write_text("\n".join(["bank,amount,hour,fraud", *lines]) + "\n", encoding="utf-8")


SESSIONS: dict[str, Callable[[], None]] = {
    "README.md": scans,
    "docs/algorithms.md": lambda: None,
    "docs/compare.md": proposed,
    "docs/index.md": lambda: None,
    "docs/labelled_sites.md": transactions,
    "docs/objectives.md": lambda: None,
    "docs/own_data.md": hospitals,
    "docs/privacy.md": noisy,
    "docs/report.md": several_runs,
    "docs/resuming.md": grid_file,
    "docs/start.md": both,
    "docs/using_models.md": used_model,
}
SLOW = ("README.md", "docs/compare.md", "docs/report.md", "docs/resuming.md", "docs/start.md")
REFUSED = {"docs/using_models.md": [["init", "patients.csv"]]}
"""What a page shows to be refused."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.processes] if page in SLOW else []) for page in SESSIONS],
)
def test_what_a_page_says_to_type_works(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["fedmm"])
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    shortened(tmp_path)
    SESSIONS[page]()
    said = commands(page)
    assert said
    for words in said:
        if words not in REFUSED.get(page, []):
            assert typed(words) == 0, words
