"""Propose an experiment over sites from the table of one of them, and write that site's own file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from fedmm.config.sites import ELSEWHERE
from fedmm.core.errors import require
from fedmm.core.signals.validators import METRICS
from fedmm.core.validation import one_of
from fedmm.data.labels import sort_names
from fedmm.data.readers.table_formats import MISSING, TABLES
from fedmm.data.readers.tables import is_numeric, read_table, texts
from fedmm.preflight.propose import format_lines
from fedmm.preflight.table_columns import TableOptions, find_columns
from fedmm.preflight.write_experiment import DetectedData, KeyLine, count_kept_rows, require_metric, write_site


class SiteProposal(NamedTuple):
    """An experiment's data, and the text of the site's file."""

    found: DetectedData
    site: str


def propose_site(path: Path, name: str, others: Sequence[str], given: TableOptions, metric: str = "") -> SiteProposal:
    """Propose an experiment from the table of one site; others: the names of the other sites that will take part.

    metric: one of METRICS, if no site is a target; empty if there is one.
    """
    if metric:
        one_of("--metric", metric, tuple(METRICS))
    require(metric != "worst_site" or bool(others), "--metric worst_site needs other sites; name them with --with-site")
    require(path.is_file(), f"--as-site needs that site's table ({', '.join(TABLES)}), and {path} is not a file")
    columns = find_columns({name: path}, given._replace(site=""))
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
    if metric:
        require_metric(metric, columns, str(path), "; let a site that has both write the experiment")
    classes = list(dict.fromkeys(columns.classes.values())) or list(columns.labels)
    if metric and len(classes) == 2:
        classes.sort(key=lambda each: -columns.labels[each])  # equally frequent classes keep their order
    data = [
        KeyLine("sites", [name, *others], "all that take part"),
        KeyLine("classes", classes, "in the order of their numbers; of two the last is looked for"),
        KeyLine("features", features, "the columns that are learnt from; a site without one is refused"),
        KeyLine("lacking", "missing", "or its values count as missing there", True),
        *(
            (KeyLine("categories", categories, "the same at all sites; add words that others have"),)
            if categories
            else ()
        ),
        *((KeyLine("dates", dict(columns.dates), "become days since 1970"),) if columns.dates else ()),
        KeyLine("scaling", "standard", "from sums that sites send; fixed uses ranges instead and needs no sums"),
        KeyLine("ranges", {features[0]: [0, 100]}, "the least and the largest number of a column", True),
        KeyLine("label", columns.label, "of files to predict for, and how they are written"),
        *((KeyLine("class_of", dict(columns.classes)),) if columns.classes else ()),
        *(line for line in format if line.key != "sheet"),
    ]
    said = (
        f"a table of {columns.rows} rows at {name}: label {columns.label!r}, {len(features)} columns to learn from",
        f"{len(classes)} classes: {', '.join(classes)}",
        *columns.said,
    )
    kept, enough = count_kept_rows(columns.rows)
    found = DetectedData(
        ELSEWHERE,
        tuple(data),
        shape=(1,),
        smallest=columns.rows - kept if metric and enough else columns.rows,
        by_site=False,
        said=said,
        metric=metric,
        sites=len(others) + 1,
    )
    return SiteProposal(found, write_site(path, name, columns, features, format, aside=bool(metric)))
