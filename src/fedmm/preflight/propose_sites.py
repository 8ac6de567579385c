"""A federation begun at one site: from its table to the site's own file, and an experiment that others can join."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedmm.config.sites import ELSEWHERE
from fedmm.core.errors import require
from fedmm.data.labels import sort_names
from fedmm.data.readers.table_formats import MISSING, TABLES
from fedmm.data.readers.tables import is_numeric, read_table, texts
from fedmm.preflight.propose import Found, Line, TableOptions, format_lines, written_sections
from fedmm.preflight.table_columns import Columns, columns_of


class SiteProposal(NamedTuple):
    """An experiment's data, and the text of the site's file."""

    found: Found
    site: str


def propose_site(path: Path, name: str, others: Sequence[str], given: TableOptions) -> SiteProposal:
    """Look at the table of one site. others: the names of those that will take part too."""
    require(path.is_file(), f"--as-site needs the table of that site ({', '.join(TABLES)}), and {path} is no file")
    columns = columns_of({name: path}, given.label, "", header=given.header, names=given.columns, sheet=given.sheet)
    roles = {columns.label, columns.id, columns.domain, columns.site, *columns.drop}
    frame = read_table(path, columns.format, [columns.label])
    features = [column for column in frame.columns if column not in roles]
    require(bool(features), f"{path} has no column to learn from")
    categories = {
        column: list(sort_names(word for word in texts(frame[column]) if word not in MISSING))
        for column in features
        if column not in columns.dates and not is_numeric(frame[column], columns.format.decimal)
    }
    format = format_lines(columns)
    classes = list(dict.fromkeys(columns.classes.values())) or list(columns.labels)
    data = [
        Line("sites", [name, *others], "all that take part"),
        Line("classes", classes, "in the order of their numbers"),
        Line("features", features, "the columns that are learnt from; a site without one is refused"),
        Line("lacking", "missing", "or its rows say nothing there", True),
        *((Line("categories", categories, "the same at all sites; add words that others have"),) if categories else ()),
        *((Line("dates", dict(columns.dates), "become days since 1970"),) if columns.dates else ()),
        Line("scaling", "standard", "by sums that sites send; fixed goes by ranges, and needs none"),
        Line("ranges", {features[0]: [0, 100]}, "the least and the largest number of a column", True),
        Line("label", columns.label, "of files to predict for, and how they are written"),
        *((Line("class_of", dict(columns.classes)),) if columns.classes else ()),
        *(line for line in format if line.key != "sheet"),
    ]
    said = (
        f"a table of {columns.rows} rows at {name}: label {columns.label!r}, {len(features)} columns to learn from",
        f"{len(classes)} classes: {', '.join(classes)}",
        *columns.said,
    )
    found = Found(ELSEWHERE, tuple(data), (1,), columns.smallest, False, said)
    return SiteProposal(found, _site_file(path, name, columns, features, format))


def _site_file(path: Path, name: str, columns: Columns, features: Sequence[str], format: Sequence[Line]) -> str:
    sections = {
        "site": (
            Line("name", name),
            Line("state", f"state/{name}", "what the site keeps; paths are relative to this file"),
        ),
        "data": (
            Line("kind", "table"),
            Line("path", str(path.resolve())),
            Line("domain", "source", "target: no labels, or none that are read; both: rows without are the target"),
            Line("label", columns.label),
            *((Line("classes", dict(columns.classes), "of each label"),) if columns.classes else ()),
            Line("features", list(features), "the columns that may be learnt from, whoever asks"),
            *((Line("id", columns.id, "names the rows, and is no input"),) if columns.id else ()),
            *((Line("drop", list(columns.drop), "not looked at"),) if columns.drop else ()),
            *format,
            Line("rename", {"mine": features[0]}, "columns that are called otherwise here", True),
        ),
        "superlink": (
            Line("address", "link.example.org:9092"),
            Line("certificate", "ca.crt", "of the authority that signed the SuperLink's"),
            Line("key", name, f"made by `fedmm deploy key {name}`"),
            Line("coordinator", "coordinator.pub", "whose messages are answered"),
        ),
        "policy": (Line("min_rows", 20, "no sum over fewer rows leaves the site, and no model trained on fewer"),),
    }
    head = f"# The file of the site {name}, written by `fedmm init`; it stays there. `fedmm deploy site` runs it."
    return "\n".join([head, "", *written_sections(sections)])
