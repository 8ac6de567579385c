"""Docstrings as they are written here, plain prose with reStructuredText tables, turned into Markdown for the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":[a-z]+:`~?([^`]+)`")
_RULE = re.compile(r"=+(?: +=+)+")
_ENTRY = re.compile(r"[a-z*][a-z0-9_, ]*: ")


class Prose(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """A docstring in Markdown."""
    text = _ROLE.sub(r"`\1`", docstring).replace("``", "`")
    return "\n\n".join(_paragraph(paragraph) for paragraph in text.split("\n\n"))


def _paragraph(paragraph: str) -> str:
    lines = paragraph.splitlines()
    if lines and _RULE.fullmatch(lines[0]):
        return _table(lines)
    if " <- " in paragraph and not paragraph.startswith(" "):
        return "\n".join(["```text", *lines, "```"])
    if lines and _ENTRY.match(lines[0]):
        return "\n".join(_entry(line) for line in lines)
    return re.sub(r"::$", ":", paragraph)


def _entry(line: str) -> str:
    """A line of a list of names and their meanings; an indented one continues the line before."""
    if line.startswith(" "):
        return f"    {line.strip()}"
    name, _, meaning = line.partition(": ")
    return f"- **{name}**: {meaning}" if meaning else f"- {line}"


def _table(lines: list[str]) -> str:
    """A reStructuredText simple table in Markdown."""
    starts = [match.start() for match in re.finditer(r"=+", lines[0])]
    head, *rows = [_cells(line, starts) for line in lines if not _RULE.fullmatch(line)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(starts), *rows])


def _cells(line: str, starts: list[int]) -> list[str]:
    """The cells of a line; where one is wider than its column, they are told apart by the spaces between them."""
    if any(line[start - 1 : start].strip() for start in starts[1:]):
        return re.split(r" {2,}", line.strip(), maxsplit=len(starts) - 1)
    return [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
