"""The section of feature maps: both domains before training and after."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedmm.core.files import replace_file
from fedmm.reporting.html.charts import CLASS_COLOURS, Chart, Figure, plain, round_off
from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.html.parts import ChartGrid, Controls, Section, Text, absent, method_options
from fedmm.reporting.read import Array

_MOST_MAPS = 8
_DOMAINS = ("source", "target")
_SYMBOLS = ("circle", "diamond-open")
_FILE, _SEED, _ITERATIONS, _PERPLEXITY = "maps.safetensors", 0, 500, 30.0
_WAY = f"t-sne exact, pca, seed {_SEED}, {_ITERATIONS} iterations, perplexity {_PERPLEXITY}"
_FEWEST_ROWS = 8


def feature_section(report: Report) -> Section:
    """Maps of the first run of each method, coloured by domain or by class."""
    maps = Maps()
    mapped = {}
    for number, method in enumerate(report.methods[:_MOST_MAPS]):
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
    rows = len(next(iter(mapped.values()))[0].tensors["map_domain"])
    left_out = len(report.methods) - _MOST_MAPS
    more = f" The last {left_out} methods are left out." if left_out > 0 else ""
    words = (
        f"{rows} rows of both domains, drawn near each other where the network's features are alike (t-SNE of the run "
        f"with the first seed). Circles are source rows, diamonds target rows.{more}"
    )
    controls = Controls(
        [("method", method_options(mapped, report)), ("colour by", [("domain", "domain"), ("class", "class")])]
    )
    return Section("features", "Features", [Text(words), controls, ChartGrid(charts)])


def _by_domain(points: Array, entry: Entry) -> Figure:
    domains = entry.tensors["map_domain"]
    texts = _texts(entry)
    data = [
        _trace(points, domains == number, name, f"${name}", _SYMBOLS[number], texts)
        for number, name in enumerate(_DOMAINS)
    ]
    return {"data": data, "layout": _LAYOUT}


def _by_class(points: Array, entry: Entry) -> Figure:
    """True classes; rows whose class is not known by the predicted one."""
    domains = entry.tensors["map_domain"]
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
    labels, predicted = (entry.tensors[name].astype(np.int64) for name in ("map_label", "map_predicted"))
    known: Array = np.where(labels >= 0, labels, predicted)
    return known


def _texts(entry: Entry) -> list[str]:
    """What is said of each row when it is pointed at."""
    told = []
    for domain, label, predicted in zip(
        *(entry.tensors[name].tolist() for name in ("map_domain", "map_label", "map_predicted")), strict=True
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
        "x": round_off([round(float(x), 3) for x in points[chosen, 0]]),
        "y": round_off([round(float(y), 3) for y in points[chosen, 1]]),
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


# Features as points in the plane, by t-SNE; what was computed once is kept beside the run -----------------------------


class Maps:
    """Maps of runs; features that several runs share, as those before training, are mapped once."""

    def __init__(self) -> None:
        self._known: dict[str, Array] = {}

    def of(self, entry: Entry) -> dict[str, Array]:
        """``before`` and ``after``: ``[rows, 2]``; empty for a run that kept no features, or too few."""
        features = {name: entry.tensors.get(f"map_{name}") for name in ("before", "after")}
        given = {name: np.asarray(feature, np.float64) for name, feature in features.items() if _usable(feature)}
        if len(given) < 2:
            return {}
        digests = {name: _digest(feature) for name, feature in given.items()}
        path = entry.run.folder / _FILE
        self._known.update(_read(path))
        found = {}
        for name, rows in given.items():
            if digests[name] not in self._known:
                self._known[digests[name]] = _plane(rows)
            found[name] = self._known[digests[name]]
        _keep(path, {digests[name]: plane for name, plane in found.items()})
        return found


def _usable(features: Array | None) -> bool:
    return features is not None and features.ndim == 2 and len(features) >= _FEWEST_ROWS and features.shape[1] > 0


def _digest(features: Array) -> str:
    content = _WAY.encode() + str(features.shape).encode() + np.ascontiguousarray(features).tobytes()
    return hashlib.sha256(content).hexdigest()[:32]


def _plane(features: Array) -> Array:
    """Points ``[rows, 2]``, each axis from 0 to 1."""
    if not np.isfinite(features).all() or not features.std():
        return np.zeros((len(features), 2), np.float32)
    if features.shape[1] <= 2:
        points = np.pad(features, ((0, 0), (0, 2 - features.shape[1])))
    else:
        from sklearn.manifold import TSNE  # noqa: PLC0415 - slow to import, and seldom needed

        perplexity = min(_PERPLEXITY, (len(features) - 1) / 3)
        maker = TSNE(
            perplexity=perplexity, init="pca", method="exact", random_state=_SEED, max_iter=_ITERATIONS,
            learning_rate="auto",
        )  # fmt: skip
        points = maker.fit_transform((features / features.std()).astype(np.float32))
    low, high = points.min(axis=0), points.max(axis=0)
    scaled: Array = ((points - low) / np.where(high > low, high - low, 1.0)).astype(np.float32)
    return scaled


def _read(path: Path) -> dict[str, Array]:
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):
        return {}


def _keep(path: Path, maps: dict[str, Array]) -> None:
    """Keep maps beside their run; a folder that cannot be written to is left as it is."""
    if _read(path).keys() >= maps.keys():
        return
    with suppress(OSError, SafetensorError), replace_file(path) as partial:
        save_file(maps, partial)
