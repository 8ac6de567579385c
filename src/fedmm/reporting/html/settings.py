"""Sections of what the guard did, and of how the runs were configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmm.reporting.html.collect import Entry, Report
from fedmm.reporting.html.configurations import differing, shown
from fedmm.reporting.html.parts import Details, HtmlTable, Listing, Part, Section, Text, absent

_MOST_COLUMNS = 24


def guard_section(report: Report) -> Section:
    """Rollbacks, stops, and updates that were refused."""
    rows = [
        [
            entry.run.label,
            entry.run.seed,
            event.get("round", "-"),
            event.get("policy", "-"),
            event.get("to_round", "-"),
            shown(event.get("lr_times")),
            shown(event.get("penalty_times")),
            event.get("reason", "-"),
        ]
        for entry in report.entries
        for event in entry.guard_events
    ]
    headings = ["method", "seed", "round", "policy", "back to", "rates times", "penalties times", "reason"]
    parts: list[Part] = [HtmlTable(headings, rows, "what the guard did", numbers=99)] if rows else []
    refused = [(entry.run, int(sum(entry.run.series("refused").values))) for entry in report.entries]
    counted = [[run.label, run.seed, count] for run, count in refused if count]
    if counted:
        parts.append(Text("Updates that were not counted:"))
        parts.append(HtmlTable(["method", "seed", "refused"], counted, "refused updates"))
    if not parts:
        parts = [absent("The guard had nothing to do in these runs, and no update was refused.")]
    return Section("guard", "Guard", parts)


def configuration_section(report: Report) -> Section:
    """What differs between the methods first, then everything."""
    parts: list[Part] = []
    methods = report.methods
    if len(methods) > 1:
        keys = differing([method.first.tables for method in methods])
        columns = methods[:_MOST_COLUMNS]
        rows = [
            [f"{section}.{key}", *(shown(method.first.tables.get(section, {}).get(key)) for method in columns)]
            for section, key in keys
        ]
        parts.append(Text("What differs between the methods:" if rows else "The methods do not differ."))
        if rows:
            headings = ["key", *(method.label for method in columns)]
            parts.append(HtmlTable(headings, rows, "what differs between the methods", numbers=99))
    for method in methods:
        if method.first.tables:
            parts.append(_whole(method.first))
    if not any(method.first.tables for method in methods):
        parts.append(absent("These runs kept no configuration."))
    return Section("configuration", "Configuration", [*parts, *_environment(report)])


def _whole(entry: Entry) -> Details:
    rows = [
        [f"{section}.{key}", shown(value)] for section, values in entry.tables.items() for key, value in values.items()
    ]
    words = f"everything of {entry.run.label}, seed {entry.run.seed}"
    return Details(words, HtmlTable(["key", "value"], rows, words, numbers=99))


def _environment(report: Report) -> list[Part]:
    """Which versions, on what: each distinct answer once."""
    told = {
        "; ".join(f"{name}: {_words(entry.summary.get(name))}" for name in ("versions", "hardware", "engine")): None
        for entry in report.entries
        if entry.summary
    }
    return [Listing(list(told), "environment")] if told else []


def _words(values: object) -> str:
    if not isinstance(values, Mapping):
        return ""
    told: Mapping[str, Any] = values
    return ", ".join(f"{key} {shown(value)}" for key, value in told.items())
