"""A site's resident worker: ``python -m fedmm.deploy.resident SITE.toml``, beside the SuperNode."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from fedmm.deploy.relay import listen
from fedmm.deploy.site_config import read_site


def main(file: str) -> None:
    """Keep torch, the site's rows and its states in memory, and answer until the process is ended."""
    from fedmm.deploy.site_work import SiteWork  # noqa: PLC0415 - torch, which the module's readers need not have

    config = read_site(Path(file))

    def say(line: str) -> None:
        sys.stderr.write(f"fedmm worker {config.site.name}: {line}\n")
        sys.stderr.flush()

    parent = os.getppid()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    listen(config.state, SiteWork(config, say), lambda: say("ready"))


def _end_with(parent: int) -> None:
    """A worker whose supervisor is gone ends too."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
