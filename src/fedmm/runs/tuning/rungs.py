"""Run a tuning: rungs of candidates, each a sweep, down to the finalists. ``tune.json`` holds its state."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import SOURCE_ONLY, Experiment
from fedmm.config.toml import write_toml
from fedmm.core.errors import Say, count_of, require
from fedmm.core.files import atomic_write, write_json
from fedmm.core.options import DEFAULT_VALIDATOR, TrainOptions
from fedmm.runs.build import DataCache
from fedmm.runs.comparison import comparison_summary, folder_names
from fedmm.runs.run_folder import SUMMARY
from fedmm.runs.summary import Summary
from fedmm.runs.sweep import DivergedRuns, run_sweep
from fedmm.runs.tuning.agreement import measure_agreement
from fedmm.runs.tuning.candidates import AS_GIVEN
from fedmm.runs.tuning.criteria import ByTarget, Criterion
from fedmm.runs.tuning.halving import Budget, Pace, Rung, count_pace_rounds, fit_rungs, plan_whole
from fedmm.runs.tuning.pace import pace_of, run_briefly, seconds_to_write
from fedmm.runs.tuning.rung_results import (
    Choice,
    Results,
    find_judged_rung,
    read_results,
    read_summary,
    tabulate,
)
from fedmm.runs.tuning.state import COMPLETED, OUT_OF_TIME, STATE, Entry, RungResult, TuningState, read_state
from fedmm.runs.tuning.time_notes import find_competing, list_planned, tell_cuts, tell_end, tell_rounds, tell_rung
from fedmm.training.fingerprint import TRAINED_AND_CHOSEN_BY, same_data
from fedmm.training.stack_settings import START_SECONDS

TUNED, ADAPTED, TIMING = "tuned.toml", "adapted.toml", "pace"
_EVALUATIONS = 5
"""The fewest evaluations of a run: a collapse shows only against the run's own past."""
_SHARE = 0.9
"""The share of the remaining time for which rungs are planned."""
_PACE_RUNS = 8
"""The most runs that measure the pace, as one stack: a run takes less time in a stack than alone."""
_READ_AGAIN = 2.0
"""The time after the rounds of a rung, as a multiple of writing its runs: they are also read, and predict."""

Sweep = Callable[..., Summary]
"""Runs the experiments of a rung and writes their folders, like :func:`fedmm.runs.sweep.run_sweep`."""


def find_own(candidates: Mapping[str, Experiment]) -> Experiment:
    """Return the experiment as given, which may itself be source only."""
    return candidates[AS_GIVEN if AS_GIVEN in candidates else SOURCE_ONLY]


