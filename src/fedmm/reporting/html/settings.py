"""Sections of what the guard did, and of how the runs were configured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmm.reporting.html.collect import Entry, Material, differing, shown
from fedmm.reporting.html.markup import Markup, element, joined, table
from fedmm.reporting.html.sections import Section, absent, sentence

_MOST_COLUMNS = 24


def guard_section(material: Material) -> Section:
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
        for entry in material.entries
        for event in entry.guard_events
    ]
    headings = ["method", "seed", "round", "policy", "back to", "rates times", "penalties times", "reason"]
    parts: list[Markup] = [table(headings, rows, "what the guard did", numbers=99)] if rows else []
    refused = [(entry.run, int(sum(entry.run.series("refused").values))) for entry in material.entries]
    counted = [[run.label, run.seed, count] for run, count in refused if count]
    if counted:
        parts.append(sentence("Updates that were not counted:"))
        parts.append(table(["method", "seed", "refused"], counted, "refused updates"))
    if not parts:
        parts = [absent("The guard had nothing to do in these runs, and no update was refused.")]
    return Section("guard", "Guard", parts)


def configuration_section(material: Material) -> Section:
    """What differs between the methods first, then everything."""
    parts: list[Markup] = []
    methods = material.methods
    if len(methods) > 1:
        keys = differing([method.first.tables for method in methods])
        columns = methods[:_MOST_COLUMNS]
        rows = [
            [f"{section}.{key}", *(shown(method.first.tables.get(section, {}).get(key)) for method in columns)]
            for section, key in keys
        ]
        parts.append(sentence("What differs between the methods:" if rows else "The methods differ in nothing."))
        if rows:
            headings = ["key", *(method.label for method in columns)]
            parts.append(table(headings, rows, "what differs between the methods", numbers=99))
    for method in methods:
        if method.first.tables:
            parts.append(_whole(method.first))
    if not any(method.first.tables for method in methods):
        parts.append(absent("These runs kept no configuration."))
    parts.append(_environment(material))
    return Section("configuration", "Configuration", parts)


def _whole(entry: Entry) -> Markup:
    rows = [
        [f"{section}.{key}", shown(value)] for section, values in entry.tables.items() for key, value in values.items()
    ]
    words = f"everything of {entry.run.label}, seed {entry.run.seed}"
    return element("details", element("summary", words), table(["key", "value"], rows, words, numbers=99))


def _environment(material: Material) -> Markup:
    """Which versions, on what: each distinct answer once."""
    told = {
        "; ".join(f"{name}: {_words(entry.summary.get(name))}" for name in ("versions", "hardware", "engine")): None
        for entry in material.entries
        if entry.summary
    }
    listed = [element("li", each) for each in told]
    return element("ul", *listed, class_="environment") if listed else joined([])


def _words(values: object) -> str:
    if not isinstance(values, Mapping):
        return ""
    told: Mapping[str, Any] = values
    return ", ".join(f"{key} {shown(value)}" for key, value in told.items())
