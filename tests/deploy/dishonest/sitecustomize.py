"""A site with a dishonest node: in each of rounds 1 to 7 its answer is invalid in a different way.

Python imports this file first in every process that has its folder on PYTHONPATH.
"""

from __future__ import annotations

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from fedmm.remote.flower.envelope import to_records
from fedmm.remote.packed import Packed
from fedmm.sites import node

_honest = node.seal


def _spoiled(packed: Packed) -> RecordDict:
    if "trained" not in packed.about:  # introductions and evaluations are honest
        return _honest(packed)
    arrays, about, metrics = dict(packed.arrays), dict(packed.about), packed.metrics
    round_ = int(packed.about["round"]) + 1
    if round_ == 1:
        arrays["more"] = np.zeros(4_000_000)
    elif round_ == 2:
        records = to_records(packed)
        records["again"] = ConfigRecord({})
        return records
    elif round_ == 3:
        values = _honest(packed)["fedmm"]
        head = bytes(values["head"]).replace(b"[4290]", b"[9999]")
        return RecordDict({"fedmm": ConfigRecord({**values, "head": head})})
    elif round_ == 4:
        arrays["min.omega"] = np.zeros(3, np.float32)
    elif round_ == 5:
        about["client"] = "source-1"
    elif round_ == 6:
        about["round"] = round_ - 2
    elif round_ == 7:
        arrays["min.omega"] = np.full_like(arrays["min.omega"], np.nan)
    return _honest(Packed(arrays, about, metrics))


node.seal = _spoiled
