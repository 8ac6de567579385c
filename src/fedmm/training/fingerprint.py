"""Fingerprints of what decides an adaptation's numbers, as plain values, by which its checkpoints are recognised."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from fedmm.core.algorithm import steps_by_client
from fedmm.core.errors import FedmmError
from fedmm.core.options import options_that_affect
from fedmm.data.domains import DomainPair
from fedmm.data.rows import Rows, TensorRows
from fedmm.training.adaptation import Adaptation

_ROWS_LOOKED_AT = 256
_DIGITS = 16
_GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 are the weights of rows and columns: all different, and the same on every machine."""
_TOLERANCE = 1e-4
"""How much rounding on another machine may change a weighted mean, relative to the mean absolute input."""
_SHOWN = 6
_MAY_DIFFER = options_that_affect("choice", "place", "name")
"""Options of ``[run]`` that may change when a run is resumed."""

_SINCE = {"max_fpr": 1.0, "scaled": False}
"""Options of objectives that the first checkpoints lack, with the values that these were written with."""

Table = dict[str, Any]


def fingerprint(adaptation: Adaptation) -> dict[str, Table]:
    """Return everything that decides an adaptation's numbers, except the version and threads of torch.

    Weights and rows are kept as checksums: of at most 256 of a client's rows in memory, and of no rows in a Dataset,
    which may draw them anew each time.
    """
    function, problem, options = adaptation.function, adaptation.problem, adaptation.options
    steps = steps_by_client(adaptation.algorithm.steps, problem.listed)
    return {
        "run": {
            "rounds": adaptation.rounds,
            "dtype": str(function.layout.dtype).removeprefix("torch."),
            "device": function.layout.device.type,
            "seed": options.seed,
            "batch_size": options.batch_size,
            "evaluate_every": options.evaluate_every,
        },
        "algorithm": plain(adaptation.algorithm),
        "objective": {key: value for key, value in plain(adaptation.objective).items() if _SINCE.get(key) != value},
        "terms": plain(adaptation.terms),
        "guard": plain(adaptation.guard),
        "stopping": {**plain(adaptation.stopping), "name": "Stopping"},  # the name it had in the first checkpoints
        "view": plain(adaptation.view),
        "model": {
            "parameters": function.layout.size,
            "structure": _checksum(repr(function.module).encode()),
            "batch_norm": function.policy,
            "weights": _of_tensors(function.state(function.start, function.statistics)),
        },
        "clients": {name: f"{steps[name]} steps, {rows}" for name, rows in fingerprint_rows(adaptation).items()},
        "measures": {column: len(evaluator) for evaluator in adaptation.evaluators for column in evaluator.columns},
    }


def fingerprint_rows(adaptation: Adaptation) -> dict[str, str]:
    """Describe what each client holds, by its name: the number and kind of its rows, and a checksum of some.

    With noise in updates there is no checksum: whoever knows all rows of a client but one could test guesses of it.
    """
    checksum = not adaptation.terms.transmission.private
    return {
        held.name: f"weight {held.alpha:.6g}, source {_rows(held.source, checksum)}, "
        f"target {_rows(held.target, checksum)}"
        for held in adaptation.client_data
    }


TRAINED_AND_CHOSEN_BY = ("source", "target", "aside")
"""The parts of a pair that two runs must share to be compared without target labels."""
SOURCE_PARTS = ("source", "test", "aside")
"""The parts into which labelled source rows are dealt."""


def fingerprint_pair(pair: DomainPair) -> dict[str, Table]:
    """Describe a pair's parts: their number of rows, a checksum of all classes, and a weighted mean of some inputs.

    Inputs are often computed, slightly differently on another machine, so there is no checksum of them but a mean
    weighted by row and column, which :func:`same_data` compares with a tolerance. Target labels are not read.
    """
    parts = {"source": pair.source, "target": pair.target, "test": pair.source_test, "aside": pair.source_validation}
    return {
        part: {
            "rows": len(rows.x),
            "classes": "" if part == "target" else _of_tensors({"": rows.y}),
            "inputs": [*_weighted_sum(rows.x)],
        }
        for part, rows in parts.items()
        if rows is not None
    }


