"""A site whose Flower app is not ours: in each round it answers with something else that is no update.

Python reads this file before anything else in every process that has its folder on PYTHONPATH.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from fedmm.engines.flower import records
from fedmm.engines.packed import Packed

_honest = records.to_records


def _spoiled(packed: Packed) -> RecordDict:
    if "trained" not in packed.about:  # it introduces itself, and measures, as others do
        return _honest(packed)
    content, round_ = _honest(packed), int(packed.about["round"]) + 1
    arrays, config = content["arrays"], content["config"]
    if round_ == 1:
        arrays["more"] = Array(np.zeros(4_000_000))
    elif round_ == 2:
        content["again"] = ArrayRecord({})
    elif round_ == 3:
        arrays["max.psi"] = Array("float32", (3,), "numpy.ndarray", b"no array at all")
    elif round_ == 4:
        arrays["min.omega"] = Array(np.zeros(3, np.float32))
    elif round_ == 5:
        config["client"] = "source-1"
    elif round_ == 6:
        config["round"] = round_ - 2
    elif round_ == 7:
        arrays["min.omega"] = Array(np.full_like(packed.arrays["min.omega"], np.nan))
    return content


records.to_records = _spoiled
