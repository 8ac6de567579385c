"""Guess the roles of a table's columns from their names and contents."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fedmm.core.errors import FedmmError, require
from fedmm.data.columns import is_free_text
from fedmm.data.labels import sort_names
from fedmm.data.readers.table_formats import MISSING, TABLES, TEXT, TableFormat, read_cell
from fedmm.data.readers.tables import (
    JoinedTables,
    cell_kinds,
    is_numeric,
    is_plain,
    name_files,
    read_table,
    read_tables,
    texts,
)
from fedmm.preflight import table_checks
from fedmm.preflight.detect_format import date_formats, detect_format
from fedmm.preflight.table_checks import list_some

if TYPE_CHECKING:
    import pandas

_LABELS = (
    "label", "class", "y", "diagnosis", "outcome", "category", "species", "target", "type", "grade", "stage", "result",
    "disease", "readmitted", "churn", "response", "condition", "diagnose",
)  # fmt: skip
_SITES = (
    "site", "hospital", "clinic", "centre", "center", "institution", "institute", "client", "silo", "device", "scanner",
    "location", "country", "region", "branch", "lab", "laboratory", "station", "store", "facility", "provider",
    "klinik",
)  # fmt: skip
_MAYBE_SITES = (*_SITES, "bank", "city", "state", "ward", "school", "plant", "shop", "standort", "filiale")
"""Names of columns that hold sites in some tables, and inputs in others."""
_IDS = ("id", "uuid", "index", "patient", "subject", "row", "key", "record", "name")
_PEOPLE = ("id", "uuid", "pid", "patient", "patienten", "subject", "record", "mrn")
"""Names of columns that may be ids even if a value occurs in several rows."""
_DOMAINS = {"source", "target"}
_MOST_CLASSES, _MOST_SITES, _MOST_LEVELS = 50, 200, 100
_FEWEST_IDS, _ROWS_OF_AN_ID = 10, 20
_NUMBERS_AMONG_WORDS, _STRAY_WORDS, _FEWEST_ROWS = 0.9, 5, 20


@dataclass(frozen=True)
class Columns:
    """The columns of a table with the roles label, site, domain and id; empty if there is none.

    format: how the files are written. drop: useless columns, and why. dates: columns of dates, and their format.
    classes: the class of each label, if some are spelt in two ways. sites, labels: rows per site and per class.
    unlabelled: rows without label. said: messages for the user.
    """

    format: TableFormat
    label: str
    site: str
    domain: str
    id: str
    drop: Mapping[str, str]
    dates: Mapping[str, str]
    classes: Mapping[str, str]
    sites: Mapping[str, int]
    labels: Mapping[str, int]
    rows: int
    unlabelled: int
    smallest: int
    """Rows of the smallest site, or of the smaller domain."""
    said: tuple[str, ...] = field(default=())


class TableOptions(NamedTuple):
    """The user's options for tables: the columns of classes and sites, the header, column names and the sheet."""

    label: str = ""
    site: str = ""
    header: bool | None = None
    columns: tuple[str, ...] = ()
    sheet: str = ""


