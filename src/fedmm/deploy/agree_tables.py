"""How the tables of all sites become rows, before the first round: the server asks for sums, and tells what differs."""

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
    """Whether the rows of an experiment are tables at sites."""
    return isinstance(experiment.data, RowsElsewhere) and bool(experiment.data.features)


def agree_on_encoding(
    grid: Grid, roster: Roster, experiment: Experiment, question: Packed, served: RunRequest, say: Say
) -> TableInput:
    """How the tables of the sites that are there become rows; they introduce themselves again once it is known."""
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
    """Ask every site that is there to describe its table, and merge what they tell.

    The outcome is kept in the run's folder, and holds for sites that join later. Tables of ``min_sites`` have to fit;
    others are left out by name.
    """
    data = experiment.data
    assert isinstance(data, RowsElsewhere)
    agreed = data.agreed
    require(
        not (experiment.terms.transmission.private and agreed.learns),
        f"data.scaling = {agreed.scaling!r} is learnt from sums of the sites' rows, which have no noise where updates "
        "carry it; use scaling = 'fixed' with ranges",
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
    """What the sites of a run agreed on; None if they have not."""
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
    """The columns as sites are told of them; nothing of what any one site holds alone."""
    return {} if encoding is None else {ENCODING: json.dumps([asdict(column) for column in encoding.columns])}


def with_encoding(experiment: Experiment, encoding: TableInput | None) -> Experiment:
    """The experiment, where it is known how its tables become rows."""
    if encoding is None:
        return experiment
    assert isinstance(experiment.data, RowsElsewhere)
    return replace(experiment, data=experiment.data.encoded(encoding))


def _read_descriptions(
    agreed: AgreedColumns, answers: Mapping[str, Packed]
) -> tuple[dict[str, dict[str, Described]], list[str]]:
    """What the sites tell of their tables, and of those that do not fit, why."""
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
        raise Malformed(f"it answers in the name of {one_line(about.get(NAME), 60)!r}")
    array = answer.arrays.get(DESCRIPTION)
    if array is None or len(answer.arrays) > 1:
        raise Malformed("it does not describe its table by one array")
    try:
        return read_description(agreed, array)
    except ValueError as problem:
        raise Malformed(one_line(problem)) from problem
