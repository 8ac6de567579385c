"""Files that a command is given, or standard input where that is ``-``: read up to a bound."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require

STDIN = Path("-")


def read_input(file: Path, most: int) -> bytes:
    """What a file holds; over so many bytes are refused."""
    try:
        if file == STDIN:
            content = sys.stdin.buffer.read(most + 1)
        else:
            with file.open("rb") as opened:
                content = opened.read(most + 1)
    except FileNotFoundError:
        raise FedmmError(f"there is no file {file}") from None
    except OSError as problem:
        raise FedmmError(f"{file} cannot be read: {problem.strerror}") from problem
    require(len(content) <= most, f"{file} has over {most} bytes, too many for what it should be")
    return content


def read_input_tables(file: Path, most: int = 1 << 20) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(read_input(file, most).decode("utf-8"))
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, FedmmError):
            raise
        raise FedmmError(f"{file} is not valid TOML: {str(problem).splitlines()[0]}") from problem