def find_columns(files: Mapping[str, Path], given: TableOptions) -> Columns:
    """Find the roles of the columns of a table, or of one table per site; if they are unclear, raise and ask for them.

    files: by site; the name of a single file does not matter.
    """
    label, site, header, names, sheet = given
    where, joined = name_files(files), len(files) > 1
    require(not (joined and site), "--site is not needed if each site has its own file")
    format = replace(detect_format(list(files.values())), sheet=sheet)
    if header is not None:
        format = replace(format, header=header)
    require(
        not names or not format.header,
        f"--columns names the columns of a table without header; {where} has one; if that is data, pass --no-header",
    )
    format = replace(format, names=tuple(names))
    frame, sites, lacking = _read(files, format)
    every = list(frame.columns)
    nameless = " (it has no header; name its columns with --columns)" if not format.header and not names else ""
    for option, name in (("--label", label), ("--site", site)):
        require(
            not name or name in every,
            f"{where} has no column {name!r} for {option}; it has {list_some(every)}{nameless}",
        )
    require(not site or site != label, f"column {site!r} is the label; the site must be in another one")
    total = table_checks.last_row_is_a_total(frame)
    require(not total, f"{where}: {total}")
    written = {name: texts(frame[name]) for name in every}
    domain = next((name for name in every if _says_domain(written[name])), "") if not site and not joined else ""
    label = label or _the_label(where, written, {site, domain})
    site = site or ("" if joined else _the_site(where, written, {label, domain}))
    own = _the_id(frame, written, {label, site, domain}, format.decimal)
    roles = {label, site, domain, own} - {""}
    format, stray = _more_missing(files, frame, written, format, label, roles)
    frame, sites, lacking = _read(files, format, roles)
    labels = texts(frame[label])
    sites = sites or (texts(frame[site]) if site else [])
    nobodys = sum(not cell for cell in sites)
    require(
        not nobodys,
        f"--site {site}: {nobodys} of {len(sites)} rows of {where} do not say whose they are; every row needs a site",
    )
    inputs = [name for name in every if name not in roles]
    dates, unclear = _dates(frame, inputs)
    drop = {name: why for name in inputs if name not in dates and (why := _of_no_use(frame[name], format.decimal))}
    drop.update(unclear)
    used = [name for name in inputs if name not in drop]
    numbers_and_words = [name for name in used if name not in dates]
    counted = Counter(sites)
    rows_of = {name: counted[name] for name in sort_names(counted)}
    unlabelled = sum(not cell for cell in labels)
    sizes = list(rows_of.values()) or [unlabelled or len(labels), len(labels) - unlabelled]
    classes, alike = _classes(labels)
    said = [
        *_about(format, files, names),
        *([] if sites else _hint_sites(written, roles)),
        *(sentence for path in files.values() for sentence in table_checks.odd_header(path, format)),
        *_about_id(own, frame, sites),
        *stray,
        *(f"column {name!r} is left out: {why}" for name, why in drop.items()),
        *(f"column {name!r} holds dates ({form}): read as days" for name, form in dates.items()),
        *table_checks.odd_cells(frame, numbers_and_words, format.decimal),
        *(f"column {name!r} says the same in every row: of no use" for name in used if _is_constant(written[name])),
        *table_checks.unfilled_columns(frame, sites or None, used, lacking),
        *table_checks.constant_at_a_site(frame, sites or None, numbers_and_words, format.decimal),
        *alike,
        *table_checks.spelt_alike(frame, [site, *numbers_and_words] if site else numbers_and_words, _MOST_LEVELS),
    ]
    held = Counter(classes.get(label, label) for label in labels if label)
    return Columns(
        format=format,
        label=label,
        site=site,
        domain=domain,
        id=own,
        drop=drop,
        dates=dates,
        classes=classes,
        sites=rows_of,
        labels={name: held[name] for name in sort_names(held)},
        rows=len(labels),
        unlabelled=unlabelled,
        smallest=max(1, min(sizes)),
        said=tuple(said),
    )


def _read(files: Mapping[str, Path], format: TableFormat, kept: Collection[str] = ()) -> JoinedTables:
    if len(files) > 1:
        return read_tables(files, format, kept)
    (path,) = files.values()
    return JoinedTables(read_table(path, format, kept), [], {})


def name_sites(paths: Sequence[Path]) -> dict[str, Path]:
    """Name files by what distinguishes their names: ``a.north.csv`` and ``a.south.csv`` become north and south."""
    names = [_stem(path) for path in paths]
    if len(set(names)) < len(names):
        names = [path.resolve().parent.name for path in paths]
    require(
        len(set(names)) == len(names),
        f"the files {list_some([str(path) for path in paths])} must have names of their own",
    )
    if len(names) > 1:
        parts = [re.split(r"([._\- ]+)", name) for name in names]
        while all(len(part) > 2 for part in parts) and len({part[0] for part in parts}) == 1:
            parts = [part[2:] for part in parts]
        while all(len(part) > 2 for part in parts) and len({part[-1] for part in parts}) == 1:
            parts = [part[:-2] for part in parts]
        names = ["".join(part) for part in parts]
    return dict(zip(names, paths, strict=True))


def _stem(path: Path) -> str:
    name = path.name
    ending = max((suffix for suffix in TABLES if name.lower().endswith(suffix)), key=len, default="")
    return name.removesuffix(name[len(name) - len(ending) :]) if ending else name


