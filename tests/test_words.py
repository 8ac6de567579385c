"""Pages, help texts and messages use the field's words: no word or sentence that we have replaced is back."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from click import Command, Group

from fedmm.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/README.md"))]
PAGES.remove(ROOT / "CHANGELOG.md")

SENTENCES = (
    "no label of the target is known, so that its accuracy was not measured",
    "one run on a CPU, where the reference is as fast and bit-identical",
    "What target labels choose is called",
    "whose name is another takes none of the other's options",
    "it is one step behind, and pressed to chance",
    "lets what the site adds up and what the server adds up part ways",
)
"""Sentences that stopped a reader, as they read without marks of code."""

OLD = {
    r"begun": "started, resumed",
    r"choosers?": "best model",
    r"exhibits?": "data of a report",
    r"holdings?(?! (?:it|them))": "rows",
    r"lanes?": "CUDA streams",
    r"part_of_data": "subsample",
    r"patience(?! =)": "how long it waits; early stopping",
    r"probes?(?! rows)": "evaluators",
    r"site_sums": "sums of sites",
    r"suspicions?": "data checks",
    r"whole_file": "atomic write",
    r"(?:a|the|every|each|all|its|this|that|which|no|these) measures?": "metric",
    r"(?:on|over) the wire|wire format": "compression, messages",
}
"""Old words as words of prose, and what to write instead. Keys and file names (``probe_rows``) are code, not prose."""

SITES = {"deploy.md", "reliability.md", "threat_model.md"}
"""Pages on which a card would be what a site says of itself; elsewhere it is the card of a method."""


def prose(page: Path) -> str:
    """A page without blocks of code, inline code and addresses, in one line."""
    text = re.sub(r"^```.*?^```$", " ", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^ {4}\S.*$", " ", text, flags=re.MULTILINE)
    return plain(re.sub(r"\]\([^)]*\)", "]", text))


def plain(text: str) -> str:
    """Text without inline code, options and names of files, in one line."""
    text = re.sub(r"`[^`]*`", " ", text)
    return " ".join(re.sub(r"--[\w-]+|\b\w+(?:\.\w+)+", " ", text).split())


def helps(command: Command) -> Iterator[str]:
    """The help of a command, of its options, and of the commands below it."""
    yield command.help or ""
    yield from (getattr(option, "help", None) or "" for option in command.params)
    for below in command.commands.values() if isinstance(command, Group) else ():
        yield from helps(below)


def messages(path: Path) -> Iterator[str]:
    """The strings of a module that have several words, with dots for what is filled in; docstrings are none."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    inside |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside:
            yield node.value


HELP = [plain(text) for text in helps(typer.main.get_command(app))]
MESSAGES = [
    plain(text) for path in (ROOT / "src" / "fedmm").rglob("*.py") for text in messages(path) if text.count(" ") >= 3
]


def test_there_are_texts_to_look_at() -> None:
    assert len(PAGES) > 35
    assert len(HELP) > 100
    assert len(MESSAGES) > 1000


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_an_old_sentence(page: Path) -> None:
    text = " ".join(page.read_text(encoding="utf-8").replace("`", "").split())
    assert not [sentence for sentence in SENTENCES if sentence in text]


def test_no_help_text_or_message_has_an_old_sentence() -> None:
    for text in (*HELP, *MESSAGES):
        assert not [sentence for sentence in SENTENCES if sentence in text], text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_an_old_word(page: Path) -> None:
    text = prose(page)
    for word, better in {**OLD, **({r"cards?": "description"} if page.name in SITES else {})}.items():
        found = re.search(rf"\b.{{0,30}}\b(?:{word})\b.{{0,30}}", text, re.IGNORECASE)
        assert found is None, f"{found and found[0]!r}: write {better}"


@pytest.mark.parametrize("word", OLD)
def test_no_help_text_or_message_has_an_old_word(word: str) -> None:
    found = [text for text in (*HELP, *MESSAGES) if re.search(rf"\b(?:{word})\b", text, re.IGNORECASE)]
    assert not found, f"write {OLD[word]}"
