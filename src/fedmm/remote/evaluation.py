"""Metrics from sums over rows that stay at sites: the server's question, a site's answer, and the total of all answers.

A question holds the server's point and statistics, and names the wanted columns. An answer is one float64 array,
``sums``: for each of these columns, the number of rows and the metric's sums over them. A site with too few rows for a
column answers 0 rows and zeros. If that is shorter, ``sums`` holds only the nonzero numbers, and a second array, int32
``places``, their positions.

A metric that counts rows in bins may be asked for again, for the same model, with finer bins. Such a question names
that column alone, and holds the edges of its bins as the int32 array ``edges/COLUMN``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError, Say
from fedmm.core.layout import Layout
from fedmm.core.metrics import Metric, Refinable, count_finer, values_by_column
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.messages import Invitation
from fedmm.remote.packed import MEASURE, PROBLEM, About, Ask, Malformed, Packed, one_line
from fedmm.remote.packing import pack_invitation, read_invitation

SUMS, PLACES, EDGES = "sums", "places", "edges/"
_COLUMNS, _CLIENT, _ROUND = "columns", "client", "round"
_ENOUGH = 0.9
"""The share of the rows that answers must cover for a metric to be reported."""


class Summed(NamedTuple):
    """A metric's sums, float64 ``[k]``, over this many rows."""

    rows: int
    sums: Tensor

    @classmethod
    def of_none(cls, measure: Metric, classes: int) -> Summed:
        """Return the sums over no rows."""
        return cls(0, torch.zeros(measure.count(classes), dtype=torch.float64))


class SiteParts(NamedTuple):
    """A metric, and the sums of each site by its name."""

    metric: Metric
    by_site: dict[str, Summed]


SiteSums = Callable[[Sequence[str], Tensor, Statistics, Mapping[str, Tensor]], Mapping[str, Summed]]
"""Returns a site's sums for these columns, of a model with this point and these statistics; the last argument holds, by
column, the edges of bins other than the default ones."""


@dataclass(frozen=True)
class MetricRequest:
    """What sites are asked to measure.

    wanted: by site, the metrics on its own rows, by column. classes: the number of classes.
    most_rows: the most rows over which a site may sum.
    """

    wanted: Mapping[str, Mapping[str, Metric]]
    classes: int
    most_rows: int

    @cached_property
    def measures(self) -> dict[str, Metric]:
        """All metrics that are measured at sites, by column."""
        return {column: measure for columns in self.wanted.values() for column, measure in columns.items()}


