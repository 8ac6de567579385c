"""Experiments with wrong keys, types and values, and TOML files that are damaged."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
from fuzz.hostile import PLAIN, TEXT, VALUES, answered, damaged_text, examples
from hypothesis import given
from hypothesis import strategies as st

from fedmm.algorithms import ALGORITHMS
from fedmm.config.schema import Experiment, experiment
from fedmm.config.sweep_grid import grid
from fedmm.config.toml import read_tables, read_toml, set_values, write_toml
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.mechanisms import TRANSMISSIONS
from fedmm.core.options import PRESETS
from fedmm.core.schedules import SCHEDULES
from fedmm.core.target_losses import TARGET_LOSSES
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS
from fedmm.objectives import OBJECTIVES
from fedmm.runs.build import DataCache, prepare

ROOT = Path(__file__).parents[2]
ROWS: dict[str, Mapping[str, type[Any]]] = {
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "objective": OBJECTIVES,
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "transmission": TRANSMISSIONS,
}
OWN: dict[str, type[Any]] = {name: hint for name, hint in get_type_hints(Experiment).items() if name not in ROWS}
"""Sections that are one dataclass, not a row of a table."""
SMALL = {
    "run": {"rounds": 1, "batch_size": 2, "probe_rows": 4},
    "data": {"name": "moons", "rows": 8, "test_rows": 4},
    "model": {"name": "mlp", "hidden": [3], "adversary_hidden": [3]},
    "algorithm": {"name": "fedmm", "local_steps": 1},
}
FILES = [*sorted((ROOT / "examples").glob("*.toml")), *sorted((ROOT / "paper").rglob("*.toml"))]
NAMED: dict[str, Any] = {**SCHEDULES, **TARGET_LOSSES}
SCHEDULE_OR_LOSS = st.sampled_from([*NAMED]) | st.builds(
    lambda name, options: {"name": name, **options},
    st.sampled_from([*NAMED, "nothing"]),
    st.dictionaries(st.sampled_from(sorted({f.name for row in NAMED.values() for f in fields(row)})), PLAIN),
)
GROUPS = st.dictionaries(st.sampled_from(["*", "features", "adversary", "task_head", "features.1", "", "x"]), PLAIN)
CLIENTS = st.dictionaries(st.sampled_from(["source-1", "target-1", "client-1", "", "x"]), PLAIN, max_size=2)
SPECIAL = VALUES | SCHEDULE_OR_LOSS | GROUPS | CLIENTS | st.lists(st.integers(-1, 9), max_size=3)


@st.composite
def sections(draw: st.DrawFn, value: st.SearchStrategy[Any] = SPECIAL) -> dict[str, Any]:
    """Any rows of all tables, with some of their options changed."""
    tables: dict[str, Any] = {section: {} for section in OWN}
    for section, rows in ROWS.items():
        tables[section] = {"name": draw(st.sampled_from(sorted(rows)))}
    if draw(st.booleans()):
        tables["run"]["preset"] = draw(st.sampled_from(sorted(PRESETS)))
    for _ in range(draw(st.integers(1, 3))):
        section = draw(st.sampled_from(sorted(tables)))
        row = OWN[section] if section in OWN else ROWS[section][tables[section]["name"]]
        options = [field.name for field in fields(row)]
        if options:
            tables[section][draw(st.sampled_from(options))] = draw(value)
    return tables


@st.composite
def misshapen(draw: st.DrawFn) -> dict[str, Any]:
    """Tables with sections and keys that are missing, unknown, or something else than they should be."""
    tables = draw(sections())
    for _ in range(draw(st.integers(1, 2))):
        section = draw(st.sampled_from([*OWN, *ROWS, "sweep", "extends"]) | TEXT)
        match draw(st.sampled_from(["lose", "replace", "add", "name", "sweep"])):
            case "lose":
                tables.pop(section, None)
            case "replace":
                tables[section] = draw(VALUES)
            case "name" if isinstance(tables.get(section), dict):
                tables[section]["name"] = draw(VALUES)
            case "sweep":
                key = draw(
                    st.sampled_from(["run.seed", "run.rounds.x", "algorithm", "data.name", "run", ".", ""]) | TEXT
                )
                tables["sweep"] = {key: draw(st.lists(VALUES, max_size=3) | VALUES)}
            case _ if isinstance(tables.get(section), dict):
                tables[section][draw(TEXT)] = draw(VALUES)
    return tables


def same_again(built: Experiment) -> None:
    """What was built can be written, read and built again, and its schedules give numbers."""
    again = experiment(tomllib.loads(write_toml(built.tables())))
    assert again == built
    for schedule in (built.algorithm.lr_schedule, built.objective.nu_schedule):
        for t in (0, 1, built.run.rounds - 1):
            assert math.isfinite(schedule(t, built.run.rounds))


@examples(250)
@given(sections())
def test_an_experiment_is_built_or_refused_by_key(tables: dict[str, Any]) -> None:
    built = answered(lambda: experiment(tables))
    if built is not None:
        same_again(built)


@examples(120)
@given(misshapen())
def test_sections_and_sweeps_of_any_shape_are_built_or_refused(tables: dict[str, Any]) -> None:
    answered(lambda: experiment(tables))
    built = answered(lambda: grid(tables))
    if built:
        same_again(built[0])


@pytest.mark.parametrize(("section", "row"), [(section, row) for section, rows in ROWS.items() for row in rows])
def test_every_option_of_every_row_refuses_what_is_no_value_of_it(section: str, row: str) -> None:
    """Each option alone with a list of wrong values, so that none is left to chance."""
    other = {"data": {"name": "moons"}, "model": {"name": "mlp"}}
    for field in fields(ROWS[section][row]):
        for value in HARD:
            built = answered(lambda: experiment({**other, section: {"name": row, field.name: value}}))  # noqa: B023
            if built is not None:
                same_again(built)


@pytest.mark.parametrize(("section", "option"), [(each, field.name) for each in OWN for field in fields(OWN[each])])
def test_every_option_of_a_section_refuses_what_is_no_value_of_it(section: str, option: str) -> None:
    for value in HARD:
        built = answered(lambda: experiment({**SMALL, section: {option: value}}))  # noqa: B023
        if built is not None:
            same_again(built)


HARD: list[Any] = [
    math.nan, math.inf, -1, 10**30, 1e308, "", "\x00", "\ud800", [], [[]], [None], [-1], [2**63], {}, {"": -1},
    {"*": math.nan}, {"name": "constant", "x": 1}, {"name": []}, None, True, b"x", {"a": {"b": {}}}, [1, "a"], 0,
    "nothing",
]  # fmt: skip


@examples(30)
@given(data=st.data())
def test_what_is_accepted_can_be_prepared_or_is_refused(data: st.DataObject) -> None:
    """A small experiment with one option changed: data, partition, network, clients are made, or one line says why."""
    tables = {section: dict(table) for section, table in SMALL.items()}
    section = data.draw(st.sampled_from([*OWN, *ROWS]))
    if section in OWN:
        row = OWN[section]
    else:
        names = [name for name in sorted(ROWS[section]) if name != "mobilenet_v2"]
        name = data.draw(st.sampled_from(names))
        row = ROWS[section][name]
        if tables.get(section, {}).get("name") != name:
            tables[section] = {"name": name}
    if fields(row):
        tables.setdefault(section, {})[data.draw(st.sampled_from([field.name for field in fields(row)]))] = data.draw(
            SPECIAL
        )
    threads = torch.get_num_threads()
    try:
        answered(lambda: prepare(experiment(tables), DataCache()))
    finally:
        torch.set_num_threads(threads)


# Text -----------------------------------------------------------------------------------------------------------------


@examples(120)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused_by_name(data: st.DataObject, tmp_path: Path) -> None:
    whole = data.draw(st.sampled_from(FILES))
    path = tmp_path / "damaged.toml"
    path.write_bytes(data.draw(damaged_text(whole.read_bytes())))

    def read() -> None:
        tables = read_tables(path)
        tables.pop("reproduce", None)
        experiments = grid(tables) if "sweep" in tables else [experiment(tables)]
        same_again(experiments[0])

    answered(read)


@pytest.mark.parametrize(
    "base", ["\x00", "a\x00b", "", ".", "..", "/", "/dev/null", "x" * 5000, "\ud800", "no.toml", "\n"]
)
def test_a_file_that_extends_something_odd_is_refused(tmp_path: Path, base: str) -> None:
    path = tmp_path / "own.toml"
    path.write_text("extends = " + write_toml({"a": {"b": "x"}}).split("= ")[1].replace("x", escaped(base)))
    assert answered(lambda: read_tables(path)) in (None, {})


def escaped(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" if not letter.isprintable() else letter for letter in text)


def test_a_chain_of_files_without_end_is_refused(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"{number}.toml").write_text(f'extends = "{number + 1}.toml"')
    assert answered(lambda: read_tables(tmp_path / "0.toml")) is None


def test_a_loop_of_links_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").symlink_to("b.toml")
    (tmp_path / "b.toml").symlink_to("a.toml")
    assert answered(lambda: read_tables(tmp_path / "a.toml")) is None


def test_a_file_without_end_is_refused() -> None:
    if not Path("/dev/zero").exists():
        pytest.skip("this system has no file without end")
    assert answered(lambda: read_toml(Path("/dev/zero"))) is None


@pytest.mark.parametrize("depth", range(50, 1000, 50))
def test_nesting_of_any_depth_is_taken_or_refused(tmp_path: Path, depth: int) -> None:
    """What the TOML reader can just take, copying, checking and telling it must be able to take too."""
    path = tmp_path / "deep.toml"
    path.write_text(f"[run]\nlabel = {'[' * depth}{']' * depth}\n[data]\nname = 'moons'\n[model]\nname = 'mlp'\n")
    assert answered(lambda: experiment(set_values(read_tables(path), ["run.seed=1"]))) is None
    path.write_text(f"[{'.'.join('a' * depth)}]\n")
    assert answered(lambda: grid({**SMALL, "sweep": set_values(read_tables(path), ["run.seed=1"])})) is None


@examples(120)
@given(st.lists(st.tuples(TEXT, TEXT, VALUES | TEXT), max_size=3), st.sampled_from(["", ".", "=", '"']))
def test_settings_of_any_form_are_applied_or_refused(parts: list[tuple[str, str, Any]], between: str) -> None:
    settings = [f"{section}{between}.{key}={value}" for section, key, value in parts]
    answered(lambda: experiment(set_values(SMALL, settings)))
