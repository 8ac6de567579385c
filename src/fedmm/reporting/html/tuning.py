"""The section on a tuning: what was tried, how far each candidate came, and why the chosen one won."""

from __future__ import annotations

from markupsafe import Markup

from fedmm.reporting.html.parts import HtmlTable, Listing, Part, Section, Text, two_lines
from fedmm.reporting.tuned import TunedRow, TuningResult

_COLLAPSED = "diverged, collapsed, or a high source risk"
_BY_TARGET = (
    "How it is chosen: from each rung the best by mean rank go on to a longer one, and source only and the experiment "
    "as given always do. Of the finalists the half stays whose predictions agree best, where that was measured, with "
    "those of near target rows or, where near rows hardly agree, with those of another seed; the best mean rank of "
    "these wins, unless source only is judged safer or fewer than three seeds ran. No target label is looked at. The "
    "other sections show the rung that was judged."
)
_BY_METRIC = (
    "How it is chosen: from each rung the best go on to a longer one, and the experiment as given and plain federated "
    "averaging always do. The best has the highest mean over seeds of {}, on labelled rows that are not trained on; "
    "where two are even, the next column decides. The best of many by few rows is partly luck: a test on other rows "
    "judges it better. The other sections show the rung that was judged."
)


def tuning_section(tuned: TuningResult, number: int = 1) -> Section:
    """The choice in a sentence, the rungs, and a row for each candidate; number: of several tunings in a report."""
    headings = [
        "candidate",
        two_lines("ruled out", "diverged, or not measured" if tuned.metric else _COLLAPSED),
        two_lines("last rung", "it ran in"),
        "rounds",
        "seeds",
        *(two_lines(name, "mean (lowest to highest)") for name in tuned.signals),
        two_lines("rank" if tuned.metric else "mean rank", "in that rung; 1 is best"),
        *([] if tuned.metric else [two_lines("agreement", "of seeds, of neighbours")]),
    ]
    parts: list[Part] = [
        Text(tuned.sentence),
        Text(_BY_METRIC.format(tuned.signals[0]) if tuned.metric else _BY_TARGET),
        Listing([*tuned.rungs, *tuned.notes], "environment"),
        HtmlTable(headings, [_row(row, agrees=not tuned.metric) for row in tuned.rows], "what was tried", numbers=2),
    ]
    return Section(f"tuning-{number}", "Tuning", parts)


def _row(row: TunedRow, *, agrees: bool) -> list[object]:
    name: object = Markup("<strong>{}</strong> (chosen)").format(row.candidate) if row.chosen else row.candidate
    agreement = [row.agreement] if agrees else []
    return [name, row.veto, row.rung, row.rounds, row.seeds, *row.signals, f"{row.rank:.1f}", *agreement]