class SiteMetrics:
    """Asks sites to evaluate the server's model, each on its own rows, and combines their sums.

    A column is reported if the answers cover at least 90 % of its rows: a site that is silent or refused counts with
    the rows of its last answer, and one that has never answered prevents the column. A metric that compares sites
    (``by_site``) needs the answers of all. Sites with too few rows count as having none.

    While the bins of a column are too coarse, the sites that sent counts are asked for finer ones. If one of them then
    does not answer, or has another number of rows, the coarser counts of all sites are kept.

    of_sites: the round of the last evaluation and, by reported column, the sums of each site that has rows.
    say: called with what was measured; complain: called with whose answer is not counted, and why.
    """

    def __init__(
        self,
        problem: FederatedProblem,
        panel: MetricRequest,
        ask: Ask,
        say: Say = lambda line: None,
        complain: Say | None = None,
    ) -> None:
        self._problem = problem
        self._panel = panel
        self._ask = ask
        self._say = say
        self._complain = complain or say
        self._rows: dict[tuple[str, str], int] = {}
        self.of_sites: tuple[int, dict[str, SiteParts]] = (0, {})

    def __call__(self, state: FederatedState) -> dict[str, Tensor]:
        """Return the metrics of the server's model by column, without those that cannot be reported."""
        if not self._panel.wanted:
            self.of_sites = (state.round, {})
            return {}
        asking = _Asking(self._problem, state, self._ask, self._complain)
        heard = asking.hear(self._panel)
        metrics, missing = dict[str, Tensor](), list[str]()
        self.of_sites = (state.round, {})
        for column, first in self._panel.measures.items():
            if self._too_few(column, first, heard):
                missing.append(column)
                continue
            parts = {name: sums[column] for name, sums in sorted(heard.items()) if column in sums}
            measure, parts = self._finer(asking, column, first, parts)
            total = _total(measure, parts)
            self.of_sites[1][column] = SiteParts(measure, {name: part for name, part in parts.items() if part.rows})
            for name, value in values_by_column(column, measure, total.sums, total.rows).items():
                if bool(value.isfinite()):
                    metrics[name] = value
                else:
                    self._complain(
                        f"round {state.round}: {name} is left out: the sums of the sites make {float(value)}"
                    )
        self._tell(state.round, asking, list(heard), missing)
        return metrics

    def _too_few(self, column: str, measure: Metric, heard: Mapping[str, Mapping[str, Summed]]) -> bool:
        """Return whether the sites that answered hold too few of a column's rows to report it."""
        rows = silent = 0
        for name in sorted(name for name, columns in self._panel.wanted.items() if column in columns):
            if name in heard:
                self._rows[name, column] = heard[name][column].rows
                rows += heard[name][column].rows
            elif (name, column) in self._rows:
                silent += self._rows[name, column]
            else:
                return True
        enough = 1.0 if getattr(measure, "by_site", False) else _ENOUGH
        return not rows or rows < enough * (rows + silent)

    def _finer(
        self, asking: _Asking, column: str, first: Metric, parts: dict[str, Summed]
    ) -> tuple[Metric, dict[str, Summed]]:
        """Return a column's metric and the sites' sums, in finer bins if these are needed and all sites count again."""
        total = _total(first, parts)
        asked = {name: part.rows for name, part in parts.items() if part.rows}

        def count(finer: Refinable) -> Tensor | None:
            nonlocal parts
            wanted = {column: finer}
            heard = asking.hear(replace(self._panel, wanted={name: wanted for name in asked}), wanted)  # noqa: C420
            if {name: sums[column].rows for name, sums in heard.items()} != asked:
                return None
            parts = {name: sums[column] for name, sums in sorted(heard.items())}
            return _total(finer, parts).sums

        measure, _ = count_finer(first, total.sums, total.rows, count)
        return measure, parts

    def _tell(self, round_: int, asking: _Asking, heard: Sequence[str], missing: Sequence[str]) -> None:
        seconds = time.perf_counter() - asking.began
        again = f" with {asking.questions} questions" if asking.questions > 1 else ""
        lacking = f"; too few rows for {', '.join(missing)}" if missing else ""
        bytes_ = f"{asking.bytes_down} bytes down, {asking.bytes_up} up"
        who = ", ".join(heard) or "nobody"
        self._say(f"round {round_}: measured by {who} in {seconds:.2f} s{again}, {bytes_}{lacking}")


class _Asking:
    """The questions about the server's model after one round, and their answers."""

    def __init__(self, problem: FederatedProblem, state: FederatedState, ask: Ask, complain: Say) -> None:
        self._problem = problem
        self._state = state
        self._ask = ask
        self._complain = complain
        self.began = time.perf_counter()
        self.questions = self.bytes_down = self.bytes_up = 0

    def hear(self, panel: MetricRequest, edges: Mapping[str, Refinable] | None = None) -> dict[str, dict[str, Summed]]:
        """Ask the sites; return the sums by site and column, without the sites whose answers cannot be read.

        edges: by column, the metrics with bins other than the default ones.
        """
        round_, heard = self._state.round, dict[str, dict[str, Summed]]()
        questions = {
            name: pack_question(self._problem, self._state, list(columns), edges or {})
            for name, columns in panel.wanted.items()
        }
        answers = self._ask(MEASURE, questions)
        self.questions += 1
        self.bytes_down += _bytes_in(questions)
        self.bytes_up += _bytes_in(answers)
        for name in questions:
            try:
                heard[name] = read_sums(panel, name, round_, answers.get(name))
            except Malformed as problem:
                self._complain(f"round {round_}: what {name} measured is not counted: {problem}")
        return heard