def _about(format: TableFormat, files: Mapping[str, Path], names: Sequence[str]) -> list[str]:
    """Describe how the files are written if that is not the default."""
    default = TableFormat()
    said = []
    if format.encoding != default.encoding:
        said.append(f"encoding {format.encoding}")
    if format.separator not in (default.separator, "\t"):
        said.append(f"cells separated by {format.separator!r}")
    if format.decimal != default.decimal:
        said.append("decimal commas")
    found = [f"how it is written: {', '.join(said)}"] if said else []
    if not format.header and any(path.name.lower().endswith(TEXT) for path in files.values()):
        called = (
            "named by --columns" if names else "called c1, c2 and so on (--columns names them, --header undoes this)"
        )
        found.append(f"the first line is read as data, not as a header; the columns are {called}")
    return found


def _about_id(name: str, frame: pandas.DataFrame, sites: Sequence[str]) -> list[str]:
    if not name:
        return []
    ids = texts(frame[name])
    pairs = list(zip(sites, ids, strict=True)) if sites else [("", id_) for id_ in ids]
    given = [pair for pair in pairs if pair[1]]
    different = len(set(given))
    if different == len(given):
        return [f"column {name!r} names the rows: no input"]
    return [
        f"column {name!r} is an id of {different} in {len(given)} rows: no input, and the rows of one id are all "
        "trained on or all tested on"
    ]


def _more_missing(
    files: Mapping[str, Path],
    frame: pandas.DataFrame,
    written: Mapping[str, list[str]],
    format: TableFormat,
    label: str,
    roles: set[str],
) -> tuple[TableFormat, list[str]]:
    """Add words for missing values: stray ones in numeric columns and in no other, and usual ones among labels."""
    said, more = [], []
    for name in frame.columns:
        kinds = cell_kinds(frame[name], format.decimal) if name not in roles and is_plain(frame[name]) else Counter()
        numbers = kinds["number"] + kinds["percent"] + kinds["censored"]
        if not kinds["word"] or numbers < _NUMBERS_AMONG_WORDS * (numbers + kinds["word"]):
            continue
        words = sorted({text for text in written[name] if read_cell(text, format.decimal).kind == "word"})
        elsewhere = any(set(words) & set(values) for other, values in written.items() if other != name)
        plain = not any(letter.isdecimal() for word in words for letter in word)
        if len(words) <= _STRAY_WORDS and plain and not elsewhere:
            more += words
            said.append(
                f"column {name!r} holds numbers and {', '.join(map(repr, words))} ({kinds['word']} of {len(frame)} "
                "rows): read as missing (data.missing)"
            )
    labels = texts(_read(files, format, roles).frame[label])
    none = sorted(set(labels) & set(MISSING) - {"", "None"})
    if none:
        more += none
        said.append(
            f"{' and '.join(map(repr, none))} in column {label!r} {'is' if len(none) == 1 else 'are'} read as no label "
            "(data.missing)"
        )
    return replace(format, missing=(*format.missing, *more)), said


