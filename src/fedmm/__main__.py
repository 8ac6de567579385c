"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first; a file torch.py in it would be imported instead of torch.
    here = os.getcwd()  # noqa: PTH109 - nothing is imported before
    if sys.path[0] == here != os.path.dirname(os.path.dirname(__file__)):  # noqa: PTH120
        del sys.path[0]

    from fedmm.cli import main

    main()
