"""Sections of what the models predict: confusion matrices, and single rows."""

from __future__ import annotations

import base64
import hashlib
import io

import numpy as np
from markupsafe import Markup

from fedmm.reporting.html.charts import Chart, Figure, align, plain, round_off
from fedmm.reporting.html.chosen import describe_model
from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.html.parts import (
    Card,
    Controls,
    Gallery,
    HtmlTable,
    Part,
    Section,
    Text,
    absent,
    method_options,
    name_method,
)
from fedmm.reporting.read import Array

_MOST_METHODS, _MOST_ROWS = 8, 24
_NUMBERED = 12
"""Classes up to which a matrix has numbers in its cells."""
_TINY = 16
"""Pixels of a side below which an image is smoothed, as single pixels would hide what it shows."""


def confusion_section(report: Report) -> Section:
    """Which classes are taken for which, of each method's first run, on the target and on the source."""
    figures: dict[str, Figure] = {}
    domains: dict[str, None] = {}
    methods: dict[int, None] = {}
    for domain in ("target", "source"):
        for number, method in enumerate(report.methods):
            counts = method.first.tensors.get(f"confusion_{domain}")
            if counts is not None and counts.ndim == 2 and counts.sum() > 0:
                figures[f"{number}|{domain}"] = _matrix(counts, method.first)
                domains[domain] = methods[number] = None
    if not figures:
        words = "These runs kept no confusion counts: they need labelled test rows, and at most 400 classes."
        return Section("confusion", "Confusion", [absent(words)])
    missing = [f"{number}|{domain}" for number in methods for domain in domains if f"{number}|{domain}" not in figures]
    figures |= {key: {"data": [], "layout": {}} for key in missing}
    classes = len(next(iter(figures.values()))["data"][0]["z"])
    chart = Chart(
        "confusion",
        "predicted classes",
        f"Confusion matrix of {classes} classes: rows are true classes, columns predicted ones.",
        figures,
        height=max(260, min(130 + 34 * classes, 760)),
        widest=max(420, 140 + 70 * classes),
    )
    words = (
        "Rows are the true classes of the test rows, columns what was predicted; each row adds up to 100%. "
        f"{describe_model(report)}"
    )
    if "target" not in domains and report.has_target:
        words += " Source rows only: there are no target labels."
    controls = Controls([("method", method_options(methods, report)), ("rows of the", [(d, d) for d in domains])])
    return Section("confusion", "Confusion", [Text(words), controls, chart])


def _matrix(counts: Array, entry: Entry) -> Figure:
    totals = counts.sum(axis=1, keepdims=True)
    shares = 100 * counts / np.maximum(totals, 1)
    names = [plain(entry.name_of(number)) for number in range(len(counts))]
    heat: Figure = {
        "type": "heatmap",
        "z": [round_off([round(float(value), 1) for value in row]) for row in shares],
        "x": names,
        "y": names,
        "customdata": counts.tolist(),
        "colorscale": [[0, "$low"], [1, "$high"]],
        "zmin": 0,
        "zmax": 100,
        "xgap": 1,
        "ygap": 1,
        "showscale": False,
        "hovertemplate": "%{y} taken for %{x}: %{customdata} rows, %{z:.1f}%<extra></extra>",
    }
    if len(counts) <= _NUMBERED:
        heat["texttemplate"] = "%{z:.0f}"
    axis = {"type": "category", "automargin": True, "showgrid": False}
    layout: Figure = {
        "xaxis": {**axis, "title": {"text": "predicted"}, "side": "bottom"},
        "yaxis": {**axis, "title": {"text": "true"}, "autorange": "reversed"},
        "hovermode": "closest",
    }
    return {"data": [heat], "layout": layout}


