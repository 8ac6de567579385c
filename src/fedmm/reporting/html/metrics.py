"""Sections over the rounds: accuracy, the metrics that need no target labels, agreement of the clients, domains."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from fedmm.core.signals.validators import METRICS
from fedmm.reporting.curves import mean_curve
from fedmm.reporting.html.charts import Chart, Lines, plain, round_off
from fedmm.reporting.html.chosen import LOWER_IS_BETTER
from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.html.labelled import tell_majority
from fedmm.reporting.html.parts import (
    ChartGrid,
    Controls,
    HtmlTable,
    Part,
    Section,
    Text,
    absent,
    column_charts,
    method_options,
    shared_or_longest,
)
from fedmm.reporting.read import Run
from fedmm.reporting.scores import TESTED, TITLES

_VALIDATORS = {
    "target_information": ("target information", ""),
    "target_entropy": ("target entropy", ""),
    "target_bnm": ("batch nuclear norm (BNM)", ""),
    "target_snd": ("soft neighbourhood density (SND)", ""),
    "dev_risk": ("deep embedded validation (DEV) risk", ""),
    "source_risk": ("source risk", ""),
    "validation_auroc": ("AUROC on rows set aside", ""),
    "validation_average_precision": ("average precision on rows set aside", ""),
    "validation_accuracy": ("accuracy on rows set aside", "%"),
    "validation_worst_accuracy": ("accuracy of the worst site on rows set aside", "%"),
}
_AGREEMENT = {
    "consensus_gap": ("consensus gap", ""),
    "dual_norm": ("dual norm, mean over clients", ""),
    "drift": ("client drift, mean over clients", ""),
}
_DOMAINS = {
    "domain_accuracy": ("domain classifier's accuracy", "%"),
    "proxy_a_distance": ("proxy A-distance", ""),
    "domain_loss": ("domain loss", ""),
}
_TESTED = {
    "target_accuracy": ("target accuracy", "%"),
    "target_auroc": ("target AUROC", ""),
    "target_average_precision": ("target average precision", ""),
    "source_accuracy": ("source accuracy", "%"),
    "source_worst_accuracy": ("source accuracy of the worst site", "%"),
    "source_auroc": ("source AUROC", ""),
    "source_average_precision": ("source average precision", ""),
}
_MOST_CLIENTS = 12
_FEWEST_ROUNDS = 5
"""Below which a rank correlation says nothing."""


def columns_of(report: Report) -> dict[str, tuple[str, str]]:
    """All columns of the history that are drawn over the rounds, the most telling first, with titles and units."""
    return {**_first(report, _TESTED), **_first(report, _VALIDATORS), **_AGREEMENT, **_DOMAINS}


def _first(report: Report, columns: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Without a target, first the columns by which models are judged, in words that know no source."""
    if report.has_target:
        return dict(columns)
    order = dict.fromkeys([*TESTED[report.metric], *METRICS[report.metric], *columns])
    return {name: (TITLES.get(name, columns[name][0]), columns[name][1]) for name in order if name in columns}


def accuracy_section(report: Report, lines: Lines) -> Section:
    """Accuracy on both domains; without a target the scores on test rows, by what models are judged first."""
    (first, title), *others = _first(report, _TESTED).items()
    main = column_charts(report, lines, {first: title}, height=420)
    charts = column_charts(report, lines, dict(others), height=260)
    if not report.has_target:
        if not main + charts:
            return Section("accuracy", "Scores", [absent("These runs measured nothing on test rows.")])
        words = f"On test rows, which nothing was trained on. {tell_majority(report)}"
        return Section("accuracy", "Scores", [Text(words), *main, *([ChartGrid(charts)] if charts else [])])
    if main:
        shade = "; the shade reaches from the lowest to the highest seed" if report.seeds > 1 else ""
        said = Text(f"{_describe_test_rows(report)}{shade}.")
    else:
        said = absent("These runs have no labelled target rows, so accuracy on the target was not measured.")
    return Section("accuracy", "Accuracy", [said, *main, *([ChartGrid(charts)] if len(charts) > 1 else charts)])


def _describe_test_rows(report: Report) -> str:
    """What was tested on, as true as the runs have told."""
    told = [entry.summary.get("tested_rows_trained_on") for entry in report.entries]
    if any(isinstance(count, int) and count > 0 for count in told):
        supervised = any(entry.summary.get("partition") == "target_supervised" for entry in report.entries)
        but = " (but with them in runs called target_supervised)" if supervised else ""
        return f"On target rows of which some or all were trained on too, without their labels{but}"
    return "On test rows, which nothing was trained on" if all(n == 0 for n in told) else "On labelled test rows"


