"""By what candidates of a tuning are judged: signals without target labels, or labelled rows that are set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Protocol

from fedmm.config.schema import SOURCE_ONLY, Experiment
from fedmm.core.errors import require
from fedmm.core.signals.validators import METRICS, VALIDATORS
from fedmm.core.validation import one_of
from fedmm.data.domains import DomainPair
from fedmm.objectives import AUC
from fedmm.runs.tuning.candidates import ALWAYS, AS_GIVEN, PLAIN
from fedmm.runs.tuning.ranking import RANKED_BY, Field, Measured, find_unmeasured, find_vetoes, rank_candidates
from fedmm.runs.tuning.rung_results import Choice, Results, choose_finalist, nothing_trained

_SAME_ROWS = (
    "the choice was made on the test rows, so the test flatters it; data.validation_share keeps other rows for choosing"
)
_NO_ROWS = (
    "no labelled source rows are set aside, so there is no source_risk, which rules out candidates that have unlearned "
    "the source, and without which better agreement alone does not make source only win"
)
_ONE_SITE = "only one site has rows to choose by, so the metric worst_site is no more than the accuracy there"
_OWN = "the experiment as given"


class Criterion(Protocol):
    """How the candidates of a tuning are judged.

    metric: of ``METRICS``; empty if a target is adapted to. signals: the validators that are read; a round counts
    where the first is measured. always: the candidates that reach the last rung whatever is measured of them.
    """

    @property
    def metric(self) -> str: ...

    @property
    def signals(self) -> tuple[str, ...]: ...

    @property
    def always(self) -> tuple[str, ...]: ...

    def judge(self, candidates: Field, classes: int) -> tuple[dict[str, str], dict[str, float]]:
        """Why candidates may not win, by label, and the rank of each, 1 for the best, in the order of rank."""

    def choose(self, results: Results | None, vetoes: Mapping[str, str]) -> Choice:
        """The finalist that wins; vetoes: by label, empty if there is none."""


@dataclass(frozen=True)
class ByTarget:
    """Signals on the target's rows without labels, and whether adapting may be believed to help."""

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
    """The mean over seeds of what is measured on labelled rows that are neither trained on nor tested.

    metric: of ``METRICS``, whose first validator decides; where two are even, the next does, and else the first of them
    stays first.
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
        """The means over seeds by which runs are sorted, the best first; what is not measured counts least."""
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
        """What decides, and what it is of some runs, one a seed."""
        return f"{self.signals[0]} {_told(_values(runs, self.signals[0]))}"

    def compare(self, field: Field, one: str, other: str, whose: str = "") -> str:
        """How far a candidate is from another, in the first signal in which they differ; whose: names the other."""
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
    """By which of ``METRICS`` an experiment without a target is judged: as given, or by what it trains for or keeps."""
    if given:
        one_of("--metric", given, tuple(METRICS))
        return given
    if isinstance(own.objective, AUC):
        return "auc"
    if own.algorithm.weighs_clients:
        return "worst_site"
    return next((metric for metric, signals in METRICS.items() if own.run.best_by in signals), "accuracy")


def notes_on_rows(criterion: Criterion, pair: DomainPair) -> list[str]:
    """What is to be said of the rows that are judged by: they are those to test on, of one site alone, or missing."""
    if not criterion.metric:
        return [] if pair.source_validation is not None else [_NO_ROWS]
    notes = [_SAME_ROWS] if pair.source_validation is pair.source_test else []
    if criterion.metric == "worst_site" and pair.sites is not None and pair.sites.source_validation is not None:
        known = set(pair.sites.source_validation.tolist()) - {-1}
        notes += [_ONE_SITE] if len(known) == 1 else []
    return notes


def require_measured(criterion: Criterion, measured: Sequence[str], pair: DomainPair) -> None:
    """Refuse to judge by what the runs would not measure, or could not."""
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
