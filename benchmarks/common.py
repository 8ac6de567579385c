"""Helpers that the benchmarks share."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def processor() -> str:
    """Return the processor's name, or its architecture if the system does not report a name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def typed_command() -> str:
    """Return the command as typed, without ``--out`` and its value."""
    words = list(sys.argv)
    if "--out" in words:
        place = words.index("--out")
        del words[place : place + 2]
    return " ".join(["python", *words])


def measured_on(command: str, load: float) -> dict[str, Any]:
    """Return where and when times were measured. load: the machine's load average when measuring started."""
    return {
        "command": command,
        "date": datetime.now(UTC).date().isoformat(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "load_average_at_start": load,
        "torch": torch.__version__,
        **({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}),
    }


def run_or_table(description: str | None, results: Path) -> argparse.ArgumentParser:
    """Return the parser of a program that measures what is missing from its results, or only prints their table."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=("run", "table"), default="run")
    parser.add_argument("--out", type=Path, default=results)
    return parser


def seeds_and_rounds(results: Path) -> argparse.ArgumentParser:
    """Return a parser with ``--seeds``, ``--rounds`` and ``--out``."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--out", type=Path, default=results)
    return parser
