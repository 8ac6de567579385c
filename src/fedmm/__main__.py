"""``python -m fedmm`` is the command ``fedmm``."""

from __future__ import annotations

from fedmm.cli import main

if __name__ == "__main__":
    main()
