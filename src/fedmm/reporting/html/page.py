"""The report as one HTML file that needs nothing else: style, data, program and plotting library are inside."""

from __future__ import annotations

import importlib.util
import json
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import atomic_write
from fedmm.reporting.html.charts import Lines
from fedmm.reporting.html.collect import Material
from fedmm.reporting.html.colours import method_strokes, style_sheet, themes
from fedmm.reporting.html.costs import communication_section, cost_data, time_section
from fedmm.reporting.html.features import feature_section
from fedmm.reporting.html.headline import headline, swatch
from fedmm.reporting.html.markup import Markup, element, joined, text
from fedmm.reporting.html.metrics import accuracy_section, agreement_section, domain_section, validator_section
from fedmm.reporting.html.predictions import confusion_section, sample_section
from fedmm.reporting.html.sections import Section
from fedmm.reporting.html.settings import configuration_section, guard_section

_ASSETS = "fedmm.reporting.html.assets"


def write_html(material: Material, path: Path) -> Path:
    """Write the report; the same runs give the same file."""
    library = _plotly()
    content = page(material, library)
    with atomic_write(path) as partial:
        partial.write_bytes(content.encode("utf-8", "replace"))
    return path


def sections(material: Material, lines: Lines) -> list[Section]:
    """All sections in their order; those without data say so."""
    return [
        headline(material),
        accuracy_section(material, lines),
        validator_section(material, lines),
        agreement_section(material, lines),
        domain_section(material, lines),
        feature_section(material),
        confusion_section(material),
        sample_section(material),
        communication_section(material, lines),
        time_section(material, lines),
        guard_section(material),
        configuration_section(material),
    ]


def page(material: Material, library: str) -> str:
    """The whole file; library: the text of plotly.js."""
    strokes = method_strokes(material)
    found = themes(strokes)
    parts = sections(material, Lines([method.label for method in material.methods], strokes))
    data = {
        "themes": found,
        "charts": {chart.name: dict(chart.figures) for part in parts for chart in part.charts()},
        "costs": cost_data(material),
    }
    return Template(_asset("report.html")).substitute(
        title=text(material.title),
        style=_asset("report.css") + style_sheet(found),
        about=text(_about(material)),
        contents=joined(element("li", element("a", part.title, href=f"#{part.name}")) for part in parts),
        methods=_legend(material),
        sections=joined(part.html() for part in parts),
        data=_as_json(data),
        library=library.replace("</script", "<\\/script"),
        program=_asset("report.js"),
    )


def _about(material: Material) -> str:
    """One line on what was run."""
    runs = material.entries
    data = ", ".join(sorted({entry.run.data for entry in runs}))
    models = ", ".join(sorted({str(entry.summary["model"]) for entry in runs if entry.summary.get("model")}))
    clients = sorted({len(each) for entry in runs if isinstance(each := entry.summary.get("clients"), dict)})
    words = [f"{len(runs)} runs of {len(material.methods)} methods" if len(runs) > 1 else "one run", f"data {data}"]
    if models:
        words.append(f"model {models}")
    if clients:
        words.append(f"{' or '.join(map(str, clients))} clients")
    return " · ".join(words)


def _legend(material: Material) -> Markup:
    """A button for each method that shows or hides it in every chart."""
    return joined(
        element(
            "button",
            swatch(number),
            method.label,
            type="button",
            class_="method",
            data_method=number,
            aria_pressed="true",
        )
        for number, method in enumerate(material.methods)
    )


def _as_json(data: Any) -> str:
    """JSON that can stand inside a script element: no letter in it ends one."""
    written = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files(_ASSETS) / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The text of plotly.js, as the plotly package brings it along."""
    found = importlib.util.find_spec("plotly")
    places = list(found.submodule_search_locations or []) if found else []
    require(bool(places), "an HTML report needs plotly: pip install 'fedmm[report]', or use --format pdf")
    script = Path(places[0]) / "package_data" / "plotly.min.js"
    try:
        return script.read_text(encoding="utf-8")
    except OSError:
        raise FedmmError(f"{script} is missing: install plotly again, with pip install 'fedmm[report]'") from None
