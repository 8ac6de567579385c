"""Rows on which the server's model is measured while it trains: test rows, source rows to choose by, target inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, require, unknown
from fedmm.core.metrics import (
    Accuracy,
    DomainHits,
    EmbeddedRisk,
    Entropy,
    Information,
    Metric,
    NeighbourhoodDensity,
    NuclearNorm,
    Risk,
    Seen,
    WorstAccuracy,
    columns_of,
    proxy_a_distance,
    values_by_column,
)
from fedmm.core.objective import SOURCE, TARGET, Outputs
from fedmm.core.problem import Statistics
from fedmm.core.seeding import key, permutation
from fedmm.core.signals.ranking import Ranking
from fedmm.data.row_format import RowFormat
from fedmm.data.rows import Rows, TensorRows
from fedmm.models.flat import FlatNetwork, rows_at_once
from fedmm.remote.evaluation import Summed
from fedmm.training.predictor import RowsShown

_MOST_NEIGHBOURS = 200
"""Rows that are compared with each other, as their cost goes with the square."""
_MOST_SOURCE_ROWS = 250
_MOST_CLASSES = 256
"""For the nuclear norm, of which a client sends classes x classes sums."""
_WORST = "validation_worst_accuracy"
_HITS = {SOURCE: "source_hits", TARGET: "target_hits"}


@dataclass(frozen=True, eq=False)
class Evaluator:
    """Rows, how they are shown, and what is measured on them, by the names of the history's columns.

    y: int64 ``[rows]``; any class where no measure looks at labels.
    odds: the log of how much more source than target the adversary is trained on; None where it is no domain
        classifier. client: int64 ``[rows]``, who holds each. paired: the measures that compare rows with each other.
    held_by: the clients whose own rows these are, in the order of their numbers; nobody's rows are the server's.
    compared: int64 ``[k]``, which rows are compared; by default some of all.
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
        """Everything that is measured."""
        return {**self.measures, **self.paired}

    @property
    def columns(self) -> list[str]:
        """The names of all that is measured."""
        return list(self.all_measures)

    @property
    def neighbours(self) -> Tensor:
        """Which rows are compared with each other, int64 ``[k]``."""
        if self.compared is not None:
            return self.compared
        among = min(len(self), _MOST_NEIGHBOURS)
        return torch.arange(among, device=self.y.device) * len(self) // max(among, 1)

    def rows_in(self, column: str) -> int:
        """How many rows a column is measured on: those that are compared, where it compares rows."""
        return len(self.neighbours) if column in self.paired else len(self)

    def own_of(self, name: str) -> Evaluator:
        """The rows that one of the clients holds, and those of them that would be compared."""
        assert self.client is not None
        own = (self.client == self.held_by.index(name)).nonzero().flatten()
        compared = self.neighbours[torch.isin(self.neighbours, own)]
        numbers = own if self.rows.index is None else self.rows.index[own.to(self.rows.index.device)]
        return replace(
            self,
            rows=TensorRows(self.rows.x, index=numbers),
            y=self.y[own],
            client=torch.zeros_like(own),
            measures={
                column: WorstAccuracy(1) if isinstance(measure, WorstAccuracy) else measure
                for column, measure in self.measures.items()
            },
            compared=torch.searchsorted(own, compared),
        )

    def take(self, part: slice) -> Tensor:
        """Some of the rows as the network sees them."""
        return self.show(self.rows.take(torch.arange(len(self), device=self.y.device)[part]))


def columns(evaluators: Sequence[Evaluator]) -> list[str]:
    """The columns of the history that these evaluators fill."""
    measures = [each for evaluator in evaluators for each in evaluator.all_measures.items()]
    found = [column for name, measure in measures for column in columns_of(name, measure)]
    both = all(hits in found for hits in _HITS.values())
    own = [column for column in found if column not in _HITS.values()]
    return own + (["domain_accuracy", "proxy_a_distance"] if both else [])


def evaluate_replicas(
    evaluators: Sequence[Sequence[Evaluator]], outputs: Callable[[Tensor], Outputs], wanted: Sequence[str]
) -> dict[str, Tensor]:
    """What the evaluators of each replica measure, ``[replicas]`` by column, on the device.

    outputs: of ``[replicas, rows, ...]``, each replica's by its own network. wanted: the columns, in their order.
    """
    found: dict[str, Tensor] = {}
    for alike in zip(*evaluators, strict=True):
        found |= evaluate(alike, outputs)
    found |= domain_metrics(found)
    return {column: found[column] for column in wanted}


