"""Pictures from files, as bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedmm.core.errors import FedmmError


def read_picture(path: Path) -> npt.NDArray[np.uint8]:
    """A picture of any kind as red, green and blue: uint8 ``[height, width, 3]``."""
    from PIL import Image  # noqa: PLC0415 - slow to import, and only pictures need it

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as problem:
        raise FedmmError(f"{path} cannot be read as a picture: {problem}") from problem
