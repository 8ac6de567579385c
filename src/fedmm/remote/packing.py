"""Invitations and updates as named arrays and plain values, for engines whose clients are in other processes.

A vector ``[size]`` travels as two arrays, one for each group of parameters: ``min.omega`` and ``max.psi``, in the order
of the layout. Those of the point z have these names alone, those of another vector begin with its name:
``control/min.omega``. Whatever else travels is one array: ``z.scales/whole``, ``statistics/NAME``. Sums for a client
that lost its state begin with ``totals/``. Few arrays, because engines take a request and more for each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.algorithm import State
from fedmm.core.layout import Layout
from fedmm.engines.messages import NEVER, Invitation, Update
from fedmm.remote.packed import About, Arrays, Malformed, Packed

_STATISTICS, _TOTALS, _WHOLE, _POINT = "statistics/", "totals/", "whole", "z"
_OMEGA, _PSI = "min.omega", "max.psi"


def vector_arrays(layout: Layout, vectors: State) -> Arrays:
    """Named vectors as arrays."""
    arrays: Arrays = {}
    for name, vector in vectors.items():
        before = "" if name == _POINT else f"{name}/"
        if vector.shape == (layout.size,):
            parts = {_OMEGA: vector[: layout.min_size], _PSI: vector[layout.min_size :]}
            arrays |= {before + part: _array(tensor) for part, tensor in parts.items() if len(tensor)}
        else:
            arrays[before + _WHOLE] = _array(vector)
    return arrays


def read_vectors(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> State:
    """The vectors that travelled as these arrays."""
    parts: dict[str, dict[str, NDArray[Any]]] = {}
    for key, array in arrays.items():
        name, _, rest = (_POINT, "", key) if key in (_OMEGA, _PSI, _WHOLE) else key.partition("/")
        parts.setdefault(name, {})[rest] = array
    return {
        name: _tensor(layout, own[_WHOLE]) if own.keys() == {_WHOLE} else _joined(layout, name, own)
        for name, own in parts.items()
    }


def pack_invitation(layout: Layout, invitation: Invitation) -> Packed:
    """An invitation as it travels."""
    arrays = vector_arrays(layout, invitation.travelling)
    arrays |= {_STATISTICS + name: _array(tensor) for name, tensor in invitation.statistics.items()}
    if invitation.totals is not None:
        arrays |= {_TOTALS + name: array for name, array in vector_arrays(layout, invitation.totals).items()}
    about: About = {
        "round": invitation.round,
        "session": invitation.session,
        "counted": invitation.counted,
        "restoring": invitation.totals is not None,
    }
    return Packed(arrays, about, {})


def read_invitation(layout: Layout, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, object]) -> Invitation:
    """The invitation that travelled so."""
    totals = {name.removeprefix(_TOTALS): array for name, array in arrays.items() if name.startswith(_TOTALS)}
    sent = {name: array for name, array in arrays.items() if not name.startswith((_TOTALS, _STATISTICS))}
    return Invitation(
        _whole_number(about, "round"),
        read_vectors(layout, sent),
        _whole_number(about, "session"),
        _whole_number(about, "counted"),
        _statistics(layout, arrays),
        read_vectors(layout, totals) if about.get("restoring") else None,
    )


def pack_update(layout: Layout, update: Update) -> Packed:
    """An update as it travels."""
    arrays = vector_arrays(layout, update.vectors)
    arrays |= {_STATISTICS + name: _array(tensor) for name, tensor in update.statistics.items()}
    about: About = {
        "client": update.client,
        "round": update.round,
        "session": update.session,
        "base": update.base,
        "lost": update.lost,
    }
    return Packed(arrays, about, update.metrics)


def read_update(layout: Layout, packed: Packed) -> Update:
    """The update that travelled so; what cannot be read is refused by a reason, whatever it is."""
    arrays, about, metrics = packed
    client = about.get("client")
    if not isinstance(client, str):
        raise Malformed("its answer does not say which client it is from")
    return Update(
        _whole_number(about, "round"),
        client,
        read_vectors(layout, {name: array for name, array in arrays.items() if not name.startswith(_STATISTICS)}),
        _statistics(layout, arrays),
        {name: float(value) for name, value in metrics.items()},
        _whole_number(about, "session"),
        _whole_number(about, "base"),
        about.get("lost") is True,
    )


def _joined(layout: Layout, name: str, parts: Mapping[str, NDArray[Any]]) -> Tensor:
    sizes = {_OMEGA: layout.min_size, _PSI: layout.size - layout.min_size}
    wanted = {part: size for part, size in sizes.items() if size}
    for part in sorted(parts.keys() ^ wanted.keys()):
        has = "lacks" if part in wanted else "has an unknown"
        raise Malformed(f"its {name!r} {has} part {part!r}")
    for part, size in wanted.items():
        if parts[part].shape != (size,):
            raise Malformed(f"its {name!r} has a part {part!r} of shape {parts[part].shape}, not {(size,)}")
    if len({parts[part].dtype for part in wanted}) > 1:
        raise Malformed(f"its {name!r} has parts of two dtypes")
    return torch.cat([_tensor(layout, parts[part]) for part in wanted])


def _statistics(layout: Layout, arrays: Mapping[str, NDArray[Any]]) -> State:
    return {
        name.removeprefix(_STATISTICS): _tensor(layout, array)
        for name, array in arrays.items()
        if name.startswith(_STATISTICS)
    }


def _array(tensor: Tensor) -> NDArray[Any]:
    array: NDArray[Any] = tensor.detach().cpu().numpy()
    return array


def _tensor(layout: Layout, array: NDArray[Any]) -> Tensor:
    try:
        return torch.from_numpy(np.array(array)).to(layout.device)
    except TypeError:
        raise Malformed(f"it sent an array of {array.dtype}, which is not a number") from None


def _whole_number(about: Mapping[str, object], name: str) -> int:
    value = about.get(name, NEVER)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Malformed(f"its {name!r} is {value!r:.40}, not a whole number")
    return value
