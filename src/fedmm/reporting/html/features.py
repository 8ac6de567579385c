"""The section of feature maps: both domains before training and after."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedmm.reporting.html.charts import Chart, Figure, plain, rounded
from fedmm.reporting.html.collect import Entry, Material
from fedmm.reporting.html.colours import CLASS_COLOURS
from fedmm.reporting.html.maps import Maps
from fedmm.reporting.html.sections import Controls, Grid, Section, absent, method_options, sentence
from fedmm.reporting.read import Array

_MOST_MAPS = 8
_DOMAINS = ("source", "target")
_SYMBOLS = ("circle", "diamond-open")


def feature_section(material: Material) -> Section:
    """Maps of the first run of each method, coloured by domain or by class."""
    maps = Maps()
    mapped = {}
    for number, method in enumerate(material.methods[:_MOST_MAPS]):
        found = maps.of(method.first)
        if found:
            mapped[number] = (method.first, found)
    if not mapped:
        return Section("features", "Features", [absent("These runs kept no features to draw a map of.")])
    figures: dict[str, dict[str, Figure]] = {"before": {}, "after": {}}
    for number, (entry, found) in mapped.items():
        for moment, points in found.items():
            figures[moment][f"{number}|domain"] = _by_domain(points, entry)
            figures[moment][f"{number}|class"] = _by_class(points, entry)
    titles = {"before": "before training", "after": "after the last round"}
    charts = [
        Chart(
            f"features-{moment}",
            f"features {titles[moment]}",
            f"Map of the features of source and target rows {titles[moment]}, by t-SNE; near rows are alike.",
            figures[moment],
            height=430,
        )
        for moment in figures
    ]
    rows = len(next(iter(mapped.values()))[0].exhibits["map_domain"])
    left_out = len(material.methods) - _MOST_MAPS
    more = f" The last {left_out} methods are left out." if left_out > 0 else ""
    words = (
        f"{rows} rows of both domains, drawn near each other where the network's features are alike (t-SNE of the run "
        f"with the first seed). Circles are source rows, diamonds target rows.{more}"
    )
    controls = Controls(
        [
            ("method", method_options(mapped, material)),
            ("colour by", [("domain", "domain"), ("class", "class")]),
        ]
    )
    return Section("features", "Features", [sentence(words), controls, Grid(charts)])


def _by_domain(points: Array, entry: Entry) -> Figure:
    domains = entry.exhibits["map_domain"]
    texts = _texts(entry)
    data = [
        _trace(points, domains == number, name, f"${name}", _SYMBOLS[number], texts)
        for number, name in enumerate(_DOMAINS)
    ]
    return {"data": data, "layout": _LAYOUT}


def _by_class(points: Array, entry: Entry) -> Figure:
    """True classes; rows whose class is not known by the predicted one."""
    domains = entry.exhibits["map_domain"]
    classes = _classes(entry)
    texts = _texts(entry)
    data = []
    for kind in np.unique(classes).tolist():
        for number in range(2):
            chosen = (classes == kind) & (domains == number)
            if chosen.any():
                colour = f"$class{int(kind) % CLASS_COLOURS}"
                trace = _trace(points, chosen, entry.name_of(int(kind)), colour, _SYMBOLS[number], texts)
                first = number == 0 or not ((classes == kind) & (domains == 0)).any()
                data.append({**trace, "legendgroup": str(kind), "showlegend": bool(first)})
    return {"data": data, "layout": _LAYOUT}


def _classes(entry: Entry) -> Array:
    labels, predicted = (entry.exhibits[name].astype(np.int64) for name in ("map_label", "map_predicted"))
    known: Array = np.where(labels >= 0, labels, predicted)
    return known


def _texts(entry: Entry) -> list[str]:
    """What is said of each row when it is pointed at."""
    told = []
    for domain, label, predicted in zip(
        *(entry.exhibits[name].tolist() for name in ("map_domain", "map_label", "map_predicted")), strict=True
    ):
        true = f"class {plain(entry.name_of(label))}, " if label >= 0 else ""
        told.append(f"{_DOMAINS[domain]}: {true}predicted {plain(entry.name_of(predicted))}")
    return told


def _trace(points: Array, chosen: Array, name: str, colour: str, symbol: str, texts: Sequence[str]) -> Figure:
    edge = 1 if symbol.endswith("open") else 0
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plain(name),
        "x": rounded([round(float(x), 3) for x in points[chosen, 0]]),
        "y": rounded([round(float(y), 3) for y in points[chosen, 1]]),
        "text": [text for text, here in zip(texts, chosen.tolist(), strict=True) if here],
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour, "symbol": symbol, "size": 7, "opacity": 0.8, "line": {"width": edge}},
        "showlegend": True,
    }


_LAYOUT: Figure = {
    "xaxis": {"visible": False, "range": [-0.04, 1.04]},
    "yaxis": {"visible": False, "range": [-0.04, 1.04]},
    "hovermode": "closest",
    "showlegend": True,
}