def _dates(frame: pandas.DataFrame, inputs: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return columns of dates with their format, and those whose format is ambiguous with a message."""
    dates, unclear = {}, {}
    for name, forms in table_checks.dates_as_words(frame, inputs):
        if len(forms) == 1:
            dates[name] = forms[0]
        else:
            unclear[name] = f"its dates may be {' or '.join(forms)}; set the form in data.dates to read them as days"
    return dates, unclear


def _classes(labels: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the class of each label if some differ only in capitals or spaces, and messages on these."""
    counted = Counter(label for label in labels if label)
    groups = table_checks.differing_in_case(counted)
    said = [
        f"labels that differ only in capitals or spaces are one class: "
        f"{' and '.join(f'{word!r} ({counted[word]} rows)' for word in group)}; change data.classes "
        "(data.class_of of a federation) if they are not"
        for group in groups
    ]
    if not groups:
        return {}, said
    main = {member: max(group, key=lambda word: (counted[word], word)) for group in groups for member in group}
    return {label: main.get(label, label) for label in sort_names(counted)}, said


def _says_domain(values: Sequence[str]) -> bool:
    return {value.lower() for value in values} == _DOMAINS


def _the_label(where: str, written: dict[str, list[str]], others: set[str]) -> str:
    """Return the column of classes: of those named so, else of all with few values, the only one, or one with gaps."""
    able = [name for name, values in written.items() if name not in others and _few(values, 2, _MOST_CLASSES)]
    called = [name for name in able if _is_called(name, _LABELS)]
    partly = [name for name in called or able if "" in written[name]]
    for found in (partly, called, able):
        if len(found) == 1:
            return found[0]
    able = called or able
    require(
        bool(able), f"{where} has no column that could hold classes (2 to {_MOST_CLASSES} different values); --label"
    )
    counted = [f"{name} ({len(set(written[name]) - {''})} values)" for name in able]
    raise FedmmError(f"which column of {where} holds the classes? pass --label with one of: {list_some(counted)}")


def _the_site(where: str, written: dict[str, list[str]], others: set[str]) -> str:
    """Return the column that says who holds a row: the only one with such a name; empty if there is none."""
    named = [
        name
        for name, values in written.items()
        if name not in others and _is_called(name, _SITES) and "" not in values and _few(values, 2, _MOST_SITES)
    ]
    if len(named) > 1:
        counted = [f"{name} ({len(set(written[name]))} values)" for name in named]
        raise FedmmError(f"which column of {where} says who holds a row? pass --site with one of: {list_some(counted)}")
    return named[0] if named else ""


def _hint_sites(written: Mapping[str, list[str]], roles: Collection[str]) -> Iterator[str]:
    """Yield a sentence on each column that may say who holds a row."""
    for name, values in written.items():
        different, empty = len(set(values) - {""}), values.count("")
        if name not in roles and _is_called(name, _MAYBE_SITES) and 2 <= different < len(values) / 2:
            fill = f", after filling its {empty} empty cells" if empty else ""
            yield f"column {name!r} ({different} values) may hold sites; if it does, pass --site {name}{fill}"


def _the_id(frame: pandas.DataFrame, written: dict[str, list[str]], others: set[str], decimal: str) -> str:
    """Return the id column: a unique one named so, else a repeating one of people's ids, else a unique one."""
    able = {name: values for name, values in written.items() if name not in others and is_plain(frame[name])}
    unique = [name for name, values in able.items() if len(set(values)) == len(values) and "" not in values]
    for name in unique:
        if _is_called(name, _IDS):
            return name
    for name, values in able.items():
        different = len(set(values) - {""})
        many = different >= _FEWEST_IDS and different * _ROWS_OF_AN_ID >= len(values)
        if many and _is_called(name, _PEOPLE) and frame[name].dtype.kind != "f":
            return name
    for name in unique:
        words = not is_numeric(frame[name], decimal) and not is_free_text(able[name]) and not date_formats(able[name])
        if frame[name].dtype.kind in "iu" or words:
            return name
    return ""


def _of_no_use(column: pandas.Series, decimal: str) -> str:
    """Return why a column cannot be learnt from; empty if it can."""
    if not is_plain(column):
        return "it holds times or lists"
    if is_numeric(column, decimal):
        return ""
    values = [value for value in texts(column) if value not in MISSING]
    if why := table_checks.numbers_as_words(column, decimal):
        return why
    different = len(set(values))
    if is_free_text(values):
        return "it holds free text"
    if different > _MOST_LEVELS:
        return f"it holds {different} different words"
    if len(values) >= _FEWEST_ROWS and different > len(values) / 2:
        return "it holds another word in nearly every row, as names do"
    return ""


def _is_constant(values: Sequence[str]) -> bool:
    return len(set(values)) == 1 and values[0] not in MISSING


def _few(values: Sequence[str], low: int, high: int) -> bool:
    different = set(values) - {""}
    return low <= len(different) <= min(high, max(low, len(values) // 3))


def _is_called(name: str, words: Sequence[str]) -> bool:
    """Return whether a column's name is one of the words, or begins or ends with one: ``site_id``, ``hospitalName``."""
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)
    parts = [part for part in re.split(r"[^A-Za-z]+", apart.lower()) if part]
    return bool(parts) and (parts[0] in words or parts[-1] in words)