def validator_section(report: Report, lines: Lines) -> Section:
    """What can be measured without target labels, and how well it went along with accuracy."""
    columns = _first(report, _VALIDATORS)
    charts = column_charts(report, lines, columns)
    if not charts:
        return Section("validators", "Validators", [absent("These runs measured nothing that needs no target labels.")])
    lower = [title for name, (title, _) in columns.items() if name in LOWER_IS_BETTER and report.measured(name)]
    source = "No target labels are used here." if report.has_target else "Measured on rows set aside to choose by."
    words = f"{source} Higher is better{', but lower for ' if lower else ''}{' and '.join(lower)}."
    return Section("validators", "Validators", [Text(words), ChartGrid(charts), *_correlations(report)])


def _correlations(report: Report) -> list[Part]:
    """How the validators rank the rounds of each method beside how accuracy does."""
    metrics = [name for name in _VALIDATORS if report.measured(name)]
    rows = []
    for method in report.methods:
        cells = []
        for metric in metrics:
            found = [rho for run in method.runs if (rho := rank_correlation(run, metric)) is not None]
            cells.append(f"{fmean(found):+.2f}" if found else "-")
        if any(cell != "-" for cell in cells):
            rows.append([method.label, *cells])
    if not rows:
        return []
    words = (
        "How well the ranking of the rounds by each validator agrees with that by target accuracy: Spearman's "
        "correlation, mean over seeds, signed so that +1 is best. This table looks at target labels; nothing was "
        "chosen by it."
    )
    return [Text(words), HtmlTable(["method", *metrics], rows, "rank correlation with target accuracy")]


def rank_correlation(run: Run, metric: str) -> float | None:
    """Spearman's correlation of a metric with target accuracy over the rounds, signed so that +1 is best."""
    accuracies = dict(zip(*run.series("target_accuracy"), strict=True))
    pairs = [(value, accuracies[t]) for t, value in zip(*run.series(metric), strict=True) if t in accuracies]
    if len(pairs) < _FEWEST_ROUNDS:
        return None
    values, known = zip(*pairs, strict=True)
    if len(set(values)) < 2 or len(set(known)) < 2:
        return None
    from scipy.stats import spearmanr  # noqa: PLC0415 - slow to import

    rho = float(spearmanr(values, known).statistic)
    return -rho if metric in LOWER_IS_BETTER else rho


def agreement_section(report: Report, lines: Lines) -> Section:
    """Consensus gap, dual norms and drift: of all clients, and of each."""
    charts = column_charts(report, lines, _AGREEMENT, log=True)
    if not charts:
        return Section("agreement", "Agreement", [absent("These runs did not measure how far their clients agree.")])
    words = "How far the clients' models are from their mean, and what pulls them together."
    return Section("agreement", "Agreement", [Text(words), ChartGrid(charts), *_clients(report)])


def _clients(report: Report) -> list[Part]:
    shown: dict[int, Entry] = {
        number: method.first
        for number, method in enumerate(report.methods)
        if any(method.first.clients(quantity) for quantity in ("drift", "dual_norm"))
    }
    if not shown:
        return [absent("Drift and duals of single clients were not recorded in these runs.")]
    charts = []
    for quantity, title in (("dual_norm", "dual norm of each client"), ("drift", "drift of each client")):
        figures = {str(number): _client_figure(entry, quantity) for number, entry in shown.items()}
        alt = f"Line chart of the {title} over the rounds, for one run of the chosen method."
        charts.append(Chart(f"clients-{quantity.replace('_', '-')}", title, alt, figures, height=320))
    seed = next(iter(shown.values())).run.seed
    words = f"Each client on its own in the rounds that were evaluated, of the run with seed {seed}."
    return [Text(words), Controls([("method", method_options(shown, report))]), ChartGrid(charts)]


def _client_figure(entry: Entry, quantity: str) -> dict[str, object]:
    series = entry.clients(quantity)
    if len(series) > _MOST_CLIENTS:
        whole = shared_or_longest(mean_curve(list(series.values())))
        named = {f"lowest of {len(series)}": whole.low, "mean": whole.mean, f"highest of {len(series)}": whole.high}
        drawn = [(name, whole.rounds, values) for name, values in named.items()]
    else:
        drawn = [(name, quantity.rounds, quantity.values) for name, quantity in series.items()]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain(name),
            "x": rounds,
            "y": round_off(values),
            "line": {"color": f"$class{number % 10}", "width": 1.8},
            "showlegend": True,
        }
        for number, (name, rounds, values) in enumerate(drawn)
    ]
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"rangemode": "tozero"}, "hovermode": "x unified"}
    return {"data": data, "layout": {**layout, "showlegend": True}}


def domain_section(report: Report, lines: Lines) -> Section:
    """How well the domains can be told apart."""
    charts = column_charts(report, lines, _DOMAINS)
    told_apart = [chart for chart in charts if chart.name != "domain-loss"]
    parts: list[Part] = []
    if told_apart:
        parts.append(
            Text(
                "A domain classifier that is right half of the time, and a proxy A-distance near 0, cannot tell the "
                "target's features from the source's."
            )
        )
    else:
        parts.append(
            absent("The domain classifier's accuracy and the proxy A-distance were not recorded in these runs.")
        )
    return Section("domains", "Domains", [*parts, *([ChartGrid(charts)] if charts else [])])