def sample_section(report: Report) -> Section:
    """A few rows with what each method says of them: of the target, if there is one."""
    groups: dict[str, dict[int, Entry]] = {}
    for number, method in enumerate(report.methods):
        x = method.first.tensors.get("sample_x")
        if x is not None and len(x):
            digest = hashlib.sha256(str(x.shape).encode() + np.ascontiguousarray(x).tobytes()).hexdigest()
            groups.setdefault(digest, {})[number] = method.first
    if not groups:
        return Section("samples", "Predictions", [absent("These runs kept no rows with their predictions.")])
    which = "Target rows" if report.has_target else "Rows"
    parts: list[Part] = [
        Text(
            f"{which} that were picked by chance, and the likeliest class by each method with its probability. A tick "
            "is a right prediction, a cross a wrong one; rows without known labels have neither. Numbers of a table "
            f"are shown as the network sees them: scaled. {describe_model(report)}"
        )
    ]
    for members in groups.values():
        shown = dict(list(members.items())[:_MOST_METHODS])
        if len(groups) > 1:
            parts.append(Text(f"Rows of {', '.join(report.methods[number].label for number in shown)}:"))
        labels = {number: report.methods[number].label for number in shown}
        images = next(iter(shown.values())).tensors["sample_x"].ndim == 4
        parts.append(_gallery(shown, labels) if images else _rows(shown, labels))
        if len(members) > len(shown):
            parts.append(Text(f"The predictions of the last {len(members) - len(shown)} methods are left out."))
    return Section("samples", "Predictions", parts)


def _gallery(shown: dict[int, Entry], labels: dict[int, str]) -> Gallery:
    first = next(iter(shown.values()))
    images, true = first.tensors["sample_x"], first.tensors["sample_label"]
    cards = []
    for row in range(min(len(images), _MOST_ROWS)):
        said = [(number, labels[number], _describe_prediction(entry, row)) for number, entry in shown.items()]
        heading = f"class {first.name_of(int(true[row]))}" if true[row] >= 0 else "class not known"
        cards.append(Card(_png(images[row]), f"row {row + 1}, {heading}", heading, said))
    return Gallery(cards, smooth=max(images.shape[-2:]) < _TINY)


def _describe_prediction(entry: Entry, row: int) -> Markup:
    """The likeliest class with its probability, and whether it is right where that is known."""
    likeliest = int(entry.tensors["sample_class"][row, 0])
    probability = float(entry.tensors["sample_probability"][row, 0])
    true = int(entry.tensors["sample_label"][row])
    said = Markup('<span class="said">{} {:.0f}% </span>').format(entry.name_of(likeliest), 100 * probability)
    if true < 0:
        return said
    word, mark = ("right", "✓") if likeliest == true else ("wrong", "✗")
    return said + Markup('<span class="{0}" role="img" aria-label="{0}">{1}</span>').format(word, mark)


def _rows(shown: dict[int, Entry], labels: dict[int, str]) -> HtmlTable:
    first = next(iter(shown.values()))
    x, true = first.tensors["sample_x"], first.tensors["sample_label"]
    known = bool((true >= 0).any())
    width = x.shape[1]
    columns = first.headings[:width] if len(first.headings) >= width else [f"x{place + 1}" for place in range(width)]
    headings: list[object] = ["row", *columns, *(["class"] if known else [])]
    headings += [name_method(number, label) for number, label in labels.items()]
    numbers = [align(column.tolist()) for column in x[:_MOST_ROWS].T]
    rows: list[list[object]] = []
    for row in range(min(len(x), _MOST_ROWS)):
        cells: list[object] = [row + 1, *(column[row] for column in numbers)]
        cells += [first.name_of(int(true[row])) if true[row] >= 0 else "-"] if known else []
        rows.append([*cells, *(_describe_prediction(entry, row) for entry in shown.values())])
    return HtmlTable(headings, rows, "rows and their predictions")


def _png(image: Array) -> str:
    """An image ``[C, H, W]`` of bytes as an address that holds the whole of it."""
    from PIL import Image  # noqa: PLC0415 - only for runs on images

    pixels = np.asarray(image, np.uint8)
    plain_image = Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0))
    stream = io.BytesIO()
    plain_image.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
