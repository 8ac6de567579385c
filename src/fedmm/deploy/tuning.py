"""``fedmm deploy run --tune`` at the server: candidates run over the sites, one after another.

Every candidate is a separate run with its own name, so that the sites' policies, states, audit logs and counts apply to
it as to any other run. Before the first one, each site is asked whether its limits leave room for all of them.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere, with_stand_in
from fedmm.core.engine import FederatedState
from fedmm.core.errors import Diverged, FedmmError, Say, count_of, require
from fedmm.core.files import write_json
from fedmm.core.metrics import MOST_COUNTS
from fedmm.core.signals.validators import VALIDATORS
from fedmm.data.inputs import TableInput
from fedmm.deploy.agree_tables import ENCODING_FILE, agree_on_encoding, has_tables, read_encoding
from fedmm.deploy.layout import TUNING, RunRequest, TuneRequest
from fedmm.deploy.run_state import run_lock, server_log
from fedmm.deploy.server import introduce_run, keep_every_round, open_roster, run_over_sites
from fedmm.remote.flower.apps import Grid
from fedmm.remote.packed import TUNING_QUESTIONS, TUNING_ROUNDS, Malformed, Packed
from fedmm.runs.build import DataCache, prepare
from fedmm.runs.comparison import comparison_summary, folder_names
from fedmm.runs.run_folder import ROUNDS, SUMMARY, claim_folder
from fedmm.runs.summary import Summary
from fedmm.runs.tuning.candidates import TUNE
from fedmm.runs.tuning.criteria import Criterion, notes_on_rows, require_measured
from fedmm.runs.tuning.halving import Budget, Pace, Rung, count_pace_rounds, fit_rungs, plan_whole, tell_left_out
from fedmm.runs.tuning.rung_results import Choice, read_summary
from fedmm.runs.tuning.rungs import Halving, evaluate_every, find_own
from fedmm.runs.tuning.state import STATE
from fedmm.runs.tuning.tune import plan_tuning, require_limits
from fedmm.sites.experiments import deployed_experiment, experiment_text, listed_sites
from fedmm.sites.site_info import keeps_rows
from fedmm.training.callbacks import Callback
from fedmm.training.checkpoints import FOLDER as CHECKPOINTS
from fedmm.training.history import History, Row

_AWAY = ("it did not answer", "its process ended")
"""The beginnings of refusals by sites that are away and may be back in the next round."""
_SPENT = ("policy.max_rounds", "policy.max_questions")
"""The limits named in refusals by sites that will not answer any further run."""
_PAUSE, _SAY_EVERY = 0.5, 30.0
_ROUNDS_ARE_SECONDS = Pace(1.0, 0.0)
_LONGEST_NAME = 80


def plan_deployed(request: TuneRequest) -> tuple[dict[str, Experiment], Criterion]:
    """Return the candidates of ``fedmm tune`` for an experiment whose rows are at sites, and their criterion."""
    given = deployed_experiment({section: table for section, table in request.tables.items() if section != TUNE})
    candidates, criterion = plan_tuning(with_stand_in(request.tables), given, request.objectives, request.metric)
    elsewhere = isinstance(given.data, RowsElsewhere)
    if elsewhere:
        candidates = {label: replace(candidate, data=given.data) for label, candidate in candidates.items()}
    return candidates, criterion


def check_tuning(request: TuneRequest, name: str, min_sites: int) -> Experiment:
    """Return the experiment as given; refuse what cannot be tuned before anything is submitted."""
    require(
        len(name) <= _LONGEST_NAME,
        f"the name of a tuning must have at most {_LONGEST_NAME} characters, not {len(name)}",
    )
    require(
        min_sites == 0,
        "a tuning compares candidates on the same sites, so it needs all of them; leave --min-sites out",
    )
    require_limits(request.seeds, request.minutes, request.eta)
    most = request.max_rounds
    require(most is None or most >= 1, f"--max-rounds must be at least 1, not {most}")
    candidates, criterion = plan_deployed(request)
    given = find_own(candidates)
    if criterion.metric and not isinstance(given.data, RowsElsewhere):
        cache = DataCache()
        require_measured(criterion, prepare(given, cache).measures, cache.pair(given, torch.device("cpu")))
    always = [label for label in criterion.always if label in candidates]
    plan = plan_whole(len(candidates) - len(always), given.run.rounds, request.eta, request.seeds)
    fit_to_rounds(plan, request.eta, always, _count_pace(request, plan, always), request.max_rounds)
    return given


def fit_to_rounds(
    plan: Sequence[Rung], eta: int, always: Sequence[str], pace_rounds: int, most: int | None
) -> tuple[list[Rung], str]:
    """Return the rungs cut to the rounds that a site may be asked for, and what was left out, in words.

    always: the candidates in every rung. pace_rounds: the rounds asked for before the first rung.
    """
    if most is None:
        return list(plan), ""
    fitted = fit_rungs(plan, eta, len(always), _ROUNDS_ARE_SECONDS, most - pace_rounds)
    rounds = pace_rounds + _count_rounds(fitted, always)
    require(
        rounds <= most,
        f"--max-rounds {most} is too few: {' and '.join(always)} and one more candidate take {rounds} rounds with "
        f"{count_of(fitted[-1].seeds, 'seed')} even if each has one round",
    )
    left_out = plan[0].candidates - fitted[0].candidates
    shorter = fitted[-1].rounds < plan[-1].rounds
    last = f", and the last rung has {fitted[-1].rounds} rounds, not {plan[-1].rounds}" if shorter else ""
    return fitted, f"to keep to {most} rounds {tell_left_out(left_out)}{last}" if left_out or shorter else ""


def _count_pace(request: TuneRequest, plan: Sequence[Rung], always: Sequence[str]) -> int:
    """Return the rounds that a site is asked for just to time them, if the time is limited."""
    return 0 if request.minutes is None else len(always) * count_pace_rounds(plan)


def _count_rounds(plan: Sequence[Rung], always: Sequence[str]) -> int:
    """Return the rounds that rungs ask of every site."""
    return sum(_runs(rung, len(always)) * rung.rounds for rung in plan)


def serve_tuning(grid: Grid, served: RunRequest) -> None:
    """Run a tuning over a grid, in the folder ``runs/NAME/tuning`` of the federation."""
    with server_log(served.folder) as say, run_lock(served.folder):
        SiteTuning(grid, served, say).run()


class SiteTuning:
    """A tuning whose rungs run over the sites."""

    def __init__(self, grid: Grid, served: RunRequest, say: Say) -> None:
        self.request = TuneRequest.read(served.tuning)
        self._grid, self._served, self._say = grid, served, say
        candidates, self._criterion = plan_deployed(self.request)
        minutes = self.request.minutes
        self.halving = Halving(
            candidates,
            served.folder / TUNING,
            self.request.seeds,
            self.request.eta,
            Budget(None if minutes is None else 60.0 * minutes),
            progress=False,
            say=say,
            sweep=self._run_rung,
            criterion=self._criterion,
        )
        self._own = find_own(candidates)
        self._agreed = self._rows_aside = False
        self._encoding: TableInput | None = None

    def run(self) -> None:
        """Run the whole tuning, or what is left of it."""
        with claim_folder(self.halving.folder, STATE, resume=self._served.resume) as resume:
            choice = self._run_rungs(resume)
        self._say(choice.sentence)
        self._say(f"tuning {self.halving.state.status}; everything is in {self.halving.folder}")

    def _run_rungs(self, resume: bool) -> Choice:
        halving, asked, most = self.halving, self.request, self.request.max_rounds
        pace = _count_pace(asked, halving.state.plan, halving.always)
        halving.state.plan, note = fit_to_rounds(halving.state.plan, asked.eta, halving.always, pace, most)
        if not resume and not halving.budget.limited:
            self._agree(*self._count_left())
            self._agreed = True
        rows = (
            [] if isinstance(self._own.data, RowsElsewhere) else notes_on_rows(self._criterion, self._own.data.load())
        )
        halving.open(self._served.name, resume=resume, notes=rows)
        notes = [*filter(None, [note, self._leave_out_rungs(pace)])]
        for each in notes:
            self._say(each)
        halving.run()
        return halving.close(notes)

    def _leave_out_rungs(self, pace_rounds: int) -> str:
        """Drop the last rungs while sites would be asked for more than ``max_rounds``; return which, in words.

        A tuning that was cut to fit its time plans its remaining rungs anew when it is resumed, possibly beyond the
        rounds counted at first; a rung that has started was counted then.
        """
        plan, done, most = self.halving.state.plan, len(self.halving.state.rungs), self.request.max_rounds
        planned = len(plan)
        while most is not None and len(plan) > done and pace_rounds + _count_rounds(plan, self.halving.always) > most:
            plan.pop()
        return "" if len(plan) == planned else f"to keep to {most} rounds rung {len(plan) + 1} was not started"

    # Rounds and questions ---------------------------------------------------------------------------------------------

    def _count_left(self) -> tuple[int, int]:
        """Return the most rounds and questions that every site will still be asked for."""
        halving, plan = self.halving, self.halving.state.plan
        done = len(halving.state.rungs)
        counted = [self._count(rung, _runs(rung, len(halving.always))) for rung in plan[done:]]
        answered = [len(path.read_bytes().splitlines()) for path in halving.folder.glob(f"rung-{done + 1}/*/{ROUNDS}")]
        ended = [self._count(replace(plan[done], rounds=rounds), 1) for rounds in answered]
        rounds, questions = (sum(counts[i] for counts in counted) - sum(counts[i] for counts in ended) for i in (0, 1))
        return rounds, questions + 1 + has_tables(self._own)

    def _count(self, rung: Rung, runs: int) -> tuple[int, int]:
        """Return the rounds and questions of this many runs; with ``participation`` below 1, the expected ones."""
        asked = math.ceil(rung.rounds * self._own.terms.participation)
        every = min(evaluate_every(candidate.run, rung.rounds) for candidate in self.halving.candidates.values())
        per_round = 3 if self._own.terms.secure_sum else 1
        data = self._own.data
        in_bins = isinstance(data, RowsElsewhere) and len(data.classes) == 2  # may be asked for again in finer bins
        per_evaluation = MOST_COUNTS if in_bins else 1
        return runs * asked, runs * (1 + per_round * asked + per_evaluation * math.ceil(rung.rounds / every))

    def _agree(self, rounds: int, questions: int) -> None:
        """Ask every site whether its owner's limits leave room; refuse the tuning if those of one do not."""
        served, listed = self._served, list(listed_sites(self._own))
        self._say(f"asking {', '.join(listed)} for at most {rounds} rounds and {questions} questions each")
        roster = open_roster(self._grid, served, listed, self._say)
        roster.admit = self._note_rows
        text = experiment_text(keep_every_round(self._own))
        introduction = introduce_run(served.name, text)
        room = {TUNING_ROUNDS: rounds, TUNING_QUESTIONS: questions}
        question = introduction._replace(about={**introduction.about, **room})
        deadline = time.monotonic() + served.enrol_seconds
        while roster.missing:
            roster.ask_strangers(self._grid, question)
            roster.hear_strangers(self._grid)
            refused = [reason for name, reason in roster.refused.items() if name in roster.missing]
            limited = any(words in reason for words in _SPENT for reason in refused)
            advice = "; ask for more, or start a tuning of fewer rounds with --max-rounds" if limited else ""
            require(not refused, f"the tuning cannot start: {'; '.join(refused)}{advice}")
            if roster.missing:
                require(
                    time.monotonic() < deadline,
                    f"{', '.join(roster.missing)} did not come within {served.enrol_seconds:g} seconds; a tuning "
                    "compares candidates on the same sites, so it needs all of them",
                )
                time.sleep(_PAUSE)
        require(
            self._rows_aside or not (self._criterion.metric and isinstance(self._own.data, RowsElsewhere)),
            f"the tuning cannot start: the metric {self._criterion.metric} is judged by labelled rows that sites keep "
            "from training, and none keeps any; set data.validation_rows in the files of the sites",
        )
        if has_tables(self._own) and self._encoding is None:
            self._encoding = read_encoding(served.folder) or agree_on_encoding(
                self._grid, roster, self._own, introduction, served, self._say
            )

    def _note_rows(self, name: str, packed: Packed) -> str:
        """Note whether a site keeps rows to measure on; return why its answer cannot be read, empty if it can."""
        try:
            self._rows_aside |= keeps_rows(packed)
        except Malformed as problem:
            return str(problem)
        return ""

    # Runs -------------------------------------------------------------------------------------------------------------

    def _run_rung(self, experiments: Sequence[Experiment], folder: Path, *, title: str, **options: Any) -> Summary:
        """Run the runs of a rung one after another, in place of a sweep; skip those that are finished."""
        if not folder.name.startswith("rung-"):  # only timing a round
            one = Rung(experiments[0].run.rounds, 0, 1)
            self._agree(*self._count(one, len(experiments)))
        elif not self._agreed:
            self._agree(*self._count_left())
            self._agreed = True
        names, status = folder_names(experiments), "completed"
        summaries: dict[str, Summary] = {}
        for number, (experiment, name) in enumerate(zip(experiments, names, strict=True), start=1):
            summary = _read_finished(folder / name)
            if summary is None and not self.halving.budget.over():
                place = (
                    f"{folder.name}, run {number} of {len(names)}: {experiment.run.label}, seed {experiment.run.seed}"
                )
                summary = self._run(experiment, folder / name, f"{self._served.name}.{folder.name}.{number}", place)
            if summary is None or summary["status"] == "interrupted":
                status = "interrupted"
                break
            summaries[name] = summary
        whole = comparison_summary(title, status, list(summaries.values()), list(summaries))
        write_json(folder / SUMMARY, whole)
        return whole

    def _run(self, experiment: Experiment, folder: Path, name: str, place: str) -> Summary:
        began = time.monotonic()
        text = experiment_text(keep_every_round(experiment))
        request = _CandidateRun(**{**vars(self._served), "name": name, "experiment": text, "resume": True}, at=folder)
        judged_by = VALIDATORS[self._criterion.signals[0]]
        watch = _Watch(place, experiment.run.rounds, self.halving.budget, self._say, judged_by.column)
        if self._encoding is not None:
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(self._served.folder / ENCODING_FILE, folder / ENCODING_FILE)
        with server_log(folder) as say, run_lock(folder):
            summary, error = run_over_sites(self._grid, request, say, watching=[watch], encoding=self._encoding)
        if error:
            self.halving.state.remarks.append(f"{place}: {error.reason}")
        elif summary["status"] == "completed" and not watch.measured:
            shutil.rmtree(folder)
            raise FedmmError(
                f"{place}: the sites did not measure {judged_by.name} after its last round, so it cannot be judged and "
                f"is run again; is one of them away, or has none {judged_by.needs}? `fedmm deploy resume "
                f"{self._served.name}` continues it"
            )
        seconds = time.monotonic() - began
        why = f" ({error.reason})" if error else ""
        self._say(f"{place}: {summary['status']}{why}, {summary['rounds']} rounds in {seconds:.0f} s{self._estimate()}")
        if summary["status"] != "interrupted":
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
            summary |= {"seconds": seconds}  # with evaluations and transfers, to plan by
            write_json(folder / SUMMARY, summary)
        return summary

    def _estimate(self) -> str:
        """Say how long the rest will take, if that can be estimated."""
        pace = self.halving.state.pace
        if pace is None or not self._agreed:
            return ""
        rounds, _ = self._count_left()
        return f"; about {max(1, round(rounds * pace.per_round / 60.0))} min left"


