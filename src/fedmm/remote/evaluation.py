"""Measures from sums over rows that stay at sites: the server's question, a site's answer, and what comes of them all.

A question holds the server's point and statistics, and names the columns that are wanted. An answer is one array of
float64, ``sums``: for each of these columns the number of rows, and the measure's sums over them. A site that has too
few rows for a column says 0 rows, and zeros. If that is shorter, ``sums`` holds only the numbers that are not 0, and a
second array, int32 ``places``, where they belong.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedmm.core.engine import FederatedState
from fedmm.core.errors import Say
from fedmm.core.layout import Layout
from fedmm.core.metrics import Metric, values_by_column
from fedmm.core.problem import FederatedProblem, Statistics
from fedmm.engines.messages import Invitation
from fedmm.remote.packed import MEASURE, PROBLEM, Ask, Malformed, Packed, one_line
from fedmm.remote.packing import pack_invitation, read_invitation

SUMS, PLACES = "sums", "places"
_COLUMNS, _CLIENT, _ROUND = "columns", "client", "round"
_ENOUGH = 0.9
"""The share of the rows that must be in a measure for it to be told."""


class Summed(NamedTuple):
    """A measure's sums, float64 ``[k]``, over so many rows."""

    rows: int
    sums: Tensor

    @classmethod
    def of_none(cls, measure: Metric, classes: int) -> Summed:
        """The sums over no row."""
        return cls(0, torch.zeros(measure.count(classes), dtype=torch.float64))


SiteSums = Callable[[Sequence[str], Tensor, Statistics], Mapping[str, Summed]]
"""A site's sums for some columns, of a model with this point and these statistics, in that order."""


@dataclass(frozen=True)
class MetricRequest:
    """What sites are asked for.

    wanted: by site, the measures on rows of its own, by column. classes: of a prediction.
    most_rows: over which a site may sum.
    """

    wanted: Mapping[str, Mapping[str, Metric]]
    classes: int
    most_rows: int

    @cached_property
    def measures(self) -> dict[str, Metric]:
        """Everything that is measured at sites, by column."""
        return {column: measure for columns in self.wanted.values() for column, measure in columns.items()}


class SiteMetrics:
    """What the sites measure of the server's model, each on rows of its own; the server adds their sums.

    A column is told where the sites in it hold at least nine tenths of the rows that it would be measured on: a site
    that is silent, or refused, counts with the rows of its last answer, and one that has never answered forbids it.
    What compares sites (``by_site``) is told where all of them are in it. Sites with too few rows have none here.

    of_sites: after the last question, its round, and by column that was told, the sums of each site that has rows.
    say: is told what was measured; complain: whose answer is not counted.
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
        self.of_sites: tuple[int, dict[str, dict[str, Summed]]] = (0, {})

    def __call__(self, state: FederatedState) -> dict[str, Tensor]:
        """By column, what was measured of the server's model; the others are left out."""
        began = time.perf_counter()
        questions = {
            name: pack_question(self._problem, state, list(columns)) for name, columns in self._panel.wanted.items()
        }
        answers = self._ask(MEASURE, questions) if questions else {}
        heard: dict[str, dict[str, Summed]] = {}
        for name in questions:
            try:
                heard[name] = read_sums(self._panel, name, state.round, answers.get(name))
            except Malformed as problem:
                self._complain(f"round {state.round}: what {name} measured is not counted: {problem}")
        metrics, missing = dict[str, Tensor](), list[str]()
        self.of_sites = (state.round, {})
        for column, measure in self._panel.measures.items():
            total = self._total(column, measure, heard)
            if total is None:
                missing.append(column)
                continue
            parts = {name: sums[column] for name, sums in heard.items() if column in sums}
            self.of_sites[1][column] = {name: part for name, part in parts.items() if part.rows}
            for name, value in values_by_column(column, measure, total.sums, total.rows).items():
                if bool(value.isfinite()):
                    metrics[name] = value
                else:
                    self._complain(
                        f"round {state.round}: {name} is left out: the sums of the sites make {float(value)}"
                    )
        self._tell(state.round, questions, answers, list(heard), missing, time.perf_counter() - began)
        return metrics

    def _total(self, column: str, measure: Metric, heard: Mapping[str, Mapping[str, Summed]]) -> Summed | None:
        """The sums of all sites, in order of their names; None if too few rows are in them."""
        rows, silent, parts = 0, 0, list[Tensor]()
        for name in sorted(name for name, columns in self._panel.wanted.items() if column in columns):
            if name in heard:
                own = heard[name][column]
                self._rows[name, column] = own.rows
                rows += own.rows
                parts.append(own.sums)
            elif (name, column) in self._rows:
                silent += self._rows[name, column]
            else:
                return None
        by_site = getattr(measure, "by_site", False)
        if not rows or rows < (1.0 if by_site else _ENOUGH) * (rows + silent):
            return None
        return Summed(rows, torch.cat(parts) if by_site else sum(parts[1:], start=parts[0]))

    def _tell(
        self,
        round_: int,
        questions: Mapping[str, Packed],
        answers: Mapping[str, Packed],
        heard: Sequence[str],
        missing: Sequence[str],
        seconds: float,
    ) -> None:
        if not questions:
            return
        down, up = (
            sum(array.nbytes for packed in messages.values() for array in packed.arrays.values())
            for messages in (questions, answers)
        )
        lacking = f"; too few rows for {', '.join(missing)}" if missing else ""
        who = ", ".join(heard) or "nobody"
        self._say(f"round {round_}: measured by {who} in {seconds:.2f} s, {down} bytes down, {up} up{lacking}")


