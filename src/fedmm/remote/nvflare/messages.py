"""Messages as NVFlare's data exchange objects, whose filters see arrays by name and which it serialises."""

from __future__ import annotations

import numpy as np
from nvflare.apis.dxo import DXO, DataKind, from_shareable
from nvflare.apis.shareable import Shareable

from fedmm.remote.packed import Malformed, Packed

_ABOUT, _METRICS = "about", "metrics"


def to_shareable(packed: Packed) -> Shareable:
    """A message as it travels."""
    return DXO(DataKind.WEIGHTS, dict(packed.arrays), {_ABOUT: packed.about, _METRICS: packed.metrics}).to_shareable()


def to_packed(shareable: Shareable) -> Packed:
    """The message that travelled so."""
    try:
        found = from_shareable(shareable)
        about, metrics = found.get_meta_prop(_ABOUT), found.get_meta_prop(_METRICS)
    except Exception as problem:  # whatever arrived, it is its sender's and told as such
        raise Malformed(f"it sent no data exchange object: {problem}") from problem
    if not isinstance(about, dict) or not isinstance(metrics, dict):
        raise Malformed("it does not say what its message is about")
    for name, array in found.data.items():
        if not isinstance(array, np.ndarray):
            raise Malformed(f"its {name!r} is no array")
    return Packed(dict(found.data), about, metrics)
