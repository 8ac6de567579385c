"""What each method reached, in one table: at the end, in the round chosen without target labels, and by an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any

from markupsafe import Markup

from fedmm.core.signals.track_record import tell_record
from fedmm.core.signals.validators import ALONE, RULE
from fedmm.reporting.html.charts import Chart, align, plain, round_off
from fedmm.reporting.html.chosen import ChosenRound, choice_of, chosen_round
from fedmm.reporting.html.collect import Method, Report
from fedmm.reporting.html.parts import HtmlTable, Part, Section, Text, name_method, two_lines
from fedmm.reporting.read import last_values
from fedmm.reporting.tables import VALIDATOR_COLUMNS, seeds_in_words


def headline(report: Report) -> Section:
    """The table, and a dot for every run; of runs with a target."""
    labelled = report.measured("target_accuracy") or any(e.run.target_accuracy is not None for e in report.entries)
    headings: list[object] = ["method", "seeds"]
    if labelled:
        headings += [
            two_lines("target accuracy", "last round"),
            two_lines("target accuracy", "round chosen without labels"),
            two_lines("oracle", "round chosen by target labels"),
        ]
    else:
        headings += [two_lines("chosen round", "without target labels")]
        headings += [two_lines(validator, "last round") for validator in _validators(report)]
    headings += ["source accuracy", "rounds", "MB", "seconds"]
    validators = [] if labelled else _validators(report)
    rows = [
        [*name_cells(number, method), *_scores(method, labelled, validators), *costs]
        for (number, method), costs in zip(enumerate(report.methods), cost_cells(report), strict=True)
    ]
    words = (
        f"Target accuracies in percent, {tell_seeds(report)}. "
        "Only the column called oracle has looked at target labels to choose a round."
        if labelled
        else "No target labels were given, so no accuracy on the target is known: here is what needs no labels, mean "
        "and range over the seeds. None of it proves that a method is better than another."
    )
    parts: list[Part] = [
        Text(words),
        HtmlTable(headings, rows, "what each method reached", class_="headline"),
        *map(Text, _evidence(report)),
    ]
    reached = [[run.target_accuracy for run in method.runs] for method in report.methods]
    chart = draw_dots(report, "target accuracy", "after the last round", reached)
    return Section("headline", "Results", [*parts, *([chart] if chart else [])])


def _validators(report: Report) -> list[str]:
    return [column for column in VALIDATOR_COLUMNS if column != "source_accuracy" and report.measured(column)]


def _evidence(report: Report) -> list[str]:
    """Label shift as the runs estimated it, the verdicts on adapting with how often they are right, and the rule."""
    words = []
    for method in report.methods:
        shifts = [shift for entry in method.entries if isinstance(shift := entry.summary.get("label_shift"), dict)]
        notable = [shift for shift in shifts if shift.get("notable") and isinstance(shift.get("sentence"), str)]
        if notable:
            words.append(
                f"As estimated with {method.label} ({len(notable)} of {len(shifts)} runs), {notable[0]['sentence']}."
            )
    judged = {label for label, _ in report.verdicts}
    shown = len(report.methods) > 1 or bool(words)
    if shown:
        words += [f"{label}: {verdict}." for label, verdict in report.verdicts]
    words += [
        f"{method.label}, when it ended: {_quote_adaptation(method)}."
        for method in report.methods
        if method.label not in judged and _adapts(method)
    ]
    if judged:
        record = tell_record(None)
        words.append(f"{record[0].upper()}{record[1:]}.")
    if shown and (report.measured("target_information") or any(_adapts(method) for method in report.methods)):
        words.append(f"Whether to adapt: {RULE}. No validator alone is enough.")
    return words


def _adapts(method: Method) -> bool:
    partition = method.first.tables.get("partition", {}).get("name")
    return method.first.run.objective not in ("source_only", "auc") and partition != "target_supervised"


def _quote_adaptation(method: Method) -> str:
    """What the last of a method's runs said of adapting; that it cannot be told where none said anything."""
    verdicts = [verdict for entry in method.entries if isinstance(verdict := entry.summary.get("adaptation"), dict)]
    sentences = [verdict["sentence"] for verdict in verdicts if isinstance(verdict.get("sentence"), str)]
    return sentences[-1] if sentences else f"{ALONE}; `fedmm compare FILE.toml` judges; {tell_record(None)}"


def name_cells(number: int, method: Method) -> list[object]:
    """A method's name, with how many of its runs ended early or badly, and the number of its seeds."""
    runs = method.runs
    stopped = Counter(run.status for run in runs if run.status != "completed")
    early = sum(isinstance(entry.summary.get("stopped_early"), dict) for entry in method.entries)
    stopped += Counter({"stopped early": early})
    note = ", ".join(f"{count} of {len(runs)} {status}" for status, count in stopped.items())
    name = name_method(number, method.label)
    seeds = Markup('<span title="seeds {}">{}</span>').format(", ".join(str(run.seed) for run in runs), len(runs))
    return [two_lines(name, note) if note else name, seeds]