def pack_question(problem: FederatedProblem, state: FederatedState, columns: Sequence[str]) -> Packed:
    """The question for these columns, as it travels: it holds the server's model as it is after a round."""
    statistics = state.statistics if problem.share_statistics else {}
    packed = pack_invitation(problem.layout, Invitation(state.round, {"z": state.model}, statistics=statistics))
    return packed._replace(about={_ROUND: state.round, _COLUMNS: ",".join(columns)})


def measure_at_site(
    name: str, layout: Layout, own: Statistics, question: Packed, sums: SiteSums, say: Say = lambda line: None
) -> Packed:
    """A site's answer; it says what leaves. own: the statistics that the site begins with, where none are shared."""
    columns = question.about.get(_COLUMNS)
    if not isinstance(columns, str):
        raise Malformed("the server did not say what is to be measured")
    model = read_invitation(layout, question.arrays, {**question.about, "restoring": False})
    if model.sent.keys() != {"z"} or model.sent["z"].shape != (layout.size,):
        raise Malformed("the server sent no model to measure")
    statistics = model.statistics or own
    if _shapes(statistics) != _shapes(own):
        raise Malformed("the server sent running statistics that are not of this model")
    summed = sums(columns.split(","), model.sent["z"].to(layout.dtype), statistics)
    say(f"round {model.round}: {describe_sums(summed)}")
    parts = [torch.cat([part.sums.new_tensor([part.rows]), part.sums]).cpu() for part in summed.values()]
    return Packed(_shortest(torch.cat(parts).numpy()), {_CLIENT: name, _ROUND: model.round}, {})


def _shortest(sums: NDArray[np.float64]) -> dict[str, NDArray[Any]]:
    """The arrays that tell these numbers."""
    places = np.flatnonzero(sums).astype(np.int32)
    told = sums[places]
    return {SUMS: told, PLACES: places} if told.nbytes + places.nbytes < sums.nbytes else {SUMS: sums}


def _shapes(statistics: Statistics) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in statistics.items()}


def describe_sums(summed: Mapping[str, Summed]) -> str:
    """What leaves a site, in words: by column, how many numbers over how many rows."""
    words = [
        f"{column} ({len(part.sums)} over {part.rows} rows)" if part.rows else f"{column} (zeros: too few rows)"
        for column, part in summed.items()
    ]
    return f"leaves sums for {', '.join(words)}"


def read_sums(panel: MetricRequest, name: str, round_: int, answer: Packed | None) -> dict[str, Summed]:
    """A site's sums by column; whatever is not what was asked for is refused by a reason."""
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
    """What :func:`_shortest` told, so many numbers."""
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
