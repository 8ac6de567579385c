"""How the tables of all sites become rows: before the first round, the server asks for sums and reports differences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from fedmm.config.schema import Experiment
from fedmm.config.sites import RowsElsewhere
from fedmm.core.errors import FedmmError, Say, require
from fedmm.core.files import write_json
from fedmm.data.columns import AgreedColumns
from fedmm.data.inputs import TableInput, build_input, input_table
from fedmm.deploy.layout import RunRequest
from fedmm.remote.flower.apps import Grid
from fedmm.remote.flower.roster import Roster, ask_sites, wait_for_sites
from fedmm.remote.packed import DESCRIBE, NAME, PROBLEM, Malformed, Packed, one_line
from fedmm.sites.column_sums import Described, merge_descriptions, read_description
from fedmm.sites.experiments import listed_sites, require_quorum
from fedmm.sites.tables import DESCRIPTION, ENCODING

ENCODING_FILE = "encoding.json"
_SPARE_BYTES = 4096


def has_tables(experiment: Experiment) -> bool:
    """Return whether an experiment's rows are tables at sites."""
    return isinstance(experiment.data, RowsElsewhere) and bool(experiment.data.features)


def agree_on_encoding(
    grid: Grid, roster: Roster, experiment: Experiment, question: Packed, served: RunRequest, say: Say
) -> TableInput:
    """Agree with the connected sites how their tables become rows; afterwards they introduce themselves again."""
    require_quorum(served.min_sites, listed_sites(experiment))
    least, seconds = served.min_sites or len(roster.names), served.enrol_seconds
    absent = wait_for_sites(grid, roster, question, timeout=seconds, say=say, enough=served.min_sites or None)
    reasons = "; ".join(["", *sorted(set(roster.turned_away.values()))])
    wanted = f"starts with {least} sites, but {len(roster.nodes)} came" if served.min_sites else "needs them"
    require(
        len(roster.nodes) >= least,
        f"{', '.join(absent)} did not come within {seconds:g} seconds; the run {wanted}{reasons}",
    )
    encoding = _merge_tables(grid, roster, experiment, question, replace(served, min_sites=least), say)
    roster.forget()
    return encoding


def _merge_tables(
    grid: Grid, roster: Roster, experiment: Experiment, question: Packed, served: RunRequest, say: Say
) -> TableInput:
    """Ask every connected site to describe its table, and merge the descriptions.

    The result is stored in the run's folder, and also applies to sites that join later. The tables of ``min_sites``
    must fit; others are left out by name.
    """
    data = experiment.data
    assert isinstance(data, RowsElsewhere)
    agreed = data.agreed
    require(
        not (experiment.terms.transmission.private and agreed.learns),
        f"data.scaling = {agreed.scaling!r} is learnt from sums of the sites' rows, which carry no noise although the "
        "updates do; use scaling = 'fixed' with ranges",
    )
    rows, fields = agreed.shape
    answers = ask_sites(
        grid,
        roster,
        DESCRIBE,
        {site: question for site in data.sites if site in roster.nodes},
        seconds=served.patience,
        most_bytes=8 * rows * fields + _SPARE_BYTES,
    )
    described, problems = _read_descriptions(agreed, answers)
    require(len(described) >= served.min_sites, f"the sites' tables do not fit the experiment: {'; '.join(problems)}")
    for problem in problems:
        say(f"tables: {problem}; the run starts without it")
    merged = merge_descriptions(agreed, described)
    for note in merged.notes:
        say(f"tables: {note}")
    found = data.table_input(merged.columns, merged.scales)
    say(f"tables: {len(merged.columns)} columns become {len(found.headings)} numbers, scaling {agreed.scaling}")
    write_json(served.folder / ENCODING_FILE, input_table(found))
    return found


def read_encoding(folder: Path) -> TableInput | None:
    """Return what the sites of a run agreed on; None if they have not."""
    path = folder / ENCODING_FILE
    if not path.exists():
        return None
    try:
        found = build_input(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as problem:
        raise FedmmError(f"{path} does not say how the sites' tables become rows: {problem}") from problem
    assert isinstance(found, TableInput)
    return found


def describe_columns(encoding: TableInput | None) -> dict[str, str]:
    """Return the columns as sites are told of them; nothing that one site alone contributed."""
    return {} if encoding is None else {ENCODING: json.dumps([asdict(column) for column in encoding.columns])}


def with_encoding(experiment: Experiment, encoding: TableInput | None) -> Experiment:
    """Return the experiment with the encoding of its tables, if that is known."""
    if encoding is None:
        return experiment
    assert isinstance(experiment.data, RowsElsewhere)
    return replace(experiment, data=experiment.data.encoded(encoding))


def _read_descriptions(
    agreed: AgreedColumns, answers: Mapping[str, Packed]
) -> tuple[dict[str, dict[str, Described]], list[str]]:
    """Return the sites' descriptions of their tables, and why others do not fit."""
    found, problems = dict[str, dict[str, Described]](), list[str]()
    for name in sorted(answers):
        try:
            found[name] = _read(agreed, name, answers[name])
        except Malformed as problem:
            words = str(problem)
            problems.append(f"{name} {words}" if words.startswith("has ") else f"{name}: {words}")
    return found, problems


def _read(agreed: AgreedColumns, name: str, answer: Packed) -> dict[str, Described]:
    about = answer.about
    if PROBLEM in about:
        raise Malformed(one_line(about[PROBLEM]))
    if about.get(NAME) != name:
        raise Malformed(f"it answers under the name {one_line(about.get(NAME), 60)!r}")
    array = answer.arrays.get(DESCRIPTION)
    if array is None or len(answer.arrays) > 1:
        raise Malformed("its description of its table is not one array")
    try:
        return read_description(agreed, array)
    except ValueError as problem:
        raise Malformed(one_line(problem)) from problem