@dataclass(frozen=True)
class _CandidateRun(RunRequest):
    """A run of a tuning, with its folder inside the tuning's."""

    at: Path = Path()

    @property
    def folder(self) -> Path:
        return self.at


class _Watch(Callback):
    """Reports a run's progress, ends it when the time is over, and gives up a candidate that a site refuses.

    measured: whether the last round has the metric that judges the candidate.
    """

    def __init__(self, place: str, rounds: int, budget: Budget, say: Say, judged_by: str) -> None:
        self._judged_by = judged_by
        self._place, self._rounds, self._budget, self._say = place, rounds, budget, say
        self._told = time.monotonic()
        self._refusals: Mapping[int, Sequence[Any]] = {}
        self.measured = False

    def begin(self, state: FederatedState, history: History) -> None:
        self._refusals = history.refusals

    def wants_state(self, round_: int) -> bool:
        return False

    def after_round(self, state: FederatedState | None, row: Row) -> None:
        number = int(row["round"] or 0)
        self.measured = row.get(self._judged_by) is not None
        for site, reason in self._refusals.get(number, ()):
            require(
                not any(words in reason for words in _SPENT),
                f"{self._place}: {site} no longer answers: {reason}; what is finished stays",
            )
            if not reason.startswith(_AWAY):
                raise Diverged(site, number, f"{site} does not take part in it: {reason}")
            self._say(f"{self._place}: round {number} is without {site}: {reason}")
        if self._budget.over():
            raise KeyboardInterrupt
        if time.monotonic() - self._told > _SAY_EVERY:
            self._told = time.monotonic()
            self._say(f"{self._place}: round {number} of {self._rounds}")


def _runs(rung: Rung, always: int) -> int:
    return rung.seeds * (rung.candidates + always)


def _read_finished(folder: Path) -> Summary | None:
    """Return the summary of a run that completed or diverged, otherwise None."""
    summary = read_summary(folder)
    return summary if summary.get("status") in ("completed", "diverged") else None
