"""How candidates of a tuning are judged: by signals without target labels, or on labelled rows that are set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Protocol

from fedmm.config.schema import SOURCE_ONLY, Experiment
from fedmm.core.errors import require
from fedmm.core.signals.validators import METRICS, VALIDATORS, metric_trained_for
from fedmm.core.validation import one_of
from fedmm.data.domains import DomainPair
from fedmm.runs.tuning.candidates import ALWAYS, AS_GIVEN, PLAIN
from fedmm.runs.tuning.ranking import RANKED_BY, Field, Measured, find_unmeasured, find_vetoes, rank_candidates
from fedmm.runs.tuning.rung_results import Choice, Results, choose_finalist, nothing_trained

_SAME_ROWS = (
    "the choice was made on the test rows, so the test flatters it; data.validation_share keeps other rows for choosing"
)
_NO_ROWS = (
    "no labelled source rows are set aside, so there is no source_risk, which rules out candidates that have unlearned "
    "the source; without it, source only does not win by better agreement alone"
)
_ONE_SITE = "only one site has rows to choose by, so the metric worst_site is no more than the accuracy there"
_OWN = "the experiment as given"


class Criterion(Protocol):
    """How the candidates of a tuning are judged.

    metric: one of ``METRICS``; empty with a target. signals: the validators that are read; a round counts if it
    measured the first. always: the candidates that reach the last rung whatever they measure.
    """

    @property
    def metric(self) -> str: ...

    @property
    def signals(self) -> tuple[str, ...]: ...

    @property
    def always(self) -> tuple[str, ...]: ...

    def judge(self, candidates: Field, classes: int) -> tuple[dict[str, str], dict[str, float]]:
        """Return why candidates may not win, by label, and the ranks of all by label, the best (lowest) first."""

    def choose(self, results: Results | None, vetoes: Mapping[str, str]) -> Choice:
        """Choose the finalist that wins. vetoes: why candidates may not, by label; empty if they may."""


@dataclass(frozen=True)
class ByTarget:
    """Signals that need no target labels, and whether adapting can be expected to help."""

    metric: ClassVar[str] = ""
    signals: ClassVar[tuple[str, ...]] = RANKED_BY
    always: ClassVar[tuple[str, ...]] = ALWAYS

    def judge(self, candidates: Field, classes: int) -> tuple[dict[str, str], dict[str, float]]:
        vetoes = find_vetoes(candidates, SOURCE_ONLY, classes)
        return vetoes, rank_candidates(candidates, vetoes)

    def choose(self, results: Results | None, vetoes: Mapping[str, str]) -> Choice:
        return choose_finalist(results, vetoes)


@dataclass(frozen=True)
class ByValidation:
    """The mean over seeds of a metric on labelled rows that are not trained on.

    metric: one of ``METRICS``. Its first validator decides, the next ones break ties, and candidates that are still
    even keep their order.
    """

    metric: str
    always: ClassVar[tuple[str, ...]] = (AS_GIVEN, PLAIN)

    @property
    def signals(self) -> tuple[str, ...]:
        return METRICS[self.metric]

    def judge(self, candidates: Field, classes: int) -> tuple[dict[str, str], dict[str, float]]:
        vetoes = find_unmeasured(candidates)
        free = sorted(
            (label for label in candidates if label not in vetoes), key=lambda name: self._key(candidates[name])
        )
        return vetoes, {label: float(place) for place, label in enumerate([*free, *vetoes], start=1)}

    def _key(self, runs: Sequence[Measured]) -> tuple[float, ...]:
        """Return the sort key of runs, the best first: means over seeds; a signal that a run lacks counts as worst."""
        found = []
        for name in self.signals:
            values = _values(runs, name)
            sign = -1.0 if VALIDATORS[name].higher else 1.0
            found.append(sign * fmean(values) if len(values) == len(runs) else float("inf"))
        return tuple(found)

    def choose(self, results: Results | None, vetoes: Mapping[str, str]) -> Choice:
        stays = f"{_OWN} stays"
        if results is None:
            return Choice(AS_GIVEN, None, None, f"The time was over before anything could be judged; {stays}.")
        ruled_out = {label for label, why in vetoes.items() if why}
        free = {label: runs for label, runs in results.measured.items() if label not in ruled_out}
        if not free and any(run.diverged for run in results.measured[AS_GIVEN]):
            return nothing_trained(results)
        if not free:
            why = f"{next(iter(vetoes))}: {next(iter(vetoes.values()))}"
            return Choice(AS_GIVEN, None, None, f"No candidate can be judged ({why}); {stays}.")
        best, *others = self.judge(free, 0)[1]
        score = self.tell(free[best])
        among = f"the best of {len(free)} finalists on rows set aside"
        if best == AS_GIVEN:
            beside = f"; the next is {others[0]}, {self.compare(free, others[0], best)}" if others else ""
            return Choice(best, None, None, f"Keep {_OWN}: {score}, {among}{beside}.")
        own = self.compare(free, best, AS_GIVEN, _OWN) if AS_GIVEN in free else f"of {_OWN}, {vetoes[AS_GIVEN]}"
        return Choice(best, None, None, f"Use {best}: {score}, {among}; {own}.")

    def tell(self, runs: Sequence[Measured]) -> str:
        """Return the deciding signal and its values in these runs, one per seed, in words."""
        return f"{self.signals[0]} {_told(_values(runs, self.signals[0]))}"

    def compare(self, field: Field, one: str, other: str, whose: str = "") -> str:
        """Say how far ``one`` is from ``other`` in the first signal that differs. whose: how to name ``other``."""
        for place, name in enumerate(self.signals):
            mine, its = (_values(field[label], name) for label in (one, other))
            if not mine or not its or fmean(mine) == fmean(its):
                continue
            difference = fmean(mine) - fmean(its)
            before = f"even in {self.signals[0]}, and by {name} " if place else ""
            word = "above" if difference > 0 else "below"
            its_own = f" the {_told(its)} of {whose}" if whose else ""
            return f"{before}{abs(difference):.2g} {word}{its_own}{_doubt(mine, its)}"
        return "even in everything that was measured"


def _values(runs: Sequence[Measured], name: str) -> list[float]:
    return [run.signals[name] for run in runs if name in run.signals]


def _told(values: Sequence[float]) -> str:
    spread = f" ({min(values):.3f} to {max(values):.3f} over {len(values)} seeds)" if len(values) > 1 else ""
    return f"{fmean(values):.3f}{spread}"


def _doubt(mine: Sequence[float], its: Sequence[float]) -> str:
    if min(len(mine), len(its)) < 2:
        return ", which one seed cannot distinguish from chance"
    apart = min(mine) > max(its) or max(mine) < min(its)
    return "" if apart else "; the seeds overlap, so it may be chance"


def metric_of(own: Experiment, given: str) -> str:
    """Return which of ``METRICS`` judges an experiment: as given, or by its objective, algorithm or ``best_by``."""
    if given:
        one_of("--metric", given, tuple(METRICS))
        return given
    return metric_trained_for(own.objective.name, own.run.best_by, weighs_clients=own.algorithm.weighs_clients)


def notes_on_rows(criterion: Criterion, pair: DomainPair) -> list[str]:
    """Return notes on the rows that candidates are judged on: they are test rows, of one site alone, or missing."""
    if not criterion.metric:
        return [] if pair.source_validation is not None else [_NO_ROWS]
    notes = [_SAME_ROWS] if pair.source_validation is pair.source_test else []
    if criterion.metric == "worst_site" and pair.sites is not None and pair.sites.source_validation is not None:
        known = set(pair.sites.source_validation.tolist()) - {-1}
        notes += [_ONE_SITE] if len(known) == 1 else []
    return notes


def require_measured(criterion: Criterion, measured: Sequence[str], pair: DomainPair) -> None:
    """Refuse a metric that the runs would not measure, or could not."""
    if not criterion.metric:
        return
    name = criterion.signals[0]
    require(
        VALIDATORS[name].column in measured,
        f"the metric {criterion.metric} is judged by {name}, which needs {VALIDATORS[name].needs}",
    )
    rows = pair.source_validation
    if criterion.metric != "auc" or rows is None:
        return
    for number, label in enumerate(pair.class_names):
        require(
            bool((rows.y == number).any()),
            f"the metric auc is judged by {name}, which needs rows of both classes to choose by, and there is none of "
            f"{label!r}; add rows of it, set aside a larger share, or judge by --metric accuracy",
        )
