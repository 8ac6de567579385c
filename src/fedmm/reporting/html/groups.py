"""The section on groups of people or other rows: the evaluations by group that lie in the folders of the runs."""

from __future__ import annotations

from pathlib import PurePath
from typing import NamedTuple

from fedmm.core.signals.groups import By
from fedmm.reporting.html.collect import Method, Report
from fedmm.reporting.html.grouped import Scored, build_score_parts, explain
from fedmm.reporting.html.parts import Controls, Part, Section, Text, absent, two_lines
from fedmm.reporting.scores import groups_by
from fedmm.reporting.tested import Evaluated


class EvaluatedMethod(NamedTuple):
    """An evaluation by group, with the method that it is of and the seed of its run."""

    number: int
    method: Method
    seed: int
    evaluation: Evaluated

    @property
    def words(self) -> str:
        """By which column of which data."""
        data = self.evaluation.data
        return f"{self.evaluation.scores.column} in {PurePath(data).name or data}"


def evaluated_groups(report: Report) -> list[EvaluatedMethod]:
    """All evaluations by group, of all methods and seeds."""
    return [
        EvaluatedMethod(number, method, entry.run.seed, evaluation)
        for number, method in enumerate(report.methods)
        for entry in method.entries
        for evaluation in entry.evaluations
    ]


def group_section(report: Report) -> Section:
    """Worst, mean and spread over groups, a dot with its interval for each, and a table, of each evaluation."""
    evaluated = evaluated_groups(report)
    broken = [sentence for entry in report.entries for sentence in entry.broken]
    parts: list[Part] = []
    if evaluated:
        by = groups_by(report.metric)
        scored = [_score_group(number, group, by) for number, group in enumerate(evaluated)]
        words = (
            "The model on groups of labelled rows, as fedmm evaluate --group wrote them into the folder of the run, "
            f"{explain('group', scored)}"
        )
        if any(group.evaluation.training_file for group in evaluated):
            words += " On a file that the run was trained on, scores look better than they are."
        controls = Controls([("evaluation", [(group.key, group.caption) for group in scored])])
        parts = [Text(words), *build_score_parts("group", scored, report, controls, [group.key for group in scored])]
    elif not broken:
        words = (
            "The folders of these runs contain no scores by group; fedmm evaluate RUN DATA --group COLUMN --out "
            "RUN/by_COLUMN.json puts them there."
        )
        parts = [absent(words)]
    return Section(
        "groups", "Groups", [*parts, *(absent(f"An evaluation is left out: {reason}.") for reason in broken)]
    )


def _score_group(number: int, evaluated: EvaluatedMethod, by: By) -> Scored:
    told, method = evaluated.evaluation, evaluated.method
    model = [told.label, f"round {told.round} ({told.checkpoint})"]
    model += [f"seed {evaluated.seed}"] if len(method.entries) > 1 else []
    model += [f"second class from probability {told.threshold:.4g} on"] if told.threshold is not None else []
    model += ["trained on rows of this file"] if told.training_file else []
    rows = two_lines(f"{evaluated.words}, {told.rows} rows", f"{', '.join(model)}; {told.file}")
    caption = f"groups by {evaluated.words}, {method.label} ({told.file})"
    return Scored(evaluated.number, str(number), rows, caption, told.scores.ordered(by))