def cost_cells(report: Report) -> list[list[str]]:
    """Of each method: rounds, megabytes and seconds."""
    rounds = [span_of([max(run.records, default=0) for run in method.runs]) for method in report.methods]
    megabytes = align([fmean(run.megabytes for run in method.runs) for method in report.methods])
    seconds = align([fmean(run.seconds for run in method.runs) for method in report.methods])
    return [list(cells) for cells in zip(rounds, megabytes, seconds, strict=True)]


def _scores(method: Method, labelled: bool, validators: Sequence[str]) -> list[object]:
    """The cells between the name of a method and what it cost."""
    runs, choices = method.runs, [choice_of(entry) for entry in method.entries]
    metric = next((name for name, chosen in choices if chosen), "")
    chosen = [choice for _, choice in choices if choice]
    cells: list[object]
    if labelled:
        oracle = [choice for run in runs if (choice := chosen_round(run, "target_accuracy"))]
        cells = [
            spread([run.target_accuracy for run in runs]),
            _with_note(spread([choice.accuracy for choice in chosen]), tell_rounds(chosen, metric)),
            _with_note(spread([choice.accuracy for choice in oracle]), tell_rounds(oracle)),
        ]
    else:
        cells = [tell_rounds(chosen, metric) or "-"]
        cells += [seeds_in_words(last_values(runs, column)) for column in validators]
    return [*cells, spread([run.source_accuracy for run in runs])]


def tell_seeds(report: Report) -> str:
    """What numbers are of."""
    return "mean ± standard deviation over the seeds" if report.seeds > 1 else "of one seed"


def spread(values: Sequence[float | None], *, percent: bool = True) -> str:
    """The mean of some seeds' scores, in percent or as they are, with the deviation of several; a dash for none."""
    scale, digits = (100.0, 1) if percent else (1.0, 3)
    known = [scale * value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ± {stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{fmean(known):.{digits}f}{deviation}"


def tell_rounds(chosen: Sequence[ChosenRound], metric: str = "") -> str | Markup:
    """The rounds that were chosen, and by what; empty for none."""
    if not chosen:
        return ""
    rounds = f"round {span_of([choice.round for choice in chosen])}"
    return two_lines(rounds, f"by {metric}") if metric else rounds


def span_of(numbers: Sequence[int]) -> str:
    """The lowest and the highest of some numbers, or the one that they all are."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _with_note(value: str, note: str | Markup) -> object:
    return two_lines(value, note) if note else value


def draw_dots(report: Report, score: str, where: str, reached: Sequence[Sequence[float | None]]) -> Chart | None:
    """A score of every run, a line of dots for each method, whose mean is a bar; none for a single method.

    where: of which round and rows. reached: by method. Accuracies are fractions, shown in percent.
    """
    percent = "accuracy" in score
    unit, times, digits = ("%", 100.0, 1) if percent else ("", 1.0, 3)
    data: list[dict[str, Any]] = []
    means: list[str] = []
    names: list[str] = []
    for number, method in enumerate(report.methods):
        known = [times * value for value in reached[number] if value is not None]
        if not known:
            continue
        colour = f"$line{number}"
        bar = {"color": colour, "size": 22, "symbol": "line-ns", "line": {"width": 3, "color": colour}}
        marks = [(known, {"color": colour, "size": 10, "opacity": 0.75}), ([fmean(known)], bar)]
        data += [
            {
                "type": "scatter",
                "mode": "markers",
                "meta": number,
                "name": plain(method.label),
                "x": round_off(values),
                "y": [len(means)] * len(values),
                "marker": marker,
                "hovertemplate": f"%{{x:.{digits}f}}{unit}<extra>%{{fullData.name}}</extra>",
            }
            for values, marker in marks[: len(known)]
        ]
        means.append(f"{method.label} {fmean(known):.{digits}f}{unit}")
        names.append(plain(_shorten_label(method.label)))
    if not data or len(report.methods) < 2:
        return None
    layout = {
        "xaxis": {
            "ticksuffix": unit,
            "title": {"text": f"{score} {where}"},
            **({} if percent else {"tickformat": ".3f"}),
        },
        "yaxis": {
            "range": [len(names) - 0.5, -0.5],
            "tickvals": list(range(len(names))),
            "ticktext": names,
            "zeroline": False,
        },
        "hovermode": "closest",
    }
    return Chart(
        "final",
        f"{score} {where}, a dot for each seed",
        f"Dots of {score} {where} by method: {'; '.join(means[:12])}.",
        {"": {"data": data, "layout": layout}},
        height=90 + 34 * len(means),
    )


def _shorten_label(label: str) -> str:
    return label if len(label) <= 28 else f"{label[:27]}…"
