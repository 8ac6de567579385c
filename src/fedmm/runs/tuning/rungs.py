"""A tuning under way: rungs of candidates, each a sweep, until the finalists; all that is known is in ``tune.json``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from fedmm.config.schema import SOURCE_ONLY, Experiment
from fedmm.config.toml import write_toml
from fedmm.core.errors import Say, require
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
from fedmm.runs.tuning.halving import Budget, Pace, Rung, count_halvings, fit_rungs, plan_rungs, tell_left_out
from fedmm.runs.tuning.pace import pace_of, run_briefly, seconds_to_write
from fedmm.runs.tuning.rung_results import (
    Choice,
    Results,
    find_judged_rung,
    read_results,
    read_summary,
    tabulate,
)
from fedmm.runs.tuning.state import FORMAT, STATE, read_state
from fedmm.training.fingerprint import TRAINED_AND_CHOSEN_BY, same_data
from fedmm.training.stack_settings import START_SECONDS

TUNED, ADAPTED, TIMING = "tuned.toml", "adapted.toml", "pace"
_EVALUATIONS = 5
"""Of a run, at least: a collapse shows by comparing a run with its own past."""
_SHARE = 0.9
"""Of the time that is left, what is planned with."""
_PACE_RUNS, _PACE_ROUNDS = 8, 5
"""What is run to measure the pace: in a stack a run takes less than alone."""
_SHORT = "for lack of time"
"""How notes of what does not fit into the budget begin."""
_NAMED = 8
"""Candidates that a note names at most."""
_READ_AGAIN = 2.0
"""What follows the rounds of a rung, in units of what writing its runs takes: they are also read, and predict."""

Table = dict[str, Any]
Sweep = Callable[..., Summary]
"""Runs the experiments of a rung and leaves their folders, as :func:`fedmm.runs.sweep.run_sweep` does."""


def find_own(candidates: Mapping[str, Experiment]) -> Experiment:
    """The experiment as given."""
    return candidates[AS_GIVEN if AS_GIVEN in candidates else SOURCE_ONLY]


def evaluate_every(run: TrainOptions, rounds: int) -> int:
    """How often a run of so many rounds is evaluated in a rung."""
    return max(1, min(run.evaluate_every, rounds // _EVALUATIONS))


class Halving:
    """A tuning under way; ``state`` is what ``tune.json`` holds.

    sweep: what runs a rung, ``run_sweep`` by default. criterion: what judges, signals of a target by default.
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
        self.eta = eta
        self.budget = budget
        self.progress, self.say = progress, say
        self.run_sweep = sweep or run_sweep
        self.runs_elsewhere = sweep is not None
        self.cache = DataCache()
        free = len(candidates) - len(self.always)
        halvings = count_halvings(free, self.own.rounds, eta)
        self.plan = plan_rungs(free, self.own.rounds, halvings, eta, seeds)
        self.state: Table = {}

    def open(
        self,
        title: str,
        *,
        resume: bool,
        notes: Sequence[str] = (),
        fingerprint: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin in the folder, or go on with what a tuning of the same candidates left there.

        notes: to begin with. fingerprint: of the rows, where they are known here.
        """
        about = {
            "format": FORMAT,
            "eta": self.eta,
            "seeds": self.plan[-1].seeds,
            "candidates": {label: candidate.tables() for label, candidate in self.candidates.items()},
            **({"metric": self.criterion.metric, "signals": self.criterion.signals} if self.criterion.metric else {}),
        }
        path = self.folder / STATE
        if resume:
            self.state = read_state(path, self.criterion)
            same = {key: self.state.get(key) for key in about} == json.loads(json.dumps(about))
            require(
                same, f"the tuning in {self.folder} has other candidates or options; name another folder with --out"
            )
            before = self.state.get("fingerprint")
            require(
                fingerprint is None or before is None or same_data(before, fingerprint, TRAINED_AND_CHOSEN_BY),
                f"the data has changed since the tuning in {self.folder} began; bring the old data back, or name "
                "another folder with --out",
            )
            self.plan = [Rung(**rung) for rung in self.state["plan"]]
            if self.state["rungs"] and self.state["rungs"][-1]["status"] != "completed":
                self.state["rungs"].pop()
            self._restore_plan(len(self.state["rungs"]))
            if len(self.state["rungs"]) < len(self.plan):
                self.say(f"going on with rung {len(self.state['rungs']) + 1} of {len(self.plan)}")
            return
        self.state = {
            **about,
            "title": title,
            "status": "running",
            "rounds": self.own.rounds,
            "pace": None,
            "whole_plan": [asdict(rung) for rung in self.plan],
            "field": [label for label in self.candidates if label not in self.always],
            "notes": list(notes),
            "fingerprint": fingerprint,
            "rungs": [],
        }
        write_json(self.folder / SUMMARY, comparison_summary(title, "running", [], []))
        self._save()

    def _restore_plan(self, begun: int) -> None:
        """Plan the rungs from ``begun`` on again, if it was not started: what did not fit once may fit now.

        A rung that is no longer than the one before would tell nothing new. What is planned is saved before it is
        started, so that it is known however often it is killed.
        """
        whole = [Rung(**rung) for rung in self.state.get("whole_plan") or self.state["plan"]]
        past = self.state["rungs"][-1]["rounds"] if begun else 0
        left = [rung for rung in whole[begun:] or whole[-1:] if rung.rounds > past]
        if self._folder(begun).exists() or not left:
            return
        if begun:
            order = [label for label in self.state["rungs"][-1]["order"] if label not in self.always]
            go_on = -(-len(order) // self.eta)
            self.state["field"] = order[:go_on]
            for place, rung in enumerate(left):
                go_on = min(go_on, rung.candidates)
                left[place] = replace(rung, candidates=go_on)
                go_on = -(-go_on // self.eta)
        self.plan = [*self.plan[:begun], *left]
        again = (_short(begun), f"{_SHORT} the last") if begun else (_SHORT,)
        self.state["notes"] = [note for note in self.state["notes"] if not note.startswith(again)]
        self.state["status"] = "running"
        self._save()

    def run(self) -> None:
        """All rungs that are left, until the time is over."""
        begun = len(self.state["rungs"])
        if self.budget.limited and begun < len(self.plan) and not self._folder(begun).exists():
            if self.state["pace"] is None:
                self._measure_pace()
            if not self._fit(begun):
                return
        while len(self.state["rungs"]) < len(self.plan) and not self.budget.over():
            number = len(self.state["rungs"])
            rung = self._run_rung(number, self.plan[number])
            self.state["rungs"].append(rung)
            if rung["status"] != "completed":
                break
            order = [label for label in rung["order"] if label not in self.always]
            self.state["field"] = order
            if number + 1 < len(self.plan):
                if self.budget.limited and not self._fit(number + 1):
                    break
                self.state["field"] = order[: self.plan[number + 1].candidates]
                self.say(f"rung {number + 1}: {_outcome(rung, self.state['field'])}")
            self._save()

    def _run_rung(self, number: int, rung: Rung) -> Table:
        labels = [*self.always, *self.state["field"][: rung.candidates]]
        self.say(
            f"rung {number + 1} of {len(self.plan)}: {len(labels)} candidates, {rung.rounds} rounds, {rung.seeds} "
            f"seed(s){'' if number == 0 else ', from the start, since schedules depend on the number of rounds'}"
        )
        folder = self._folder(number)
        summary, names = self._sweep(labels, rung, folder)
        results = read_results(folder, names, self.criterion.signals)
        vetoes, ranks = self.criterion.judge(results.measured, self._classes())
        last = number + 1 == len(self.plan)
        agreement = measure_agreement(folder, names, self.candidates, self.cache) if last else {}
        return {
            "folder": folder.name,
            "rounds": rung.rounds,
            "judged_after": results.round,
            "status": "completed" if summary["status"] == "completed" else "out of time",
            "order": list(ranks),
            "entries": [
                {
                    "label": label,
                    "runs": names[label],
                    "signals": [dict(run.signals) for run in results.measured[label]],
                    "diverged": sum(run.diverged for run in results.measured[label]),
                    "rank": ranks[label],
                    "veto": vetoes.get(label, ""),
                    "agreement": agreement.get(label, {}),
                }
                for label in labels
            ],
            "label_shift": results.label_shift,
        }

    def _classes(self) -> int:
        return self.cache.pair(find_own(self.candidates), torch.device("cpu")).classes

    def _folder(self, number: int) -> Path:
        return self.folder / f"rung-{number + 1}"

    def _sweep(self, labels: Sequence[str], rung: Rung, folder: Path) -> tuple[Summary, dict[str, list[str]]]:
        """Run candidates as one sweep; its summary, and the folders of each candidate's runs."""
        fresh, before = not folder.exists(), self.budget.spent()
        pace = Pace(**self.state["pace"]) if self.state["pace"] else Pace(0.0, 0.0)
        everything = [self._in_rung(label, rung, seed) for label in labels for seed in range(rung.seeds)]
        kept_back = _READ_AGAIN * pace.per_run * len(everything)

        def out_of_time() -> bool:
            return self.budget.left() <= kept_back

        try:
            summary = self.run_sweep(
                everything,
                folder,
                title=self.state["title"],
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
        """A candidate's run: it ends with the rung and not earlier, and nobody watches it but us."""
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
                keep_rows=candidate.run.keep_rows and rung == self.plan[-1],
            ),
        )

    def pace_rounds(self) -> int:
        """Of every run whose rounds are timed."""
        return min(self.plan[0].rounds, _PACE_ROUNDS)

    def _measure_pace(self) -> None:
        """Time a few rounds of a few candidates, those that are always there among them."""
        self.say("measuring how long a round takes")
        rung = replace(self.plan[0], rounds=self.pace_rounds(), seeds=1)
        if self.runs_elsewhere:
            self._sweep(self.always, rung, self.folder / TIMING)
            return
        labels = [*self.always, *self.state["field"]][:_PACE_RUNS]
        before = self.budget.spent()
        runs, to_write = run_briefly([self._in_rung(label, rung, 0) for label in labels], self.cache, self.budget.over)
        self._keep_pace(runs, self.budget.spent() - before + START_SECONDS, to_write)

    def _keep_pace(self, runs: Sequence[Summary], seconds: float, to_write: float) -> None:
        if pace := pace_of(runs, seconds, to_write):
            self.state["pace"] = asdict(pace)

    def _fit(self, number: int) -> bool:
        """Cut what is left of the plan to what fits into the time; whether that is worth running.

        A rung that is no longer than the one before would tell nothing new, and stays as it was planned.
        """
        if self.state["pace"] is None:
            return True
        before, pace = self.plan[number:], Pace(**self.state["pace"])
        after = fit_rungs(before, self.eta, len(self.always), pace, _SHARE * max(0.0, self.budget.left()))
        if number and after[0].rounds <= self.plan[number - 1].rounds:
            self._note(f"{_short(number)} was not started")
            self._save()
            return False
        self.plan = [*self.plan[:number], *after]
        if after[0].candidates < before[0].candidates:
            left_out = self.state["field"][after[0].candidates : before[0].candidates]
            more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
            where = f"{_short(number)}:" if number else _SHORT
            self._note(f"{where} {tell_left_out(len(left_out))}: {', '.join(left_out[:_NAMED])}{more}")
        if after[-1].rounds < before[-1].rounds:
            self._note(f"{_SHORT} the last rung has {after[-1].rounds} of {before[-1].rounds} rounds")
        self._save()
        return True

    def _note(self, sentence: str) -> None:
        self.state["notes"].append(sentence)
        self.say(sentence)

    def _save(self) -> None:
        self.state["plan"] = [asdict(rung) for rung in self.plan]
        write_json(self.folder / STATE, self.state)

    def close(self) -> Choice:
        """The choice, and the files that tell it; the last rung that can be judged decides."""
        judged = find_judged_rung(self.state["rungs"])
        vetoes = {} if judged is None else {entry["label"]: entry["veto"] for entry in judged["entries"]}
        choice = self.criterion.choose(None if judged is None else Results.of(judged), vetoes)
        if judged is not None and judged["judged_after"] < self.own.rounds:
            after = f"Judged after {judged['judged_after']} of {self.own.rounds} rounds."
            choice = replace(choice, sentence=f"{choice.sentence} {after}")
        completed = sum(rung["status"] == "completed" for rung in self.state["rungs"])
        over = completed < len(self.plan)
        ended = f"the time was over in rung {completed + 1} of {len(self.plan)}; resume goes on" if over else ""
        self.state |= {
            "ended": ended,
            "status": "out of time" if over else "completed",
            "verdict": asdict(choice),
            "table": tabulate(self.state["rungs"], self.always, self.criterion.signals),
            "tuned": self.candidates[choice.label].tables(),
        }
        self._save()
        self._summarise(judged)
        self._write(TUNED, choice.label, choice.sentence)
        if choice.adapted and choice.adapted != choice.label:
            self._write(ADAPTED, choice.adapted, f"The best of those that adapt. {choice.sentence}")
        else:
            (self.folder / ADAPTED).unlink(missing_ok=True)
        return choice

    def _write(self, name: str, label: str, why: str) -> None:
        comment = f"# Written by fedmm tune: {label}.\n# {' '.join(why.split())}\n\n"
        with atomic_write(self.folder / name) as partial:
            partial.write_text(comment + write_toml(self.candidates[label].tables()), encoding="utf-8")

    def _summarise(self, judged: Table | None) -> None:
        """The folder as a comparison of the finalists, for reports."""
        runs = [] if judged is None else [f"{judged['folder']}/{run}" for e in judged["entries"] for run in e["runs"]]
        summaries = {run: summary for run in runs if (summary := read_summary(self.folder / run))}
        summary = comparison_summary(
            self.state["title"], self.state["status"], list(summaries.values()), list(summaries)
        )
        write_json(self.folder / SUMMARY, summary)


def _short(number: int) -> str:
    """How a note begins that says what of a later rung does not fit into the budget."""
    return f"{_SHORT} rung {number + 1}"


def _outcome(rung: Table, kept: Sequence[str]) -> str:
    vetoed = sum(bool(entry["veto"]) for entry in rung["entries"])
    return f"{len(kept)} go on beside those that always do, first {', '.join(kept[:3])}; {vetoed} had a veto"