def _bytes_in(messages: Mapping[str, Packed]) -> int:
    return sum(array.nbytes for packed in messages.values() for array in packed.arrays.values())


def _total(measure: Metric, parts: Mapping[str, Summed]) -> Summed:
    """Add up the sums of all sites or, for a metric that compares sites, concatenate them in order."""
    sums = [part.sums for part in parts.values()]
    together = torch.cat(sums) if getattr(measure, "by_site", False) else sum(sums[1:], start=sums[0])
    return Summed(sum(part.rows for part in parts.values()), together)


def pack_question(
    problem: FederatedProblem,
    state: FederatedState,
    columns: Sequence[str],
    finer: Mapping[str, Refinable] = MappingProxyType({}),
) -> Packed:
    """Pack the question for these columns, with the server's model after a round.

    finer: by column, the metrics with bins other than the default ones.
    """
    statistics = state.statistics if problem.share_statistics else {}
    packed = pack_invitation(problem.layout, Invitation(state.round, {"z": state.model}, statistics=statistics))
    edges = {EDGES + column: metric.edges.cpu().numpy().astype(np.int32) for column, metric in finer.items()}
    about: About = {_ROUND: state.round, _COLUMNS: ",".join(columns)}
    return Packed({**packed.arrays, **edges}, about, {})


def with_edges(column: str, measure: Metric, edges: Tensor) -> Metric:
    """Return a column's metric with the edges from a question; raise ``Malformed`` if they cannot be used."""
    if not isinstance(measure, Refinable):
        raise Malformed(f"the server sent edges for {column}, which is not counted in bins")
    try:
        return measure.with_edges(edges)
    except FedmmError as problem:
        raise Malformed(f"the server sent edges for {column} that cannot be used: {problem}") from problem


def measure_at_site(
    name: str, layout: Layout, own: Statistics, question: Packed, sums: SiteSums, say: Say = lambda line: None
) -> Packed:
    """Return a site's answer, and say what leaves the site; own: its initial statistics, used if none are shared."""
    columns = question.about.get(_COLUMNS)
    if not isinstance(columns, str):
        raise Malformed("the server did not say what is to be measured")
    sent = {name: array for name, array in question.arrays.items() if not name.startswith(EDGES)}
    model = read_invitation(layout, sent, {**question.about, "restoring": False})
    if model.sent.keys() != {"z"} or model.sent["z"].shape != (layout.size,):
        raise Malformed("the server sent no model to measure")
    statistics = model.statistics or own
    if _shapes(statistics) != _shapes(own):
        raise Malformed("the server sent running statistics that are not of this model")
    edges = _read_edges(question, columns.split(","))
    summed = sums(columns.split(","), model.sent["z"].to(layout.dtype), statistics, edges)
    say(f"round {model.round}: {describe_sums(summed)}")
    parts = [torch.cat([part.sums.new_tensor([part.rows]), part.sums]).cpu() for part in summed.values()]
    return Packed(_shortest(torch.cat(parts).numpy()), {_CLIENT: name, _ROUND: model.round}, {})


def _read_edges(question: Packed, columns: Sequence[str]) -> dict[str, Tensor]:
    """Return the edges in a question, by column."""
    edges = {name.removeprefix(EDGES): array for name, array in question.arrays.items() if name.startswith(EDGES)}
    for column, array in edges.items():
        if column not in columns or array.dtype != np.int32:
            raise Malformed(
                f"the server sent edges for {one_line(column, 40)!r} as {array.dtype}, where int32 is taken for "
                "columns that it asks for"
            )
    return {column: torch.from_numpy(np.array(array)) for column, array in edges.items()}


