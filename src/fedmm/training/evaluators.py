"""Evaluate the server's model during training: here, or from clients' sums over rows of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import unknown
from fedmm.core.metrics import (
    Metric,
    Refinable,
    Seen,
    WorstAccuracy,
    by_column,
    columns_of,
    count_finer,
    proxy_a_distance,
    values_by_column,
)
from fedmm.core.objective import SOURCE, TARGET, Outputs
from fedmm.core.problem import Statistics
from fedmm.core.signals.ranking import Ranking
from fedmm.data.rows import TensorRows
from fedmm.models.flat import FlatNetwork, rows_at_once
from fedmm.remote.evaluation import Summed, with_edges
from fedmm.training.predictor import RowsShown

_MOST_NEIGHBOURS = 200
"""The most rows that are compared with each other, since the cost grows with the square."""
HITS = {SOURCE: "source_hits", TARGET: "target_hits"}
"""By domain, the column with the adversary's accuracy on its rows; ``domain_accuracy`` is the mean of both."""


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Rows, how they are shown to the network, and the metrics on them, by the history's columns.

    y: int64 ``[rows]``; any class if no metric reads labels.
    odds: the log odds of source to target rows in the adversary's batches; None if it is not a domain
        classifier. client: int64 ``[rows]``, who holds each row. paired: the metrics that compare rows with each other.
    held_by: the clients whose own rows these are, in the order of their numbers; empty for rows of the server.
    compared: int64 ``[k]``, the rows to compare; by default an even selection.
    """

    rows: TensorRows
    y: Tensor
    show: RowsShown
    measures: Mapping[str, Metric]
    odds: float | None = None
    client: Tensor | None = None
    paired: Mapping[str, Metric] = field(default_factory=dict)
    held_by: tuple[str, ...] = ()
    compared: Tensor | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def all_measures(self) -> dict[str, Metric]:
        """All metrics, by column."""
        return {**self.measures, **self.paired}

    @property
    def columns(self) -> list[str]:
        """The columns of all metrics."""
        return list(self.all_measures)

    @property
    def neighbours(self) -> Tensor:
        """The indices of the rows that are compared with each other, int64 ``[k]``."""
        if self.compared is not None:
            return self.compared
        among = min(len(self), _MOST_NEIGHBOURS)
        return torch.arange(among, device=self.y.device) * len(self) // max(among, 1)

    def rows_in(self, column: str) -> int:
        """Return how many rows a column is measured on: if it compares rows, only those that are compared."""
        return len(self.neighbours) if column in self.paired else len(self)

    def own_of(self, name: str) -> Evaluator:
        """Return an evaluator of a client's rows; of the rows that are compared, it compares the client's."""
        assert self.client is not None
        rows = (self.client == self.held_by.index(name)).nonzero().flatten()
        compared = self.neighbours[torch.isin(self.neighbours, rows)]
        numbers = rows if self.rows.index is None else self.rows.index[rows.to(self.rows.index.device)]
        return replace(
            self,
            rows=TensorRows(self.rows.x, index=numbers),
            y=self.y[rows],
            client=torch.zeros_like(rows),
            measures={
                column: WorstAccuracy(1) if isinstance(measure, WorstAccuracy) else measure
                for column, measure in self.measures.items()
            },
            compared=torch.searchsorted(rows, compared),
        )

    def take(self, part: slice) -> Tensor:
        """Return a slice of the rows as the network sees them."""
        return self.show(self.rows.take(torch.arange(len(self), device=self.y.device)[part]))


def columns(evaluators: Sequence[Evaluator]) -> list[str]:
    """Return the columns of the history that these evaluators fill."""
    measures = [item for evaluator in evaluators for item in evaluator.all_measures.items()]
    names = [column for name, measure in measures for column in columns_of(name, measure)]
    both = all(hits in names for hits in HITS.values())
    own = [column for column in names if column not in HITS.values()]
    return own + (["domain_accuracy", "proxy_a_distance"] if both else [])


def evaluate_replicas(
    evaluators: Sequence[Sequence[Evaluator]], outputs: Callable[[Tensor], Outputs], wanted: Sequence[str]
) -> dict[str, Tensor]:
    """Return the metrics of each replica's evaluators, ``[replicas]`` by column, on the device.

    outputs: of inputs ``[replicas, rows, ...]``, each replica's by its own network. wanted: the columns, in order.
    """
    metrics = evaluate([*zip(*evaluators, strict=True)], outputs)
    metrics |= domain_metrics(metrics)
    return {column: metrics[column] for column in wanted}


def domain_metrics(metrics: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``domain_accuracy`` and ``proxy_a_distance`` if the adversary's accuracy on both domains was measured."""
    halves = [metrics[hits] for hits in HITS.values() if hits in metrics]
    if len(halves) < len(HITS):
        return {}
    accuracy = (halves[0] + halves[1]) / 2
    return {"domain_accuracy": accuracy, "proxy_a_distance": proxy_a_distance(accuracy)}


