"""The first table of a report without a target: the scores by which the methods are judged."""

from __future__ import annotations

from collections.abc import Sequence

from fedmm.core.signals.validators import METRICS
from fedmm.reporting.html.chosen import choice_of
from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.html.headline import cost_cells, draw_dots, name_cells, spread, tell_rounds, tell_seeds
from fedmm.reporting.html.parts import HtmlTable, Part, Section, Text, two_lines
from fedmm.reporting.scores import TESTED, is_share, name_of

_MOST_TESTED = 2


def labelled_results(report: Report) -> Section:
    """Return the table and, if there are several methods, a dot for each run."""
    tested = [column for column in TESTED[report.metric] if report.measured(column)][:_MOST_TESTED]
    aside = [column for column in METRICS[report.metric][:1] if report.measured(column)]
    chose = any(choice_of(entry)[1] for entry in report.entries)
    last = tested[:1] if chose else []
    headings = [
        "method",
        "seeds",
        *([two_lines("chosen round", "on rows set aside")] if chose else []),
        *(two_lines(score_heading(column), "test rows") for column in tested),
        *(two_lines(score_heading(column), "last round") for column in last),
        *(two_lines(score_heading(column), "rows set aside") for column in aside),
        "rounds",
        "MB",
        "seconds",
    ]
    rows: list[list[object]] = []
    for (number, method), costs in zip(enumerate(report.methods), cost_cells(report), strict=True):
        choices = [choice_of(entry) for entry in method.entries]
        found = [choice for _, choice in choices if choice]
        rounds = tell_rounds(found, next((metric for metric, choice in choices if choice), "")) or "the last"
        rows.append(
            [
                *name_cells(number, method),
                *([rounds] if chose else []),
                *(score_cell(method.entries, column) for column in tested),
                *(score_cell(method.entries, column, last=True) for column in last),
                *(score_cell(method.entries, column) for column in aside),
                *costs,
            ]
        )
    words = f"There is no target: scores are on labelled rows that were not trained on, {tell_seeds(report)}."
    words += " They are of the chosen round, whose model fedmm predict uses, unless said otherwise." if chose else ""
    parts: list[Part] = [
        Text(words),
        HtmlTable(headings, rows, "what each method reached", class_="headline"),
    ]
    for column in [*tested, *aside][:1]:
        name = "accuracy of the worst site" if column.endswith("worst_accuracy") else name_of(column)
        reached = [[_score(entry, column) for entry in method.entries] for method in report.methods]
        where = f"on {'test rows' if tested else 'rows set aside'}{' in the chosen round' if chose else ''}"
        chart = draw_dots(report, name, where, reached)
        parts += [chart] if chart else []
    return Section("headline", "Results", parts)


def score_heading(column: str) -> str:
    """Return the name of a score with its unit."""
    return f"{name_of(column)} (%)" if is_share(column) else name_of(column)


def _score(entry: Entry, column: str, *, last: bool = False) -> float | None:
    """In the round that the run chose; in the last one if it chose none, or for ``last``."""
    rounds, values = entry.run.series(column)
    _, chosen = choice_of(entry)
    if last or chosen is None:
        return values[-1] if values else None
    return dict(zip(rounds, values, strict=True)).get(chosen.round)


def score_cell(entries: Sequence[Entry], column: str, *, last: bool = False) -> str:
    """Over the seeds of a method: in the round that each chose, else or for ``last`` in the last one."""
    return spread([_score(entry, column, last=last) for entry in entries], percent=is_share(column))


def tell_majority(report: Report) -> str:
    """Return a sentence on the accuracy of always predicting the most frequent class of the test rows."""
    for entry in report.entries:
        counts = entry.tensors.get("confusion_source")
        if counts is not None and counts.sum() > 0:
            rows = counts.sum(axis=1)
            most = int(rows.argmax())
            share = rows[most] / rows.sum()
            return f"Always predicting {entry.name_of(most)!r} would have an accuracy of {share:.1%}."
    return ""