def domain_metrics(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``domain_accuracy`` and ``proxy_a_distance``, where it was measured how many rows of each domain are told."""
    halves = [found[hits] for hits in _HITS.values() if hits in found]
    if len(halves) < len(_HITS):
        return {}
    accuracy = (halves[0] + halves[1]) / 2
    return {"domain_accuracy": accuracy, "proxy_a_distance": proxy_a_distance(accuracy)}


def evaluate(evaluators: Sequence[Evaluator], outputs: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
    """What one evaluator of each replica measures; the evaluators are alike but for their rows."""
    sums, first, found = sum_metrics(evaluators, outputs), evaluators[0], dict[str, Tensor]()
    for name, measure in first.all_measures.items():
        found |= values_by_column(name, measure, sums[name], len(first))
    return found


def sum_metrics(evaluators: Sequence[Evaluator], outputs: Callable[[Tensor], Outputs]) -> dict[str, Tensor]:
    """The sums ``[replicas, k]`` over the rows of one evaluator of each replica, by column."""
    first, sums, logits = evaluators[0], dict[str, Tensor](), list[Tensor]()
    at_once = rows_at_once(first.show.shapes[-1])
    for start in range(0, len(first), at_once):
        part = slice(start, start + at_once)
        given = outputs(torch.stack([evaluator.take(part) for evaluator in evaluators]))
        y = torch.stack([evaluator.y[part] for evaluator in evaluators])
        held = [evaluator.client[part] for evaluator in evaluators if evaluator.client is not None]
        seen = Seen(
            given.logits,
            y,
            None if first.odds is None else _log_ratio(given.adversary, evaluators),
            torch.stack(held) if held else None,
        )
        for column, measure in first.measures.items():
            found = measure.sums(seen)
            sums[column] = sums[column] + found if column in sums else found
        if first.paired:
            logits.append(given.logits)
    if first.paired:
        chosen = first.neighbours
        y = torch.stack([evaluator.y[chosen] for evaluator in evaluators])
        client = torch.stack([evaluator.client[chosen] for evaluator in evaluators if evaluator.client is not None])
        seen = Seen(torch.cat(logits, dim=1)[:, chosen], y, client=client)
        sums |= {column: measure.sums(seen) for column, measure in first.paired.items()}
    return sums


def _log_ratio(adversary: Tensor, evaluators: Sequence[Evaluator]) -> Tensor:
    """The log of the ratio of densities, target over source, ``[replicas, rows]``."""
    odds = torch.tensor([evaluator.odds for evaluator in evaluators], dtype=torch.float64).to(adversary.device)
    return (adversary[..., TARGET] - adversary[..., SOURCE]).double() + odds.unsqueeze(-1)


def accuracy_evaluators(
    validation: Any,
    classes: int,
    show: RowsShown,
    device: torch.device,
    form: RowFormat,
    held_at: Mapping[str, Tensor] | None = None,
) -> list[Evaluator]:
    """``<name>_accuracy`` on each set of labelled rows: (x, y) of the target, or a dict of such pairs by name.

    With two classes also ``<name>_auroc`` and its like (:class:`~fedmm.core.signals.ranking.Ranking`).
    held_at: by name, int64 ``[rows]``, the number of the site that holds each row, below 0 for none; of these sets also
    ``<name>_worst_accuracy``, that of the worst-off site.
    """
    if validation is None:
        return []
    named = validation if isinstance(validation, Mapping) else {"target": validation}
    for name in named:
        if not isinstance(name, str):
            raise FedmmError(f"validation sets are named by words such as 'target', not {name!r}")
    at = held_at or {}
    return [
        _held_at(
            _labelled(
                data,
                f"validation {name!r}",
                classes,
                show,
                device,
                {f"{name}_accuracy": Accuracy(), **_ranking(name, classes)},
                form,
            ),
            at.get(name),
            f"{name}_worst_accuracy",
        )
        for name, data in named.items()
    ]


def risk_evaluator(
    source_validation: Any,
    classes: int,
    show: RowsShown,
    device: torch.device,
    odds: float | None,
    form: RowFormat,
    *,
    accuracy: bool = False,
    held_at: Tensor | None = None,
) -> Evaluator:
    """``source_risk`` on labelled source rows that are neither trained on nor tested.

    With a domain classifier also ``dev_risk``, and half of what ``domain_accuracy`` needs; with two classes also
    ``validation_auroc`` and its like. accuracy: also ``validation_accuracy`` and, with ``held_at`` as in
    :func:`accuracy_evaluators`, ``validation_worst_accuracy``.
    """
    measures = _risks(odds, classes, accuracy=accuracy)
    labelled = _labelled(source_validation, "source_validation", classes, show, device, measures, form)
    labelled = _held_at(labelled, held_at if accuracy else None, _WORST)
    return replace(labelled, odds=odds)


def _held_at(evaluator: Evaluator, sites: Tensor | None, column: str) -> Evaluator:
    """The evaluator with the accuracy of the worst-off site, where it is known which site holds each row."""
    if sites is None or not len(sites) or int(sites.max()) < 0:
        return evaluator
    measures = {**evaluator.measures, column: WorstAccuracy(int(sites.max()) + 1)}
    return replace(evaluator, client=sites.to(evaluator.y.device), measures=measures)


def _ranking(rows: str, classes: int) -> dict[str, Metric]:
    return {f"{rows}_ranking": Ranking()} if classes == 2 else {}


def _risks(odds: float | None, classes: int, *, accuracy: bool) -> dict[str, Metric]:
    risk: dict[str, Metric] = {"source_risk": Risk(), **_ranking("validation", classes)}
    if accuracy:
        risk["validation_accuracy"] = Accuracy()
    return risk if odds is None else {**risk, "dev_risk": EmbeddedRisk(), _HITS[SOURCE]: DomainHits(SOURCE)}


def held_back_evaluator(
    held: Mapping[str, Rows],
    most: int,
    seed: int,
    show: RowsShown,
    device: torch.device,
    classes: int,
    odds: float | None = None,
    *,
    accuracy: bool = False,
) -> Evaluator | None:
    """The same on labelled source rows that clients hold back from training, at most so many; None without any.

    accuracy: also ``validation_accuracy`` and ``validation_worst_accuracy``.
    """
    chosen = _dealt(held, most, seed, "held back")
    if not chosen:
        return None
    y = torch.cat([rows.labels(index).to(device) for rows, index in chosen])
    measures, client = _risks(odds, classes, accuracy=accuracy), _numbers(chosen, device)
    if accuracy:
        measures[_WORST] = WorstAccuracy(len(held))
    return Evaluator(_joined(chosen, device), y, show, measures, odds, client, {}, _names(held))


def source_evaluator(
    held: Mapping[str, Rows], most: int, seed: int, show: RowsShown, device: torch.device, odds: float
) -> Evaluator | None:
    """The source's half of ``domain_accuracy`` on the clients' own source inputs, where no others are set aside."""
    chosen = _dealt(held, min(most, _MOST_SOURCE_ROWS), seed, "source probe")
    if not chosen:
        return None
    client = _numbers(chosen, device)
    hits = {_HITS[SOURCE]: DomainHits(SOURCE)}
    return Evaluator(_joined(chosen, device), torch.zeros_like(client), show, hits, odds, client, {}, _names(held))


def _labelled(
    data: Any,
    what: str,
    classes: int,
    show: RowsShown,
    device: torch.device,
    measures: Mapping[str, Metric],
    form: RowFormat,
) -> Evaluator:
    held = form.rows(data, what, labelled=True)
    index = torch.arange(len(held))
    x, labels = held.take(index), held.labels(index)
    require(int(labels.max()) < classes, f"{what} holds label {int(labels.max())} of {classes} classes")
    require(
        tuple(x.shape[1:]) in show.shapes,
        f"{what} holds rows of shape {tuple(x.shape[1:])}, the clients of shape {show.stored}; they must agree",
    )
    return Evaluator(TensorRows(x.to(device)), labels.to(device), show, measures)


def target_evaluator(
    held: Mapping[str, Rows],
    most: int,
    seed: int,
    show: RowsShown,
    device: torch.device,
    classes: int,
    odds: float | None = None,
) -> Evaluator | None:
    """What needs no labels, on the clients' own target rows, at most so many: ``target_information`` and its like.

    Each client's share is in proportion to what it holds, chosen by the seed and its name; None where there are none.
    """
    chosen = _dealt(held, most, seed, "probe")
    if not chosen:
        return None
    rows, client = _joined(chosen, device), _numbers(chosen, device)
    measures: dict[str, Metric] = {"target_information": Information(), "target_entropy": Entropy()}
    if classes <= _MOST_CLASSES:
        measures["target_bnm"] = NuclearNorm()
    if odds is not None:
        measures[_HITS[TARGET]] = DomainHits(TARGET)
    paired: dict[str, Metric] = {"target_snd": NeighbourhoodDensity()}
    return Evaluator(rows, torch.zeros_like(client), show, measures, odds, client, paired, _names(held))


def _dealt(held: Mapping[str, Rows], most: int, seed: int, purpose: str) -> list[tuple[Rows, Tensor]]:
    """At most so many of the clients' rows: in order of names, each client's and which of them; empty for none."""
    total = sum(map(len, held.values()))
    count = min(most, total)
    chosen, before = [], 0
    for name in _names(held):
        after = before + len(held[name])
        share = count * after // total - count * before // total
        index = permutation(key(seed, purpose, name), len(held[name]))[:share].sort().values
        chosen.append((held[name], index))
        before = after
    return chosen if count else []


def _names(held: Mapping[str, Rows]) -> tuple[str, ...]:
    return tuple(sorted(held))


def _numbers(chosen: Sequence[tuple[Rows, Tensor]], device: torch.device) -> Tensor:
    """Who holds each of the rows, int64 ``[rows]``."""
    return torch.repeat_interleave(torch.tensor([len(index) for _, index in chosen], dtype=torch.int64)).to(device)


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


@runtime_checkable
class MeasuresElsewhere(Protocol):
    """Engines by algorithm whose clients measure the server's model on rows of their own."""

    def measured(self, state: FederatedState) -> Mapping[str, Tensor]:
        """By column, what was measured; what could not be is left out."""


def metrics_by_client(evaluators: Sequence[Evaluator]) -> dict[str, dict[str, Metric]]:
    """By client, the measures of the evaluators whose rows are its own, by column."""
    wanted: dict[str, dict[str, Metric]] = {}
    for evaluator in evaluators:
        for name in evaluator.held_by:
            wanted.setdefault(name, {}).update(evaluator.all_measures)
    return dict(sorted(wanted.items()))


@dataclass(frozen=True)
class OwnSums:
    """A client's sums over rows of its own, by column.

    evaluators: of its rows. min_rows: sums over fewer rows are not given, nor counts of a class that has fewer.
    """

    function: FlatNetwork
    evaluators: Sequence[Evaluator]
    min_rows: int = 1

    def __call__(self, columns: Sequence[str], z: Tensor, statistics: Statistics) -> dict[str, Summed]:
        """The sums of a model for each of these columns."""

        def outputs(x: Tensor) -> Outputs:
            return Outputs(*(each.unsqueeze(0) for each in self.function.evaluate(z, statistics, x[0])))

        found: dict[str, Summed] = {}
        for evaluator in self.evaluators:
            wanted = _only(evaluator, columns)
            enough = [column for column in wanted.columns if evaluator.rows_in(column) >= max(self.min_rows, 1)]
            sums = sum_metrics([_only(evaluator, enough)], outputs) if enough else {}
            for column, measure in wanted.all_measures.items():
                found[column] = Summed.of_none(measure, self.function.classes)
                if column in sums and isinstance(measure, Ranking):
                    counts = measure.withheld(sums[column][0], self.min_rows)
                    found[column] = Summed(int(counts.sum().nan_to_num()), counts)
                elif column in sums:
                    found[column] = Summed(evaluator.rows_in(column), sums[column][0])
        for column in columns:
            if column not in found:
                raise unknown("measure that the server asks for", column, sorted(found))
        return {column: found[column] for column in columns}


def _only(evaluator: Evaluator, columns: Sequence[str]) -> Evaluator:
    """An evaluator that measures no others than these."""
    measures, paired = (
        {column: measure for column, measure in each.items() if column in columns}
        for each in (evaluator.measures, evaluator.paired)
    )
    return replace(evaluator, measures=measures, paired=paired)
