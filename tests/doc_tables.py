"""Read tables of Markdown pages, so that tests can check what pages say."""

from __future__ import annotations

from pathlib import Path


def rows_below(head: str, page: Path) -> list[list[str]]:
    """Return the cells of the page's table whose header line is ``head``, without backticks."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"{head}\n")
    assert found, f"{page.name} has no table {head}"
    rows = rest.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip().replace("`", "") for cell in row.strip("|").split("|")] for row in rows]
