"""The best models of a stack's replicas, kept on the device: nothing waits for it until they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedmm.core.problem import Statistics
from fedmm.engines.batched import Batched
from fedmm.training.history import History
from fedmm.training.selection import Chooser


class StackBest:
    """Looks at every evaluation of a stack as each replica's chooser would."""

    def __init__(self, choosers: Sequence[Chooser], engine: Batched) -> None:
        self._choosers = choosers
        self._engine = engine
        before = [chooser.best for chooser in choosers]
        device = engine.layout.device
        self._signs = [1.0 if chooser.by and chooser.by.higher else -1.0 for chooser in choosers]
        values = [sign * each.value if each else torch.nan for sign, each in zip(self._signs, before, strict=True)]
        self._values = torch.tensor(values, dtype=torch.float64, device=device)
        self._rounds = torch.tensor([each.round if each else 0 for each in before], device=device)
        self._z = engine.z.clone()
        self._statistics: Statistics = {}
        self._known = self._rounds.tolist()

    def look(self, found: Mapping[str, Tensor], z: Tensor, statistics: Statistics) -> None:
        """Look at an evaluation: measures ``[replicas]`` by column, points ``[replicas, size]``, and statistics."""
        if not any(chooser.by for chooser in self._choosers):
            return
        if not self._statistics:
            self._statistics = {name: value.clone() for name, value in statistics.items()}
        nothing = self._values.new_tensor(torch.nan)
        values = torch.stack(
            [
                sign * found[chooser.by.column][replica].double() if chooser.by else nothing
                for replica, (chooser, sign) in enumerate(zip(self._choosers, self._signs, strict=True))
            ]
        )
        better = values.isfinite() & (self._values.isnan() | (values > self._values)) & self._engine.alive
        self._values = torch.where(better, values, self._values)
        self._rounds = torch.where(better, self._engine.rounds_done, self._rounds)
        self._z = torch.where(better.unsqueeze(-1), z, self._z)
        for name, value in statistics.items():
            over = better.view(-1, *(1,) * (value.dim() - 1))
            self._statistics[name] = torch.where(over, value, self._statistics[name])

    def hand_over(self, histories: Sequence[History]) -> None:
        """Give the choosers what is new; the histories hold every round that was looked at."""
        for replica, (chooser, round_) in enumerate(zip(self._choosers, self._rounds.tolist(), strict=True)):
            if round_ == self._known[replica]:
                continue
            statistics = {name: value[replica].clone() for name, value in self._statistics.items()}
            chooser.take(histories[replica][round_ - 1], self._z[replica].clone(), statistics)
            self._known[replica] = round_
