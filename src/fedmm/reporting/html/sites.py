"""The section on single sites: how good the model is on labelled rows of each that it was not trained on."""

from __future__ import annotations

from fedmm.reporting.html.chosen import describe_model
from fedmm.reporting.html.collect import Report, name_rows
from fedmm.reporting.html.grouped import Scored, build_score_parts, explain
from fedmm.reporting.html.parts import Controls, Section, Text, absent, method_options
from fedmm.reporting.scores import groups_by
from fedmm.reporting.tested import AT_SITES, SITE_ROWS


def site_section(report: Report) -> Section:
    """Worst, mean and spread over sites, a dot with its interval for each, and a table."""
    found = {
        (number, rows): Scored(
            number,
            f"{number}|{rows}",
            name_rows(rows, report),
            f"sites by their {name_rows(rows, report)}, {method.label}",
            method.first.sites[rows].ordered(groups_by(report.metric)),
        )
        for rows in SITE_ROWS
        for number, method in enumerate(report.methods)
        if rows in method.first.sites
    }
    if not found:
        words = "These runs do not know which sites hold labelled test rows, so no site is scored on its own."
        return Section("sites", "Sites", [absent(words)])
    scored = list(found.values())
    words = (
        f"The model on labelled rows of each site that it was not trained on, {explain('site', scored)} "
        f"{describe_model(report)}"
    )
    methods, kinds = dict.fromkeys(number for number, _ in found), dict.fromkeys(rows for _, rows in found)
    if AT_SITES in kinds:
        words += (
            " Sites measure on rows kept from training; whatever was selected on them looks better there than it is."
        )
    options = [(rows, name_rows(rows, report)) for rows in kinds]
    controls = Controls([("method", method_options(methods, report)), ("rows", options)])
    keys = [f"{number}|{rows}" for number in methods for rows in kinds]
    return Section("sites", "Sites", [Text(words), *build_score_parts("site", scored, report, controls, keys)])
