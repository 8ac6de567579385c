"""Rows on which the server's model is measured while it trains: test rows, source rows to choose by, target inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedmm.core.errors import FedmmError, require
from fedmm.core.measures import Accuracy, Entropy, Information, Measure, Risk
from fedmm.core.seeding import key, permutation
from fedmm.data.holdings import Rows, TensorRows, as_rows
from fedmm.experiment.predictor import RowsShown
from fedmm.models.flat import rows_at_once


@dataclass(frozen=True, eq=False)
class Probe:
    """Rows, how they are shown, and what is measured on them, by the names of the history's columns.

    y: int64 ``[rows]``; any class where no measure looks at labels.
    """

    rows: TensorRows
    y: Tensor
    show: RowsShown
    measures: Mapping[str, Measure]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, part: slice) -> Tensor:
        """Some of the rows as the network sees them."""
        return self.show(self.rows.take(torch.arange(len(self), device=self.y.device)[part]))


def measured(probes: Sequence[Probe], logits: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    """What one probe of each replica measures, ``[replicas]`` by column, on the device.

    probes: alike but for their rows. logits: of ``[replicas, rows, ...]``, each replica's by its own network.
    """
    first, sums = probes[0], dict[str, Tensor]()
    at_once = rows_at_once(first.show.shapes[-1])
    for start in range(0, len(first), at_once):
        part = slice(start, start + at_once)
        outputs = logits(torch.stack([probe.take(part) for probe in probes]))
        y = torch.stack([probe.y[part] for probe in probes])
        for column, measure in first.measures.items():
            found = measure.sums(outputs, y)
            sums[column] = sums[column] + found if column in sums else found
    return {column: measure.value(sums[column], len(first)) for column, measure in first.measures.items()}


def accuracy_probes(validation: Any, classes: int, show: RowsShown, device: torch.device) -> list[Probe]:
    """``<name>_accuracy`` on each set of labelled rows: (x, y) of the target, or a dict of such pairs by name."""
    if validation is None:
        return []
    named = validation if isinstance(validation, Mapping) else {"target": validation}
    for name in named:
        if not isinstance(name, str):
            raise FedmmError(f"validation sets are named by words such as 'target', not {name!r}")
    return [
        _labelled(data, f"validation {name!r}", classes, show, device, {f"{name}_accuracy": Accuracy()})
        for name, data in named.items()
    ]


def risk_probe(source_validation: Any, classes: int, show: RowsShown, device: torch.device) -> Probe:
    """``source_risk`` on labelled source rows that are neither trained on nor tested."""
    return _labelled(source_validation, "source_validation", classes, show, device, {"source_risk": Risk()})


def _labelled(
    data: Any, what: str, classes: int, show: RowsShown, device: torch.device, measures: Mapping[str, Measure]
) -> Probe:
    held = as_rows(data, what, labelled=True)
    index = torch.arange(len(held))
    x, labels = held.take(index), held.labels(index)
    require(int(labels.max()) < classes, f"{what} holds label {int(labels.max())} of {classes} classes")
    require(
        tuple(x.shape[1:]) in show.shapes,
        f"{what} holds rows of shape {tuple(x.shape[1:])}, the clients of shape {show.stored}; they must agree",
    )
    return Probe(TensorRows(x.to(device)), labels.to(device), show, measures)


def target_probe(held: Mapping[str, Rows], most: int, seed: int, show: RowsShown, device: torch.device) -> Probe | None:
    """``target_information`` and ``target_entropy`` on the clients' own unlabelled target rows, at most so many.

    Each client's share is in proportion to what it holds, chosen by the seed and its name; None where there are none.
    """
    total = sum(map(len, held.values()))
    count = min(most, total)
    chosen, before = [], 0
    for name in sorted(held):
        after = before + len(held[name])
        share = count * after // total - count * before // total
        index = permutation(key(seed, "probe", name), len(held[name]))[:share].sort().values
        chosen.append((held[name], index))
        before = after
    if not count:
        return None
    measures: dict[str, Measure] = {"target_information": Information(), "target_entropy": Entropy()}
    rows = _joined(chosen, device)
    return Probe(rows, torch.zeros(count, dtype=torch.int64, device=device), show, measures)


def _joined(chosen: Sequence[tuple[Rows, Tensor]], device: torch.device) -> TensorRows:
    """Rows of several clients in one: by number where they share a tensor on the device, else copied."""
    first = chosen[0][0]
    if isinstance(first, TensorRows) and first.x.device == device:
        numbers = []
        for rows, index in chosen:
            if not isinstance(rows, TensorRows) or not _same(rows.x, first.x):
                break
            here = index.to(device)
            numbers.append(here if rows.index is None else rows.index.to(device)[here])
        else:
            return TensorRows(first.x, index=torch.cat(numbers))
    return TensorRows(torch.cat([rows.take(index).to(device) for rows, index in chosen]))


def _same(one: Tensor, other: Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.stride()) == (other.data_ptr(), other.shape, other.stride())