def same_data(one: Mapping[str, Any], other: Mapping[str, Any], parts: Sequence[str]) -> bool:
    """Return whether two fingerprints are of the same rows in these parts, as far as fingerprints can tell."""
    try:
        return all(_same_part(one.get(part), other.get(part)) for part in parts)
    except (AttributeError, LookupError, TypeError, ValueError):
        return False


def _same_part(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> bool:
    if one is None or other is None:
        return one is other
    (value, _), (expected, size) = one["inputs"], other["inputs"]
    near = math.isclose(value, expected, rel_tol=0.0, abs_tol=_TOLERANCE * size)
    return near and all(one[key] == other[key] for key in ("rows", "classes"))


def _weighted_sum(x: Tensor) -> tuple[float, float]:
    """Return the mean of some rows' inputs, weighted by row and column, and the mean of their absolute values."""
    chosen, size = _spread_out(len(x)).tolist(), x[0].numel() if len(x) else 0
    if not size:
        return 0.0, 0.0
    by_column = torch.frac(_GOLDEN * torch.arange(1, size + 1, dtype=torch.float64))
    total = absolute = 0.0
    for place, number in enumerate(chosen, start=1):
        row = x[number].cpu().flatten().double()
        total += math.fmod(_GOLDEN * place, 1.0) * float(row @ by_column)
        absolute += float(row.abs().mean())
    return total / (len(chosen) * size), absolute / len(chosen)


def plain(value: Any) -> Any:
    """Return hyperparameters as values for JSON, the same in every process."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, Tensor):
        return _of_tensors({"": value})
    named = value if isinstance(value, type) or (callable(value) and not is_dataclass(value)) else type(value)
    name = {"name": getattr(named, "__qualname__", type(value).__qualname__)}
    if is_dataclass(value) and not isinstance(value, type):
        return name | {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    own = {} if callable(value) else getattr(value, "__dict__", {})
    return name | {key: option for key, option in own.items() if isinstance(option, bool | int | float | str)}


def differences(before: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the differences of two configurations, except for options that may change when a run is resumed."""
    found = []
    for section in {**before, **now}:
        was, is_ = before.get(section, {}), now.get(section, {})
        for key in {**was, **is_}:
            if was.get(key) != is_.get(key) and not (section == "run" and key in _MAY_DIFFER):
                found.append(f"{section}.{key} was {was.get(key)!r}, now {is_.get(key)!r}")
    return found


def refuse_others(found: Sequence[str], what: str) -> None:
    """Refuse to resume what was started with another configuration; found: the differences."""
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise FedmmError(
            f"{what} was started with another configuration, so it cannot be resumed with this one: "
            f"{'; '.join(found[:_SHOWN])}{more}"
        )


def _rows(held: Rows | None, checksum: bool) -> str:
    if held is None:
        return "none"
    first = held.take(torch.zeros(1, dtype=torch.int64))
    words = f"{len(held)} rows {list(first.shape[1:])} {str(first.dtype).removeprefix('torch.')}"
    if not checksum or not isinstance(held, TensorRows):
        return words
    chosen = _spread_out(len(held))
    looked_at = {"x": held.take(chosen)} | ({"y": held.labels(chosen)} if held.labelled else {})
    return f"{words} {_of_tensors(looked_at)}"


def _spread_out(rows: int) -> Tensor:
    """Return the indices of up to 256 evenly spread rows, int64."""
    return torch.linspace(0, max(0, rows - 1), min(rows, _ROWS_LOOKED_AT), dtype=torch.float64).long()


def _of_tensors(tensors: Mapping[str, Tensor]) -> str:
    parts = []
    for name, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        parts += [name.encode(), flat.view(torch.uint8).numpy().data]
    return _checksum(*parts)


def _checksum(*parts: Any) -> str:
    value = hashlib.sha256()
    for part in parts:
        value.update(part)
    return value.hexdigest()[:_DIGITS]
