"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the current folder first; a file torch.py in it would be imported instead of torch.
    if not sys.flags.safe_path and Path(sys.path[0]) == Path.cwd() != Path(__file__).parents[1]:
        del sys.path[0]

    from fedmm.cli import main

    main()