def evaluate(evaluators: Sequence[Sequence[Evaluator]], outputs: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
    """Return the metrics, ``[replicas]`` by column. evaluators: in groups, one per replica that differ only in rows."""
    metrics, binned, coarse = dict[str, Tensor](), list[_Binned](), list[Tensor]()
    for alike in evaluators:
        sums, seen = sum_metrics(alike, outputs)
        for name, measure in alike[0].all_measures.items():
            value = measure.value(sums[name], len(alike[0]))
            metrics |= by_column(name, measure, value)
            if isinstance(measure, Refinable) and seen is not None:
                binned.append(_Binned(name, measure, sums[name], seen))
                coarse.append(measure.is_coarse(value))
    for of_one, flags in zip(binned, torch.stack(coarse).tolist() if coarse else (), strict=True):
        for replica in (replica for replica, flag in enumerate(flags) if flag):
            for column, exact in of_one.count_again(replica).items():
                here = torch.arange(len(flags), device=exact.device) == replica
                metrics[column] = torch.where(here, exact, metrics[column])
    return metrics


class _Binned(NamedTuple):
    """A metric that counts rows in bins, its column, its sums ``[replicas, k]``, and the rows' outputs."""

    name: str
    metric: Refinable
    sums: Tensor
    seen: Seen

    def count_again(self, replica: int) -> dict[str, Tensor]:
        """Return the values of a replica by column, from finer bins."""
        own, rows = Seen(self.seen.logits[replica], self.seen.y[replica]), self.seen.y.shape[-1]
        metric, sums = count_finer(self.metric, self.sums[replica], rows, lambda finer: finer.sums(own))
        return values_by_column(self.name, metric, sums, rows)


def sum_metrics(
    evaluators: Sequence[Evaluator], outputs: Callable[[Tensor], Outputs]
) -> tuple[dict[str, Tensor], Seen | None]:
    """Return the sums ``[replicas, k]`` over the rows of one evaluator per replica, by column.

    Also return the outputs for all these rows if some are compared with each other or counted in bins, else None.
    """
    first, sums, logits = evaluators[0], dict[str, Tensor](), list[Tensor]()
    y = torch.stack([evaluator.y for evaluator in evaluators])
    holders = [evaluator.client for evaluator in evaluators if evaluator.client is not None]
    client = torch.stack(holders) if holders else None
    added = {column: measure for column, measure in first.measures.items() if not isinstance(measure, Refinable)}
    at_once = rows_at_once(first.show.shapes[-1])
    for start in range(0, len(first), at_once):
        part = slice(start, start + at_once)
        given = outputs(torch.stack([evaluator.take(part) for evaluator in evaluators]))
        log_ratio = None if first.odds is None else _log_ratio(given.adversary, evaluators)
        seen = Seen(given.logits, y[:, part], log_ratio, None if client is None else client[:, part])
        for column, measure in added.items():
            summed = measure.sums(seen)
            sums[column] = sums[column] + summed if column in sums else summed
        if first.paired or len(added) < len(first.measures):
            logits.append(given.logits)
    if not logits:
        return sums, None
    whole = Seen(torch.cat(logits, dim=1), y, client=client)
    sums |= {column: measure.sums(whole) for column, measure in first.measures.items() if column not in added}
    if first.paired:
        chosen = first.neighbours
        near = Seen(whole.logits[:, chosen], y[:, chosen], client=None if client is None else client[:, chosen])
        sums |= {column: measure.sums(near) for column, measure in first.paired.items()}
    return sums, whole


def _log_ratio(adversary: Tensor, evaluators: Sequence[Evaluator]) -> Tensor:
    """Return the log density ratio of target to source, ``[replicas, rows]``."""
    odds = torch.tensor([evaluator.odds for evaluator in evaluators], dtype=torch.float64).to(adversary.device)
    return (adversary[..., TARGET] - adversary[..., SOURCE]).double() + odds.unsqueeze(-1)


@runtime_checkable
class MeasuresElsewhere(Protocol):
    """Makes engines for algorithms, and has clients evaluate the server's model on rows of their own."""

    def measured(self, state: FederatedState) -> Mapping[str, Tensor]:
        """Return the metrics by column, without those that could not be measured."""


def metrics_by_client(evaluators: Sequence[Evaluator]) -> dict[str, dict[str, Metric]]:
    """Return, by client, the metrics of the evaluators of its own rows, by column."""
    wanted: dict[str, dict[str, Metric]] = {}
    for evaluator in evaluators:
        for name in evaluator.held_by:
            wanted.setdefault(name, {}).update(evaluator.all_measures)
    return dict(sorted(wanted.items()))


@dataclass(frozen=True)
class OwnSums:
    """Computes a client's sums over its own rows, by column.

    evaluators: of its rows. min_rows: sums over fewer rows are withheld, and counts of a class that has fewer.
    """

    function: FlatNetwork
    evaluators: Sequence[Evaluator]
    min_rows: int = 1

    def __call__(
        self, columns: Sequence[str], z: Tensor, statistics: Statistics, edges: Mapping[str, Tensor] | None = None
    ) -> dict[str, Summed]:
        """Return the sums of a model for these columns; edges: by column, of bins other than the default ones."""

        def outputs(x: Tensor) -> Outputs:
            return Outputs(*(output.unsqueeze(0) for output in self.function.evaluate(z, statistics, x[0])))

        summed: dict[str, Summed] = {}
        for evaluator in self.evaluators:
            wanted = _with_edges(_only(evaluator, columns), edges or {})
            enough = [column for column in wanted.columns if evaluator.rows_in(column) >= max(self.min_rows, 1)]
            sums = sum_metrics([_only(wanted, enough)], outputs)[0] if enough else {}
            for column, measure in wanted.all_measures.items():
                summed[column] = Summed.of_none(measure, self.function.classes)
                if column in sums and isinstance(measure, Ranking):
                    counts = measure.withheld(sums[column][0], self.min_rows)
                    summed[column] = Summed(sum(measure.rows_by_class(counts)), counts)
                elif column in sums:
                    summed[column] = Summed(evaluator.rows_in(column), sums[column][0])
        for column in columns:
            if column not in summed:
                raise unknown("measure that the server asks for", column, sorted(summed))
        return {column: summed[column] for column in columns}


def _only(evaluator: Evaluator, columns: Sequence[str]) -> Evaluator:
    """Return the evaluator with only these columns."""
    measures, paired = (
        {column: measure for column, measure in measured.items() if column in columns}
        for measured in (evaluator.measures, evaluator.paired)
    )
    return replace(evaluator, measures=measures, paired=paired)


def _with_edges(evaluator: Evaluator, edges: Mapping[str, Tensor]) -> Evaluator:
    """Return the evaluator with other bin edges for these columns."""
    finer = {
        column: with_edges(column, measure, edges[column])
        for column, measure in evaluator.all_measures.items()
        if column in edges
    }
    return replace(evaluator, measures={**evaluator.measures, **finer})
