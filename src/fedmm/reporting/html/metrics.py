"""Sections over the rounds: accuracy, the measures that need no target labels, agreement of the clients, domains."""

from __future__ import annotations

from statistics import fmean

import numpy as np

from fedmm.reporting.html.bands import band
from fedmm.reporting.html.charts import Chart, Lines, plain, rounded
from fedmm.reporting.html.collect import Entry, Material
from fedmm.reporting.html.headline import LOWER_IS_BETTER
from fedmm.reporting.html.markup import Markup, table
from fedmm.reporting.html.sections import (
    Controls,
    Grid,
    Part,
    Section,
    absent,
    bands_of,
    column_charts,
    method_options,
    sentence,
)
from fedmm.reporting.read import Array, Run

_VALIDATORS = {
    "target_information": ("target information", ""),
    "target_entropy": ("target entropy", ""),
    "target_bnm": ("batch nuclear norm (BNM)", ""),
    "target_snd": ("soft neighbourhood density (SND)", ""),
    "dev_risk": ("deep embedded validation (DEV) risk", ""),
    "source_risk": ("source risk", ""),
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
COLUMNS = {
    "target_accuracy": ("target accuracy", "%"),
    "source_accuracy": ("source accuracy", "%"),
    **_VALIDATORS,
    **_AGREEMENT,
    **_DOMAINS,
}
"""All columns of the history that are drawn over the rounds, with their titles and units."""
_MOST_CLIENTS = 12
_FEWEST_ROUNDS = 5
"""Below which a rank correlation says nothing."""


def accuracy_section(material: Material, lines: Lines) -> Section:
    """Accuracy on both domains."""
    parts: list[Part] = []
    target = bands_of(material, "target_accuracy", 100.0)
    if target:
        shade = "; the shade reaches from the lowest to the highest seed" if material.seeds > 1 else ""
        parts.append(sentence(f"{_tested(material)}{shade}."))
        parts.append(lines.chart("target-accuracy", "target accuracy", target, unit="%", height=420))
    else:
        parts.append(absent("These runs have no labelled target rows, so accuracy on the target was not measured."))
    source = bands_of(material, "source_accuracy", 100.0)
    if source:
        parts.append(lines.chart("source-accuracy", "source accuracy", source, unit="%", height=260))
    return Section("accuracy", "Accuracy", parts)


def _tested(material: Material) -> str:
    """What was tested on, as true as the runs have told."""
    told = [entry.summary.get("tested_rows_trained_on") for entry in material.entries]
    if any(isinstance(count, int) and count > 0 for count in told):
        supervised = any(entry.summary.get("partition") == "target_supervised" for entry in material.entries)
        but = " (but with them in runs called target_supervised)" if supervised else ""
        return f"On target rows of which some or all were trained on too, without their labels{but}"
    return "On test rows, which nothing was trained on" if all(n == 0 for n in told) else "On labelled test rows"


def validator_section(material: Material, lines: Lines) -> Section:
    """What can be measured without target labels, and how well it went along with accuracy."""
    charts = column_charts(material, lines, _VALIDATORS)
    if not charts:
        return Section("validators", "Validators", [absent("These runs measured nothing that needs no target labels.")])
    lower = [name for name in _VALIDATORS if name in LOWER_IS_BETTER and material.measured(name)]
    words = (
        f"No target labels are used here. Higher is better, but lower for {' and '.join(lower)}."
        if lower
        else ("No target labels are used here. Higher is better.")
    )
    return Section("validators", "Validators", [sentence(words), Grid(charts), *_correlations(material)])


def _correlations(material: Material) -> list[Markup]:
    """How the validators rank the rounds of each method beside how accuracy does."""
    measures = [name for name in _VALIDATORS if material.measured(name)]
    rows = []
    for method in material.methods:
        cells = []
        for measure in measures:
            found = [rho for run in method.runs if (rho := rank_correlation(run, measure)) is not None]
            cells.append(f"{fmean(found):+.2f}" if found else "-")
        if any(cell != "-" for cell in cells):
            rows.append([method.label, *cells])
    if not rows:
        return []
    words = (
        "How each validator ranks the rounds beside how target accuracy does: Spearman's correlation, mean over seeds, "
        "signed so that +1 is best. This table looks at target labels; nothing was chosen by it."
    )
    return [sentence(words), table(["method", *measures], rows, "rank correlation with target accuracy")]


def rank_correlation(run: Run, measure: str) -> float | None:
    """Spearman's correlation of a measure with target accuracy over the rounds, signed so that +1 is best."""
    accuracies = dict(zip(*run.series("target_accuracy"), strict=True))
    pairs = [(value, accuracies[t]) for t, value in zip(*run.series(measure), strict=True) if t in accuracies]
    if len(pairs) < _FEWEST_ROUNDS:
        return None
    one, other = (_ranks(np.array(column)) for column in zip(*pairs, strict=True))
    if one.std() == 0 or other.std() == 0:
        return None
    rho = float(np.corrcoef(one, other)[0, 1])
    return -rho if measure in LOWER_IS_BETTER else rho


def _ranks(values: Array) -> Array:
    """Ranks, the mean of them for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    upper = counts.cumsum()
    means: Array = (upper - (counts - 1) / 2)[inverse]
    return means


def agreement_section(material: Material, lines: Lines) -> Section:
    """Consensus gap, dual norms and drift: of all clients, and of each."""
    charts = column_charts(material, lines, _AGREEMENT, log=True)
    if not charts:
        return Section("agreement", "Agreement", [absent("These runs did not measure how far their clients agree.")])
    words = "How far the clients' models are from their mean, and what pulls them together."
    return Section("agreement", "Agreement", [sentence(words), Grid(charts), *_clients(material)])


def _clients(material: Material) -> list[Part]:
    shown: dict[int, Entry] = {
        number: method.first
        for number, method in enumerate(material.methods)
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
    return [sentence(words), Controls([("method", method_options(shown, material))]), Grid(charts)]


def _client_figure(entry: Entry, quantity: str) -> dict[str, object]:
    series = entry.clients(quantity)
    if len(series) > _MOST_CLIENTS:
        whole = band(list(series.values()))
        assert whole is not None
        named = {f"lowest of {len(series)}": whole.low, "mean": whole.mean, f"highest of {len(series)}": whole.high}
        drawn = [(name, whole.rounds, values) for name, values in named.items()]
    else:
        drawn = [(name, each.rounds, each.values) for name, each in series.items()]
    data = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": plain(name),
            "x": rounds,
            "y": rounded(values),
            "line": {"color": f"$class{number % 10}", "width": 1.8},
            "showlegend": True,
        }
        for number, (name, rounds, values) in enumerate(drawn)
    ]
    layout = {"xaxis": {"title": {"text": "round"}}, "yaxis": {"rangemode": "tozero"}, "hovermode": "x unified"}
    return {"data": data, "layout": {**layout, "showlegend": True}}


def domain_section(material: Material, lines: Lines) -> Section:
    """How well the domains can be told apart."""
    charts = column_charts(material, lines, _DOMAINS)
    told_apart = [chart for chart in charts if chart.name != "domain-loss"]
    parts: list[Part] = []
    if told_apart:
        parts.append(
            sentence(
                "A domain classifier that is right half of the time, and a proxy A-distance near 0, cannot tell the "
                "target's features from the source's."
            )
        )
    else:
        parts.append(
            absent("The domain classifier's accuracy and the proxy A-distance were not recorded in these runs.")
        )
    return Section("domains", "Domains", [*parts, *([Grid(charts)] if charts else [])])