def _shortest(sums: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """Return the numbers as arrays, in the shorter of two forms: all, or only the nonzero ones with their places."""
    places = np.flatnonzero(sums).astype(np.int32)
    told = sums[places]
    return {SUMS: told, PLACES: places} if told.nbytes + places.nbytes < sums.nbytes else {SUMS: sums}


def _shapes(statistics: Statistics) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in statistics.items()}


def describe_sums(summed: Mapping[str, Summed]) -> str:
    """Describe what leaves a site: by column, how many numbers over how many rows."""
    words = [
        f"{column} ({len(part.sums)} over {part.rows} rows)" if part.rows else f"{column} (zeros: too few rows)"
        for column, part in summed.items()
    ]
    return f"leaves sums for {', '.join(words)}"


def read_sums(panel: MetricRequest, name: str, round_: int, answer: Packed | None) -> dict[str, Summed]:
    """Return a site's sums by column; raise ``Malformed`` with the reason if they are not what was asked for."""
    if answer is None:
        raise Malformed("it did not answer")
    about = answer.about
    if PROBLEM in about:
        raise Malformed(one_line(about[PROBLEM]))
    if about.get(_CLIENT) != name:
        raise Malformed(f"it answers in the name of {one_line(about.get(_CLIENT))!r}")
    if about.get(_ROUND) != round_:
        raise Malformed(f"it answers for round {one_line(about.get(_ROUND), 40)}, not {round_}")
    wanted = panel.wanted[name]
    size = sum(1 + measure.count(panel.classes) for measure in wanted.values())
    numbers, summed = torch.from_numpy(_all_numbers(answer.arrays, size)), dict[str, Summed]()
    if not bool(numbers.isfinite().all()):
        raise Malformed("its sums are not all finite")
    for column, measure in wanted.items():
        count = measure.count(panel.classes)
        values, numbers = numbers[: 1 + count], numbers[1 + count :]
        summed[column] = _plausible(panel, column, measure, float(values[0]), values[1:])
    return summed


def _all_numbers(arrays: Mapping[str, NDArray[Any]], size: int) -> NDArray[np.float64]:
    """Return the ``size`` numbers in arrays of :func:`_shortest`."""
    array, places = arrays.get(SUMS), arrays.get(PLACES)
    if array is None or arrays.keys() - {SUMS, PLACES}:
        raise Malformed(f"it sent {one_line(', '.join(arrays)) or 'no array'}, where {SUMS!r} and {PLACES!r} are taken")
    length = size if places is None else min(places.size, size)
    if array.shape != (length,) or array.dtype != np.float64:
        raise Malformed(f"its sums are {array.dtype} of shape {array.shape}, not float64 of shape {(length,)}")
    if places is None:
        return np.array(array)
    if places.shape != array.shape or places.dtype != np.int32:
        raise Malformed(f"its places are {places.dtype} of shape {places.shape}, not int32 of shape {array.shape}")
    if np.any(np.diff(places) <= 0) or np.any(places < 0) or np.any(places >= size):
        raise Malformed(f"its places are not in order, or not below {size}")
    numbers = np.zeros(size)
    numbers[places] = array
    return numbers


def _plausible(panel: MetricRequest, column: str, measure: Metric, rows: float, sums: Tensor) -> Summed:
    if rows != int(rows) or not 0 <= rows <= panel.most_rows:
        raise Malformed(
            f"its {column} is over {rows:g} rows, where a whole number from 0 to {panel.most_rows} is taken"
        )
    if not rows and bool(sums.any()):
        raise Malformed(f"its {column} has sums over no rows")
    flaw = measure.flaw(sums, int(rows), panel.classes) if rows else ""
    if flaw:
        raise Malformed(f"its sums for {column} cannot be of {rows:g} rows: {flaw}")
    return Summed(int(rows), sums)
