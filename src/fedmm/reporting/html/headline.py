"""What each method reached, in one table: at the end, in the round chosen without target labels, and by an oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from markupsafe import Markup

from fedmm.core.signals.track_record import tell_record
from fedmm.core.signals.validators import ALONE, RULE
from fedmm.reporting.html.charts import Chart, plain, round_off, short
from fedmm.reporting.html.collect import Entry, Method, Report
from fedmm.reporting.html.parts import HtmlTable, Part, Section, Text, name_method, two_lines
from fedmm.reporting.read import Run, last_values
from fedmm.reporting.tables import VALIDATOR_COLUMNS, seeds_in_words

LOWER_IS_BETTER = (
    "source_risk", "dev_risk", "target_entropy", "domain_accuracy", "proxy_a_distance", "loss", "task_loss",
)  # fmt: skip
ORACLES = ("target_accuracy", "oracle")
"""Metrics that look at target labels."""


class ChosenRound(NamedTuple):
    """A round that was chosen, and the target accuracy there, None if it was not measured."""

    round: int
    accuracy: float | None


def chosen_round(run: Run, metric: str) -> ChosenRound | None:
    """The round that is best by a metric; None if it was never measured."""
    rounds, values = run.series(metric)
    if not rounds:
        return None
    best = min(values) if metric in LOWER_IS_BETTER else max(values)
    at = rounds[values.index(best)]
    accuracies = dict(zip(*run.series("target_accuracy"), strict=True))
    return ChosenRound(at, accuracies.get(at))


def choice_of(entry: Entry) -> tuple[str, ChosenRound | None]:
    """The metric by which a run chose without target labels, and what it chose; else the first that it measured.

    Without a target, a run that chose by nothing keeps its last model.
    """
    wanted = [entry.best_by] if entry.best_by and not is_oracle(entry.best_by) else []
    others = ["target_information", "dev_risk", "target_snd", "target_bnm", "source_risk"] if entry.has_target else []
    for metric in [*wanted, *others]:
        chosen = chosen_round(entry.run, metric)
        if chosen:
            return metric, chosen
    return "", None


def is_oracle(metric: str) -> bool:
    """Whether a metric looks at target labels."""
    return metric in ORACLES or metric.startswith("oracle")


def headline(report: Report) -> Section:
    """The table, and a dot for every run."""
    labelled = report.measured("target_accuracy") or any(e.run.target_accuracy is not None for e in report.entries)
    headings: list[object] = ["method", "seeds"]
    if labelled:
        headings += [
            two_lines("target accuracy", "last round"),
            two_lines("target accuracy", "round chosen without labels"),
            two_lines("oracle", "round chosen by target labels"),
        ]
    else:
        headings += [two_lines("chosen round", "without target labels" if report.has_target else "on rows set aside")]
        headings += [two_lines(validator, "last round") for validator in _validators(report)]
    headings += ["source accuracy", "rounds", "MB", "seconds"]
    validators = [] if labelled else _validators(report)
    rows = [_row(number, method, labelled, validators) for number, method in enumerate(report.methods)]
    spread = "mean ± standard deviation over the seeds" if report.seeds > 1 else "of one seed"
    words = (
        f"Target accuracies in percent, {spread}. "
        "Only the column called oracle has looked at target labels to choose a round."
        if labelled
        else "No target labels were given, so no accuracy on the target is known: here is what needs no labels, mean "
        "and range over the seeds. None of it proves that a method is better than another."
        if report.has_target
        else "There is no target: scores are on labelled rows that were not trained on, mean and range over the seeds; "
        "source accuracy, in percent, is on test rows."
    )
    parts: list[Part] = [
        Text(words),
        HtmlTable(headings, rows, "what each method reached", class_="headline"),
        *map(Text, _evidence(report)),
    ]
    chart = _dots(report)
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


def _row(number: int, method: Method, labelled: bool, validators: Sequence[str]) -> list[object]:
    runs = method.runs
    stopped = Counter(run.status for run in runs if run.status != "completed")
    early = sum(isinstance(entry.summary.get("stopped_early"), dict) for entry in method.entries)
    stopped += Counter({"stopped early": early})
    note = ", ".join(f"{count} of {len(runs)} {status}" for status, count in stopped.items())
    name = name_method(number, method.label)
    seeds = Markup('<span title="seeds {}">{}</span>').format(", ".join(str(run.seed) for run in runs), len(runs))
    choices = [choice_of(entry) for entry in method.entries]
    metric = next((name for name, chosen in choices if chosen), "")
    chosen = [choice for _, choice in choices if choice]
    cells: list[object] = [two_lines(name, note) if note else name, seeds]
    if labelled:
        oracle = [choice for run in runs if (choice := chosen_round(run, "target_accuracy"))]
        cells += [
            spread([run.target_accuracy for run in runs]),
            _with_note(spread([choice.accuracy for choice in chosen]), _rounds(chosen, metric)),
            _with_note(spread([choice.accuracy for choice in oracle]), _rounds(oracle)),
        ]
    else:
        has_target = any(entry.has_target for entry in method.entries)
        cells += [_rounds(chosen, metric) or ("-" if has_target else "the last")]
        cells += [seeds_in_words(last_values(runs, column)) for column in validators]
    return [
        *cells,
        spread([run.source_accuracy for run in runs]),
        _span([max(run.records, default=0) for run in runs]),
        short(fmean(run.megabytes for run in runs)),
        short(fmean(run.seconds for run in runs)),
    ]


def spread(accuracies: Sequence[float | None]) -> str:
    """Fractions in percent: their mean, with the standard deviation of several; a dash for none."""
    known = [100 * value for value in accuracies if value is not None]
    if not known:
        return "-"
    return f"{fmean(known):.1f} ± {stdev(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"


def _rounds(chosen: Sequence[ChosenRound], metric: str = "") -> str | Markup:
    if not chosen:
        return ""
    rounds = f"round {_span([choice.round for choice in chosen])}"
    return two_lines(rounds, f"by {metric}") if metric else rounds


def _span(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def _with_note(value: str, note: str | Markup) -> object:
    return two_lines(value, note) if note else value


def _dots(report: Report) -> Chart | None:
    """The final target accuracy of every run, a line of dots for each method; the mean is a bar."""
    data: list[dict[str, Any]] = []
    means: list[str] = []
    names: list[str] = []
    for number, method in enumerate(report.methods):
        known = [100 * run.target_accuracy for run in method.runs if run.target_accuracy is not None]
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
                "hovertemplate": "%{x:.1f}%<extra>%{fullData.name}</extra>",
            }
            for values, marker in marks[: len(known)]
        ]
        means.append(f"{method.label} {fmean(known):.1f}%")
        names.append(plain(_shorten_label(method.label)))
    if not data or len(report.methods) < 2:
        return None
    layout = {
        "xaxis": {"ticksuffix": "%", "title": {"text": "target accuracy after the last round"}},
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
        "Final target accuracy, a dot for each seed",
        f"Dots of final target accuracy by method: {'; '.join(means[:12])}.",
        {"": {"data": data, "layout": layout}},
        height=90 + 34 * len(means),
    )


def _shorten_label(label: str) -> str:
    return label if len(label) <= 28 else f"{label[:27]}…"
