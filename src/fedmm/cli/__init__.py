"""The command line. What the user gets wrong is answered by one sentence and exit code 2."""

from __future__ import annotations

import sys

from fedmm.cli.app import app
from fedmm.core.errors import FedmmError

__all__ = ["app", "main"]


def main() -> None:
    """Run the command line."""
    try:
        app()
    except FedmmError as problem:
        sys.stderr.write(f"error: {problem}\n")
        sys.exit(2)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
