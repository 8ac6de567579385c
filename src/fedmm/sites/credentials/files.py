"""Files of credentials: their names, who may read them, and how to read and write them. Needs no torch."""

from __future__ import annotations

import ipaddress
import os
import re
import stat
import sys
from pathlib import Path
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import parse_toml

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "server.pem", "server.key"
STDIN = Path("-")
_LONGEST_HOST = 253
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9_-]{1,63}(?<!-))*")


def read_input(file: Path, most: int) -> bytes:
    """Read a file, or standard input for ``-``; raise FedmmError for more than ``most`` bytes."""
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
    """Read the tables of a TOML file, or of standard input for ``-``."""
    return parse_toml(read_input(file, most), file)


def read_credential(path: Path, what: str) -> bytes:
    """Read a file. what: its name in messages."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise FedmmError(f"{what} cannot be read: {path}: {problem.strerror}") from problem


def write_credential(path: Path, content: bytes, mode: int, *, overwrite: bool = False) -> None:
    """Write a file with this mode from the start; raise OSError if it exists or is a link, unless ``overwrite``."""
    number = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if overwrite else os.O_EXCL), mode)
    with os.fdopen(number, "wb") as file:
        file.write(content)


def require_private(path: Path, what: str) -> None:
    """Raise FedmmError if other accounts of this machine have access to a private key. what: its name in messages."""
    try:
        mode = path.stat().st_mode
    except OSError as problem:
        raise FedmmError(f"{what} cannot be read: {path}: {problem.strerror}") from problem
    others = os.name == "posix" and mode & 0o077
    require(
        not others,
        f"{what} may be read or changed by other accounts of this machine (mode {stat.S_IMODE(mode):o}), so it is not "
        f"secret: `chmod 600 {path}` fixes that; if somebody may have read it, make another one",
    )


def require_private_keys(certificates: Path, keys: Path) -> None:
    """Raise FedmmError if others may read or change a private key in a coordinator's folder."""
    paths = [certificates / name for name in (KEY, AUTHORITY_KEY)]
    paths += sorted(path.with_suffix("") for path in keys.glob("*.pub")) if keys.is_dir() else []
    for path in paths:
        if path.is_file():
            require_private(path, f"the private key {path.name}")


def is_host(text: str) -> bool:
    """Return whether a text is an IP address or a valid host name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return len(text) <= _LONGEST_HOST and _HOST.fullmatch(text) is not None
    return True
