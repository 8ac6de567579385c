"""The section on a tuning: what was tried, how far each candidate came, and why the chosen one won."""

from __future__ import annotations

from markupsafe import Markup

from fedmm.reporting.html.parts import Listing, Part, Section, Table, Text, two_lines
from fedmm.reporting.tuned import SIGNALS, Tuned, TunedRow


def tuning_section(tuned: Tuned, number: int = 1) -> Section:
    """The choice in a sentence, the rungs, and a row for each candidate; number: of several tunings in a report."""
    headings = [
        "candidate",
        two_lines("ruled out", "diverged, collapsed, or a high source risk"),
        two_lines("last rung", "it ran in"),
        "rounds",
        "seeds",
        *(two_lines(name, "mean (lowest to highest)") for name in SIGNALS),
        two_lines("mean rank", "in that rung; 1 is best"),
        two_lines("agreement", "of seeds, of neighbours"),
    ]
    words = (
        "Every candidate ran for some of the rounds, and the best by mean rank ran all of them; source only and the "
        "experiment as given were always among them. Of the best third of these by mean rank the one was chosen whose "
        "predictions agree best, between seeds and between neighbouring target rows. No target label was looked at. "
        "The other sections show the last rung."
    )
    parts: list[Part] = [
        Text(tuned.sentence),
        Text(words),
        Listing([*tuned.rungs, *tuned.notes], "environment"),
        Table(headings, [_row(row) for row in tuned.rows], "what was tried", numbers=2),
    ]
    return Section(f"tuning-{number}", "Tuning", parts)


def _row(row: TunedRow) -> list[object]:
    name: object = Markup("<strong>{}</strong> (chosen)").format(row.candidate) if row.chosen else row.candidate
    return [name, row.veto, row.rung, row.rounds, row.seeds, *row.signals, f"{row.rank:.1f}", row.agreement]
