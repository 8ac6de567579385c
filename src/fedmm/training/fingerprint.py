"""What decides an adaptation's numbers, as plain values: what is kept beside its checkpoints, to know it again by."""

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
"""Whose multiples modulo 1 weigh rows and columns: unlike each other, and the same everywhere."""
_TOLERANCE = 1e-4
"""Of the mean absolute input, what rounding on another machine may change a weighted mean by."""
_SHOWN = 6
_MAY_DIFFER = options_that_affect("choice", "place", "name")
"""Options of ``[run]`` in which a resumed run may differ from the one that was begun."""

_SINCE = {"max_fpr": 1.0, "scaled": False}
"""Options of objectives that are younger than the first checkpoints, which were written with these values."""

Table = dict[str, Any]


def fingerprint(adaptation: Adaptation) -> dict[str, Table]:
    """Everything that decides an adaptation's numbers but the version and the threads of torch.

    Of large things (weights, rows) only checksums are kept: of a client's
    rows in memory those of at most 256, of rows in a Dataset none, as it may draw them anew each time.
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
    """What each client holds, by its name: how many rows of which kind, and a checksum of some.

    Where updates carry noise there is no checksum: whoever knows all rows of a client but one could try out that one.
    """
    checksum = not adaptation.terms.transmission.private
    return {
        held.name: f"weight {held.alpha:.6g}, source {_rows(held.source, checksum)}, "
        f"target {_rows(held.target, checksum)}"
        for held in adaptation.client_data
    }


TRAINED_AND_CHOSEN_BY = ("source", "target", "aside")
"""The parts of a pair that two runs must share to be compared without labels of the target."""
SOURCE_PARTS = ("source", "test", "aside")
"""The parts into which labelled source rows are dealt."""


def fingerprint_pair(pair: DomainPair) -> dict[str, Table]:
    """What is trained on, tested and chosen by, by part: how many rows, all their classes, and sums of some inputs.

    Inputs are often computed, a little differently on another machine: so sums tell them that are weighted by row and
    column, and :func:`same_data` compares them with a tolerance. Labels of the target are not looked at.
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
    """Whether two fingerprints are of the same rows in these parts, as far as they tell."""
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
    """The mean of some rows' inputs, weighted by row and column, and that of their absolute values."""
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
    """Hyperparameters as JSON can hold them, the same in every process."""
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
    """What two configurations differ in, but for names and how often checkpoints are written."""
    found = []
    for section in {**before, **now}:
        was, is_ = before.get(section, {}), now.get(section, {})
        for key in {**was, **is_}:
            if was.get(key) != is_.get(key) and not (section == "run" and key in _MAY_DIFFER):
                found.append(f"{section}.{key} was {was.get(key)!r}, now {is_.get(key)!r}")
    return found


def refuse_others(found: Sequence[str], what: str) -> None:
    """Refuse to go on with what was started with another configuration."""
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
    """Which of so many rows are looked at, int64."""
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