def evaluate_every(run: TrainOptions, rounds: int) -> int:
    """Return the number of rounds between evaluations of a run of this length."""
    return max(1, min(run.evaluate_every, rounds // _EVALUATIONS))


class Halving:
    """A tuning in progress; ``state`` is the content of ``tune.json``.

    sweep: runs a rung, ``run_sweep`` by default. criterion: judges candidates, ``ByTarget`` by default.
    """

    def __init__(
        self,
        candidates: Mapping[str, Experiment],
        folder: Path,
        seeds: int,
        eta: int,
        budget: Budget,
        *,
        progress: bool,
        say: Say,
        sweep: Sweep | None = None,
        criterion: Criterion | None = None,
    ) -> None:
        self.candidates = candidates
        self.criterion = criterion or ByTarget()
        self.folder = folder
        self.own = find_own(candidates).run
        self.always = [label for label in self.criterion.always if label in candidates]
        self.budget = budget
        self.progress, self.say = progress, say
        self.run_sweep = sweep or run_sweep
        self.runs_elsewhere = sweep is not None
        self.cache = DataCache()
        self.notes: list[str] = []
        competing = [label for label in candidates if label not in self.always]
        self.state = TuningState(
            eta=eta,
            seeds=seeds,
            candidates=json.loads(json.dumps({label: candidate.tables() for label, candidate in candidates.items()})),
            metric=self.criterion.metric,
            signals=self.criterion.signals,
            rounds=self.own.rounds,
            plan=plan_whole(len(competing), self.own.rounds, eta, seeds),
            whole_plan=[],
            competing=competing,
        )

    def open(
        self,
        title: str,
        *,
        resume: bool,
        notes: Sequence[str] = (),
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        """Start in the folder, or continue a tuning of the same candidates there.

        notes: to show at the end. fingerprint: of the data, if it is known here.
        """
        self.notes = list(notes)
        if resume:
            self._go_on(fingerprint)
            return
        self.state = replace(self.state, title=title, fingerprint=fingerprint, whole_plan=list(self.state.plan))
        write_json(self.folder / SUMMARY, comparison_summary(title, "running", [], []))
        self._save()

    def _go_on(self, fingerprint: Mapping[str, Any] | None) -> None:
        asked = self.state
        before = read_state(self.folder / STATE, asked.metric, self.always)
        require(
            all(getattr(before, key) == getattr(asked, key) for key in ("eta", "seeds", "candidates", "metric")),
            f"the tuning in {self.folder} has other candidates or options; name another folder with --out",
        )
        known, now = before.fingerprint, fingerprint
        require(
            known is None or now is None or same_data(known, now, TRAINED_AND_CHOSEN_BY),
            f"the data has changed since the tuning in {self.folder} began; bring the old data back, or name "
            "another folder with --out",
        )
        self.state = before
        if before.rungs and before.rungs[-1].status != COMPLETED:
            before.rungs.pop()
        if before.all_diverged:
            return
        self._restore_plan()
        if len(before.rungs) < len(before.plan):
            self.say(f"continuing with rung {len(before.rungs) + 1} of {len(before.plan)}")

    def _restore_plan(self) -> None:
        """Restore the full plan of all rungs that have not started: what did not fit before may fit now.

        Rungs no longer than the last completed one are left out, since they would reveal nothing new. The plan is saved
        before any of it starts, so that it survives if the process is killed.
        """
        state, begun = self.state, len(self.state.rungs)
        past = state.rungs[-1].rounds if begun else 0
        left = [rung for rung in state.whole_plan[begun:] or state.whole_plan[-1:] if rung.rounds > past]
        if self._folder(begun).exists() or not left:
            return
        if begun:
            state.competing = list_planned(state, self.always, begun)
            go_on = len(state.competing)
            for place, rung in enumerate(left):
                go_on = min(go_on, rung.candidates)
                left[place] = replace(rung, candidates=go_on)
                go_on = -(-go_on // state.eta)
        state.plan = [*state.plan[:begun], *left]
        state.status = "running"
        self._save()

    def run(self) -> None:
        """Run all remaining rungs, until the time is over."""
        state, begun = self.state, len(self.state.rungs)
        if state.all_diverged:
            return
        if self.budget.limited and begun < len(state.plan) and not self._folder(begun).exists():
            if state.pace is None:
                self._measure_pace()
            if not self._fit(begun):
                return
        while len(state.rungs) < len(state.plan) and not self.budget.over():
            number = len(state.rungs)
            rung = self._run_rung(number, state.plan[number])
            state.rungs.append(rung)
            if rung.status != COMPLETED or state.all_diverged:
                break
            state.competing = find_competing(rung, self.always)
            if number + 1 < len(state.plan):
                if self.budget.limited and not self._fit(number + 1):
                    break
                state.competing = state.competing[: state.plan[number + 1].candidates]
                self.say(f"rung {number + 1}: {_outcome(rung, state.competing)}")
            self._save()

    def _run_rung(self, number: int, rung: Rung) -> RungResult:
        labels = [*self.always, *self.state.competing[: rung.candidates]]
        again = ", from the start, since schedules depend on the number of rounds" if number else ""
        self.say(
            f"rung {number + 1} of {len(self.state.plan)}: {len(labels)} candidates, {rung.rounds} rounds, "
            f"{count_of(rung.seeds, 'seed')}{again}"
        )
        folder = self._folder(number)
        summary, names = self._sweep(labels, rung, folder)
        results = read_results(folder, names, self.criterion.signals)
        vetoes, ranks = self.criterion.judge(results.measured, self._classes())
        last = number + 1 == len(self.state.plan)
        agreement = measure_agreement(folder, names, self.candidates, self.cache) if last else {}
        entries = [
            Entry(
                label,
                names[label],
                [dict(run.signals) for run in runs],
                sum(run.diverged for run in runs),
                ranks[label],
                vetoes.get(label, ""),
                agreement.get(label, {}),
            )
            for label, runs in results.measured.items()
        ]
        status = COMPLETED if summary["status"] == COMPLETED else OUT_OF_TIME
        return RungResult(folder.name, rung.rounds, results.round, status, list(ranks), entries, results.label_shift)

    def _classes(self) -> int:
        return self.cache.pair(find_own(self.candidates), torch.device("cpu")).classes

    def _folder(self, number: int) -> Path:
        return self.folder / f"rung-{number + 1}"

    def _sweep(self, labels: Sequence[str], rung: Rung, folder: Path) -> tuple[Summary, dict[str, list[str]]]:
        """Run candidates as one sweep; return its summary, and the folders of each candidate's runs."""
        fresh, before = not folder.exists(), self.budget.spent()
        pace = self.state.pace or Pace(0.0, 0.0)
        everything = [self._in_rung(label, rung, seed) for label in labels for seed in range(rung.seeds)]
        kept_back = _READ_AGAIN * pace.per_run * len(everything)

        def out_of_time() -> bool:
            return self.budget.left() <= kept_back

        try:
            summary = self.run_sweep(
                everything,
                folder,
                title=self.state.title,
                resume=True,
                progress=self.progress,
                stop=out_of_time,
                say=self.say,
                all_shifts=False,
            )
        except DivergedRuns as diverged:
            summary = diverged.summary
        if summary["status"] == "interrupted" and not out_of_time():
            raise KeyboardInterrupt
        names = folder_names(everything)
        if fresh:
            to_write = seconds_to_write([folder / name for name in names])
            self._keep_pace(summary["runs"], self.budget.spent() - before, to_write)
        return summary, {label: names[n * rung.seeds : (n + 1) * rung.seeds] for n, label in enumerate(labels)}

    def _in_rung(self, label: str, rung: Rung, seed: int) -> Experiment:
        """Return a candidate's run in a rung, without early stopping or trackers."""
        candidate = self.candidates[label]
        return replace(
            candidate,
            run=replace(
                candidate.run,
                label=label,
                rounds=rung.rounds,
                seed=self.own.seed + seed,
                evaluate_every=evaluate_every(candidate.run, rung.rounds),
                best_by=DEFAULT_VALIDATOR,
                stop_by="",
                track=(),
                keep_rows=candidate.run.keep_rows and rung == self.state.plan[-1],
            ),
        )

    def _measure_pace(self) -> None:
        """Time a few rounds of a few candidates, among them those in every rung."""
        self.say("measuring how long a round takes")
        rung = replace(self.state.plan[0], rounds=count_pace_rounds(self.state.plan), seeds=1)
        if self.runs_elsewhere:
            self._sweep(self.always, rung, self.folder / TIMING)
            return
        labels = [*self.always, *self.state.competing][:_PACE_RUNS]
        before = self.budget.spent()
        runs, to_write = run_briefly([self._in_rung(label, rung, 0) for label in labels], self.cache, self.budget.over)
        self._keep_pace(runs, self.budget.spent() - before + START_SECONDS, to_write)

    def _keep_pace(self, runs: Sequence[Summary], seconds: float, to_write: float) -> None:
        self.state.pace = pace_of(runs, seconds, to_write) or self.state.pace

    def _fit(self, number: int) -> bool:
        """Cut the rest of the plan to what fits into the time; return whether that is worth running.

        It is not if the next rung would be no longer than the one before; the plan then stays as it is.
        """
        state = self.state
        if state.pace is None:
            return True
        past = state.plan[number - 1].rounds if number else 0
        time = _SHARE * max(0.0, self.budget.left())
        if fitted := fit_rungs(state.plan[number:], state.eta, len(self.always), state.pace, time, past):
            state.plan[number:] = fitted
            for sentence in (*tell_rung(state, self.always, number), *tell_rounds(state)):
                if not self.budget.over():
                    self.say(sentence)
        self._save()
        return bool(fitted)

    def _save(self) -> None:
        self.state.write(self.folder / STATE)

    def close(self, notes: Sequence[str] = ()) -> Choice:
        """Choose by the last rung that can be judged, write the result to files, and return the choice.

        notes: further notes to show. If nothing could be trained, raise FedmmError after everything is written.
        """
        state = self.state
        judged = find_judged_rung(state.rungs)
        vetoes = {} if judged is None else {entry.label: entry.veto for entry in judged.entries}
        choice = self.criterion.choose(None if judged is None else Results.of(judged), vetoes)
        if choice.label and judged is not None and judged.judged_after < self.own.rounds:
            after = f"Judged after {judged.judged_after} of {self.own.rounds} rounds."
            choice = replace(choice, sentence=f"{choice.sentence} {after}")
        state.notes = [*self.notes, *state.remarks, *notes, *tell_cuts(state, self.always)]
        state.ended = tell_end(state)
        state.status = OUT_OF_TIME if state.ended else COMPLETED
        state.verdict = asdict(choice)
        state.table = tabulate(state.rungs, self.always, self.criterion.signals)
        state.tuned = self.candidates[choice.label].tables() if choice.label else None
        self._save()
        self._summarise(judged)
        adapted = choice.adapted if choice.adapted != choice.label else None
        self._write(TUNED, choice.label, choice.sentence)
        self._write(ADAPTED, adapted, f"The best of those that adapt. {choice.sentence}")
        require(bool(choice.label), f"{choice.sentence[:1].lower()}{choice.sentence[1:]}")
        return choice

    def _write(self, name: str, label: str | None, why: str) -> None:
        """Write a candidate to a file; without one, delete an older file."""
        if not label:
            (self.folder / name).unlink(missing_ok=True)
            return
        comment = f"# Written by fedmm tune: {label}.\n# {' '.join(why.split())}\n\n"
        with atomic_write(self.folder / name) as partial:
            partial.write_text(comment + write_toml(self.candidates[label].tables()), encoding="utf-8")

    def _summarise(self, judged: RungResult | None) -> None:
        """Write a summary of the folder as a comparison of the finalists, for reports."""
        runs = [] if judged is None else [f"{judged.folder}/{run}" for entry in judged.entries for run in entry.runs]
        summaries = {run: summary for run in runs if (summary := read_summary(self.folder / run))}
        summary = comparison_summary(self.state.title, self.state.status, list(summaries.values()), list(summaries))
        write_json(self.folder / SUMMARY, summary)


def _outcome(rung: RungResult, kept: Sequence[str]) -> str:
    vetoed = sum(bool(entry.veto) for entry in rung.entries)
    best = ", ".join(kept[:3])
    return f"{len(kept)} candidates advance besides those that always do, first {best}; {vetoed} were ruled out"
