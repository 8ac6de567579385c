"""What clients measure on rows of their own where these are elsewhere: who is asked for what, and a client's sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import unknown
from fedmm.core.metrics import Metric
from fedmm.core.objective import Outputs
from fedmm.core.problem import Statistics
from fedmm.models.flat import FlatNetwork
from fedmm.remote.evaluation import Summed
from fedmm.training.evaluators import Probe, summed


@runtime_checkable
class MeasuresElsewhere(Protocol):
    """Engines by algorithm whose clients measure the server's model on rows of their own."""

    def measured(self, state: FederatedState) -> Mapping[str, Tensor]:
        """By column, what was measured; what could not be is left out."""


def asked_for(probes: Sequence[Probe]) -> dict[str, dict[str, Metric]]:
    """By client, the measures of the probes whose rows are its own, by column."""
    wanted: dict[str, dict[str, Metric]] = {}
    for probe in probes:
        for name in probe.held_by:
            wanted.setdefault(name, {}).update(probe.all_measures)
    return dict(sorted(wanted.items()))


@dataclass(frozen=True)
class OwnSums:
    """A client's sums over rows of its own, by column.

    probes: of its rows. min_rows: sums over fewer rows are not given.
    """

    function: FlatNetwork
    probes: Sequence[Probe]
    min_rows: int = 1

    def __call__(self, columns: Sequence[str], z: Tensor, statistics: Statistics) -> dict[str, Summed]:
        """The sums of a model for each of these columns."""

        def outputs(x: Tensor) -> Outputs:
            return Outputs(*(each.unsqueeze(0) for each in self.function.evaluate(z, statistics, x[0])))

        found: dict[str, Summed] = {}
        for probe in self.probes:
            wanted = _only(probe, columns)
            enough = [column for column in wanted.columns if probe.rows_in(column) >= max(self.min_rows, 1)]
            sums = summed([_only(probe, enough)], outputs) if enough else {}
            for column, measure in wanted.all_measures.items():
                none = Summed.of_none(measure, self.function.classes)
                found[column] = Summed(probe.rows_in(column), sums[column][0]) if column in sums else none
        for column in columns:
            if column not in found:
                raise unknown("measure that the server asks for", column, sorted(found))
        return {column: found[column] for column in columns}


def _only(probe: Probe, columns: Sequence[str]) -> Probe:
    """A probe that measures no others than these."""
    measures, paired = (
        {column: measure for column, measure in each.items() if column in columns}
        for each in (probe.measures, probe.paired)
    )
    return replace(probe, measures=measures, paired=paired)
