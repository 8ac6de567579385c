"""The report as one HTML file that needs nothing else: style, data, program and plotting library are inside."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from fedmm.core.errors import FedmmError, require
from fedmm.core.files import atomic_write
from fedmm.reporting.html.charts import Lines, method_strokes, style_sheet, themes
from fedmm.reporting.html.collect import Report
from fedmm.reporting.html.costs import communication_section, cost_data, time_section
from fedmm.reporting.html.features import feature_section
from fedmm.reporting.html.groups import group_section
from fedmm.reporting.html.headline import headline
from fedmm.reporting.html.labelled import labelled_results
from fedmm.reporting.html.metrics import accuracy_section, agreement_section, domain_section, validator_section
from fedmm.reporting.html.parts import Section, swatch
from fedmm.reporting.html.predictions import confusion_section, sample_section
from fedmm.reporting.html.ranking import ranking_section
from fedmm.reporting.html.settings import configuration_section, guard_section
from fedmm.reporting.html.sites import site_section
from fedmm.reporting.html.tuning import tuning_section

_ASSETS = Path(__file__).with_name("assets")


def write_html(report: Report, path: Path) -> Path:
    """Write the report; the same runs give the same file."""
    library = _plotly()
    content = page(report, library)
    with atomic_write(path) as partial:
        partial.write_bytes(content.encode("utf-8", "replace"))
    return path


def sections(report: Report, lines: Lines) -> list[Section]:
    """All sections in their order. Those without data say so, but for tunings, and for domains without a target."""
    return [
        headline(report) if report.has_target else labelled_results(report),
        *(tuning_section(tuned, number) for number, tuned in enumerate(report.tunings, start=1)),
        accuracy_section(report, lines),
        validator_section(report, lines),
        agreement_section(report, lines),
        *([domain_section(report, lines), feature_section(report)] if report.has_target else []),
        confusion_section(report),
        ranking_section(report, lines),
        site_section(report),
        group_section(report),
        sample_section(report),
        communication_section(report, lines),
        time_section(report, lines),
        guard_section(report),
        configuration_section(report),
    ]


def page(report: Report, library: str) -> str:
    """The whole file; library: the text of plotly.js."""
    strokes = method_strokes(report)
    colours = themes(strokes)
    labels = [method.label for method in report.methods]
    shown = sections(report, Lines(labels, strokes))
    data = {
        "themes": colours,
        "charts": {chart.name: dict(chart.figures) for section in shown for chart in section.charts()},
        "costs": cost_data(report),
    }
    environment = Environment(
        loader=FileSystemLoader(_ASSETS),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    return environment.get_template("report.html").render(
        title=report.title,
        about=_about(report),
        labels=labels,
        sections=shown,
        swatch=swatch,
        data=data,
        style=Markup(_asset("report.css") + style_sheet(colours)),
        library=Markup(library.replace("</script", "<\\/script")),
        program=Markup(_asset("report.js")),
    )


def _about(report: Report) -> str:
    """One line on what was run."""
    runs = report.entries
    data = ", ".join(sorted({entry.data for entry in runs}))
    models = ", ".join(sorted({str(entry.summary["model"]) for entry in runs if entry.summary.get("model")}))
    clients = sorted({len(listed) for entry in runs if isinstance(listed := entry.summary.get("clients"), dict)})
    words = [f"{len(runs)} runs of {len(report.methods)} methods" if len(runs) > 1 else "one run", f"data {data}"]
    if models:
        words.append(f"model {models}")
    if clients:
        words.append(f"{' or '.join(map(str, clients))} clients")
    return " · ".join(words)


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """The text of plotly.js, as the plotly package brings it along."""
    package = importlib.util.find_spec("plotly")
    folders = list(package.submodule_search_locations or []) if package else []
    require(bool(folders), "an HTML report needs plotly: pip install 'fedmm[report]', or use --format pdf")
    script = Path(folders[0]) / "package_data" / "plotly.min.js"
    try:
        return script.read_text(encoding="utf-8")
    except OSError:
        raise FedmmError(f"{script} is missing: install plotly again, with pip install 'fedmm[report]'") from None
