"""Plain lines for the user."""

from __future__ import annotations

from rich.console import Console

_console = Console()


def say(line: str) -> None:
    """A line on standard output, whatever is in it."""
    _console.print(line, soft_wrap=True, highlight=False, markup=False)
