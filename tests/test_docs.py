"""The pages say what the program does: every key with its type and default, every preset, and code that runs."""

from __future__ import annotations

import importlib
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, NamedTuple

import pytest

from fedmm import ALGORITHMS, OBJECTIVES
from fedmm.algorithms.averaging import Averaging
from fedmm.algorithms.server_optimizers import SERVER_OPTIMIZERS, ServerOptimizer
from fedmm.cli.app import app
from fedmm.config.dataclass_io import as_table
from fedmm.config.presets import preset_tables
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.mechanisms import TRANSMISSIONS
from fedmm.core.options import PRESETS, TrainOptions
from fedmm.core.schedules import SCHEDULES, Schedule
from fedmm.core.signals.validators import RULE
from fedmm.core.target_losses import TARGET_LOSSES, TargetLoss
from fedmm.data import DATASETS, PARTITIONS
from fedmm.models import MODELS
from fedmm.training.guard import Guard

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md")) + [path for path in [ROOT / "README.md"] if path.exists()]


# Code -----------------------------------------------------------------------------------------------------------------

BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def programs(page: Path) -> list[str]:
    """The blocks of a page, each a program; those of a ``how_to`` page are one, from its top to its end."""
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    return ["\n".join(blocks)] if blocks and page.stem.startswith("how_to_") else blocks


BLOCKS = [(f"{page.stem} {number}", code) for page in PAGES for number, code in enumerate(programs(page), start=1)]
"""By page and place on it, its programs."""


@pytest.fixture
def _tables_are_put_back() -> Iterator[None]:
    """A page may show how to add rows of one's own."""
    before = [(table, dict(table)) for table in (ALGORITHMS, OBJECTIVES)]
    yield
    for table, rows in before:
        table.clear()
        table.update(rows)


@pytest.mark.parametrize(("place", "code"), BLOCKS, ids=[place for place, _ in BLOCKS])
@pytest.mark.usefixtures("_tables_are_put_back")
def test_the_code_on_a_page_runs(
    place: str, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, place, "exec", dont_inherit=True), {"__name__": "__main__"})
    assert capsys.readouterr().err == ""


def test_there_is_code_to_run() -> None:
    assert {place.rpartition(" ")[0] for place, _ in BLOCKS} >= {"index", "concepts", "configuration", "presets"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_on_a_page_exist(page: Path) -> None:
    known = {command.name or command.callback.__name__ for command in app.registered_commands if command.callback}
    known |= {group.name for group in app.registered_groups if group.name}
    used = re.findall(r"^\$ fedmm (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(used) <= known | {"--version", "--help"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_a_page_links_to_exist(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#:]+\.md)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / link).exists(), link


# Tables ---------------------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """One line of a table, and the headings it stands under."""

    section: str
    part: str
    cells: list[str]


def table_lines(page: str) -> Iterator[Line]:
    """The lines of all tables of a page, without their heads."""
    section = part = ""
    head = True
    for line in (DOCS / page).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            section, part = line[3:].strip("`[] "), ""
        elif line.startswith("### "):
            part = line[4:].strip("` ")
        if not line.startswith("|"):
            head = True
        elif set(line) <= set("|-: "):
            head = False
        elif not head:
            yield Line(section, part, [cell.strip() for cell in line.strip("|").split("|")])


def literal(cell: str) -> Any:
    return tomllib.loads(f"value = {cell.strip('`')}")["value"]


# Configuration --------------------------------------------------------------------------------------------------------

SECTIONS: dict[str, Mapping[str, type]] = {
    "run": {"": TrainOptions},
    "data": DATASETS,
    "partition": PARTITIONS,
    "model": MODELS,
    "objective": OBJECTIVES,
    "algorithm": ALGORITHMS,
    "aggregation": AGGREGATIONS,
    "transmission": TRANSMISSIONS,
    "guard": {"": Guard},
    "Schedules": SCHEDULES,
    "Server optimisers": SERVER_OPTIMIZERS,
    "Target losses": TARGET_LOSSES,
}
CARDS = {"objective": "objectives.md", "algorithm": "algorithms.md"}
"""Sections whose rows have their keys on a card of their own, not on the page on configuration."""
COMMON = {"model": "all models", "objective": "all objectives", "algorithm": "all algorithms"}
ROWS = [(section, name, row) for section, rows in SECTIONS.items() for name, row in rows.items()]
each_row = pytest.mark.parametrize(("section", "name", "row"), ROWS, ids=[f"{s} {n}".strip() for s, n, _ in ROWS])

WRITTEN: dict[tuple[str, str], dict[str, list[str]]] = {}
for written in table_lines("configuration.md"):
    WRITTEN.setdefault((written.section, written.part), {})[written.cells[0].strip("`")] = written.cells[1:]
for section, page in CARDS.items():
    for written in table_lines(page):
        if written.section in SECTIONS[section]:
            WRITTEN.setdefault((section, written.section), {})[written.cells[0].strip("`")] = written.cells[1:]


def lines_for(section: str, name: str) -> dict[str, list[str]]:
    """What the page says of a row's keys: its own table, and what it shares with the others of its section."""
    shared = WRITTEN.get((section, COMMON.get(section, "")), {}) if section in COMMON else {}
    if section == "algorithm" and issubclass(ALGORITHMS[name], Averaging):
        shared = {**shared, **WRITTEN[section, "averaging algorithms"]}
    return {**shared, **WRITTEN.get((section, name), {})}


@each_row
def test_the_page_has_every_key_and_no_other(section: str, name: str, row: type) -> None:
    assert set(lines_for(section, name)) == {field.name for field in fields(row)}


@each_row
def test_the_page_has_every_default(section: str, name: str, row: type) -> None:
    defaults = as_table(row())
    for key, (_, default, _) in lines_for(section, name).items():
        expected = defaults[key]
        if isinstance(expected, dict) and set(expected) == {"name"}:
            expected = expected["name"]
        assert literal(default) == expected, key
        assert isinstance(literal(default), type(expected)), key


@each_row
def test_the_page_has_every_type(section: str, name: str, row: type) -> None:
    hints = typing.get_type_hints(row)
    for key, (kind, _, _) in lines_for(section, name).items():
        assert kind == words(hints[key]), key


def words(hint: Any) -> str:
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if hint == Schedule | str:
        return "schedule"
    if hint == ServerOptimizer | str:
        return "server optimiser"
    if hint == TargetLoss | str:
        return "target loss"
    if origin is Literal:
        return ", ".join(f'`"{option}"`' for option in options)
    if origin is tuple and options[0] is str:
        return "list of words"
    if origin is tuple:
        return "list of whole numbers" if options[-1] is Ellipsis else f"list of {len(options)} whole numbers"
    if origin in (typing.Union, types.UnionType):
        per_client = "whole number, list or table of whole numbers"
        return per_client if int in options else "number or table of numbers"
    plain = {bool: "true or false", int: "whole number", float: "number", str: "text"}
    return plain.get(hint, "table of numbers" if options[1:] in ((), (float,)) else "table")


@each_row
def test_the_page_says_what_every_key_means(section: str, name: str, row: type) -> None:
    assert all(meaning for _, _, meaning in lines_for(section, name).values())


def test_every_row_has_a_heading_of_its_own_and_no_other_is_there() -> None:
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    headings = re.findall(r"^### `(\w+)`$", text, re.MULTILINE)
    assert sorted(headings) == sorted(name for section, name, _ in ROWS if name and section not in CARDS)


# Presets --------------------------------------------------------------------------------------------------------------

OFFICE = "With a pre-trained backbone: Office-31"
ADVERSARIAL = ("dann", "cdan", "mdd")


def written_presets(name: str, objective: str, data: str) -> dict[str, Any]:
    """What the page says of a preset, by ``section.key``; Office-31's table comes after that of all others."""
    column = list(PRESETS).index(name) + 2
    found = {}
    for section, _, cells in table_lines("presets.md"):
        if section == OFFICE and data != "office31":
            continue
        if cells[1] == "all" or objective in cells[1].split(", "):
            found[cells[0].strip("`")] = None if cells[column] == "default" else literal(cells[column])
    return {key: value for key, value in found.items() if value is not None}


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("objective", ADVERSARIAL)
@pytest.mark.parametrize("data", ["mnist_m", "office31"])
def test_the_page_has_every_value_of_a_preset(name: str, objective: str, data: str) -> None:
    tables = preset_tables(name, objective=objective, algorithm="fedmm", data=data)
    expected = {
        f"{section}.{key}": value for section, table in tables.items() for key, value in table.items() if key != "name"
    }
    given = written_presets(name, objective, data)
    assert given.keys() == expected.keys()
    for key, value in expected.items():
        exact = not isinstance(value, float | dict)
        assert given[key] == (value if exact else pytest.approx(value, rel=1e-7)), key


# Measured -------------------------------------------------------------------------------------------------------------


def test_the_collapse_on_the_page_is_the_one_that_was_measured() -> None:
    runs = json.loads((ROOT / "benchmarks" / "results" / "collapse.json").read_text(encoding="utf-8"))["runs"]
    measured = {(run["algorithm"], run["seed"], at["round"]): at for run in runs for at in run["trace"]}
    shown = [line.cells for line in table_lines("stability.md") if line.section == "What a collapse looks like"]
    assert len(shown) == 18
    for algorithm, seed, number, *cells in shown:
        at = measured[algorithm.strip("`"), int(seed), int(number)]
        losses = [f"{at[name]:.2f}" for name in ("task_loss", "domain_loss", "dual_norm")]
        assert cells == [f"{at['target_accuracy']:.1%}", *losses, f"{at['adversary_on']:.0%}"]


def test_the_confirmed_accuracies_on_the_page_are_those_that_were_measured() -> None:
    panels = {"1 source, 1 target": "1s1t", "2 sources, 1 target": "2s1t", "1 source, 2 targets": "1s2t"}
    panels |= {"2 sources of disjoint classes, 1 target": "disjoint_2s1t", "5 sources, 5 targets, 1,000 rounds": "5s5t"}
    parts = {"One setting for three objectives": "ascent_1.75_100"}
    parts["A step that follows the curvature"] = "adaptive_1.75_200"
    parts["Restrained FedMM on MNIST-M"] = "fedmm_2_restrained_300"
    seen = 0
    for line in table_lines("stability.md"):
        if line.part not in parts or line.cells[0] not in panels:
            continue
        clients, objective, mean, worst, every = line.cells[:5]
        name = f"{objective.lower()}_{panels[clients]}_{parts[line.part]}.json"
        file = ROOT / "benchmarks" / "results" / "default" / "confirm" / name
        runs = json.loads(file.read_text(encoding="utf-8"))["runs"]
        last = [100 * run["last"] for run in runs]
        shown = [
            f"({value:.1f})" if run["status"] == "diverged" else f"{value:.1f}"
            for run, value in zip(runs, last, strict=True)
        ]
        assert every == ", ".join(shown)
        assert mean.replace("*", "").split(",")[0] == f"{fmean(last):.1f}"
        assert worst == f"{min(last):.1f}"
        seen += 1
    assert seen == 27


def test_the_plain_grid_on_the_page_is_the_one_that_was_measured() -> None:
    folder, whole = ROOT / "benchmarks/results/default/confirm", "fedmm_1_fedmm_2_fedmm_2_slow"
    measured = [
        (options, [run for run in panel["runs"] if run["candidate"] == name])
        for file in ("dann_1s1t_{}", "mdd_1s1t_{}", "mdd_1s2t_{}", "mdd_2s1t_fedmm_1")
        for panel in [json.loads((folder / f"{file.format(whole)}_100.json").read_text("utf-8"))]
        for name, options in panel["settings"].items()
    ]
    lines = [line.cells for line in table_lines("stability.md") if line.cells[0].startswith("penalties ")]
    for (setting, mean, worst, every), (options, runs) in zip(lines, measured, strict=True):
        assert setting == f"penalties {options['penalty_min']:g}, decay 1 / {1 / options['dual_decay']:.4f}"
        last = [100 * run["last"] for run in runs]
        assert [mean, worst] == [f"{fmean(last):.1f}", f"{min(last):.1f}"]
        assert every == ", ".join(
            f"({value:.1f})" if run["status"] == "diverged" else f"{value:.1f}"
            for run, value in zip(runs, last, strict=True)
        )


def test_how_penalties_were_chosen_on_the_page_is_what_was_measured() -> None:
    expected = []
    for objective in ("dann", "mdd"):
        path = ROOT / "benchmarks" / "results" / f"choose_mnist_m_{objective}.json"
        results = json.loads(path.read_text(encoding="utf-8"))
        for row in results["candidates"]:
            name, _, penalty, schedule = row["candidate"].split()
            measured = [f"{row[column]:.2f}" for column in ("target_information", "source_risk")]
            cells = [f"`{name}`", penalty, schedule.replace("_", " "), *measured]
            expected.append([f"**{cell}**" for cell in cells] if row["candidate"] == results["chosen"] else cells)
    section = "The penalty that smoothing allows"
    assert [line.cells for line in table_lines("stability.md") if line.section == section] == expected


def test_what_noise_costs_on_the_page_is_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "transmission_digits.json").read_text(encoding="utf-8"))

    def cell(part: str, way: str) -> str:
        if way not in results[part]["ways"]:
            return "not run"
        found = results[part]["ways"][way]
        noise = "" if found["noise"] is None else f" (s = {found['noise']:.3g})"
        return f"{found['mean']:.1%} ± {found['spread']:.1%}{noise}"

    shown = [line.cells for line in table_lines("privacy.md") if line.part == "What it costs"]
    trusted = shown.index(["exact", cell("trusted", "exact"), cell("trusted_crowd", "exact")])
    assert {part: len(results[part]["ways"]) for part in ("noise", "trusted")} == {"noise": 4, "trusted": 5}
    for number, (way, *cells) in enumerate(shown):
        parts = ("trusted", "trusted_crowd") if number >= trusted else ("noise", "crowd")
        assert cells == [cell(part, way.removesuffix(", no noise")) for part in parts], way


def test_how_the_rule_on_adapting_did_on_the_page_is_what_was_measured() -> None:
    results = json.loads((ROOT / "benchmarks" / "results" / "label_shift.json").read_text(encoding="utf-8"))["data"]
    expected = []
    for name, each in results.items():
        mix, shift = each["positive"], each["estimate"]
        first = [f"{name} ({mix['source']:.0%} to {mix['target']:.0%})",
                 f"{shift['positive']:.0%}, differs in {shift['low']:.0%} to {shift['high']:.0%}"]  # fmt: skip
        for method, own in each["methods"].items():
            accuracies = own["target_accuracy"]
            mean = sum(accuracies) / len(accuracies)
            measured = [f"{sum(own[c]) / len(accuracies):.3f}" for c in ("target_information", "source_risk")]
            believed = {None: "", True: "yes", False: "no"}[own["supported"]]
            spread = f"{mean:.1%} ({min(accuracies):.1%} to {max(accuracies):.1%})"
            expected.append([*first, method, spread, *measured, believed])
            first = ["", ""]
            worse = mean < sum(each["methods"]["source only"]["target_accuracy"]) / len(accuracies)
            assert not (worse and own["supported"]), (name, method)
    assert [line.cells for line in table_lines("choosing.md") if line.section == "Whether to adapt"] == expected


def test_how_often_the_rule_was_right_on_the_page_is_what_was_measured() -> None:
    parts = json.loads((ROOT / "benchmarks" / "results" / "verdicts.json").read_text(encoding="utf-8"))
    words = {True: "supported", False: "not supported", None: "cannot be judged"}
    expected = []
    for part in parts.values():
        for name, each in part["data"].items():
            plain, *adapted = each["methods"].values()
            cells = [f"{100 * own['gain']:+.1f}, {words[own['supported']]}" for own in adapted]
            expected.append([name, f"{fmean(plain['target_accuracy']):.1%}", *cells])
    for word in words.values():
        counts = [part["counts"][word] for part in parts.values()]
        expected.append([word, *(f"{each['helped']} of {each['given']}" for each in counts)])
    shown = [line.cells for line in table_lines("choosing.md") if line.section == "How often the rule was right"]
    assert shown == expected


@pytest.mark.parametrize("page", ["choosing.md", "start.md", "faq.md"])
def test_the_rule_on_adapting_is_the_same_on_every_page(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("`", "")
    assert RULE.lower() in " ".join(text.split()).lower()


def test_what_the_guard_saves_on_the_page_is_what_was_measured() -> None:
    results = ROOT / "benchmarks" / "results"
    expected = []
    for run in [
        run
        for case in ("digits", "mnist_m")
        for run in json.loads((results / f"guard_{case}.json").read_text(encoding="utf-8"))["runs"]
    ]:
        went = ", ".join(f"{event['round']} to {event['to_round']}" for event in run["events"]) or "-"
        accuracies = [f"{run[name]:.1%}" for name in ("target_accuracy", "oracle_target_accuracy")]
        expected.append([f"`{run['policy']}`", str(run["seed"]), str(run["rounds"]), *accuracies, went])
    assert [line.cells for line in table_lines("guard.md") if line.section == "What it saves"] == expected


# Promised -------------------------------------------------------------------------------------------------------------


def test_what_restraint_does_on_the_page_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("restrained")
    runs = json.loads(program.RESULTS.read_text(encoding="utf-8"))["runs"]
    assert program.table(runs) in (DOCS / "stability.md").read_text(encoding="utf-8")


def test_how_good_tuned_settings_are_on_the_page_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("tune")
    data = json.loads(program.RESULTS.read_text(encoding="utf-8"))["data"]
    page = (DOCS / "choosing.md").read_text(encoding="utf-8")
    assert program.table(data) in page
    for group, words in (("confirming", "on the confirming data"), ("held out", "on the data held out")):
        gaps = [program.gap(own, "choice") for own in data.values() if own["group"] == group]
        assert f"{sum(gaps) / len(gaps):.2f} {words}" in page


def test_what_the_default_does_elsewhere_on_the_page_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("defaults")
    data = json.loads(program.RESULTS.read_text(encoding="utf-8"))["data"]
    assert program.table(data) in (DOCS / "stability.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("script", "part"),
    [
        *(("worst_site", name) for name in ("adult", "compas", "german")),
        ("worst_target", "digits"),
        ("debias", "sex"),
        ("rare_class", "data"),
        ("partial_auc", "data"),
        ("histogram_error", "data"),
    ],
)
def test_the_tables_on_labelled_sites_are_what_was_measured(
    script: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module(script)
    shown = (DOCS / "labelled_sites.md").read_text(encoding="utf-8")
    assert program.table(json.loads(program.RESULTS.read_text(encoding="utf-8"))[part]) in shown


@pytest.mark.parametrize(
    ("name", "objectives", "seeds"),
    [("terms", 3, 3), ("with_term", 3, 3), ("alone", 1, 3), ("as_tune", 3, 8), ("as_tune_alone", 1, 8)],
)
def test_office_31_with_a_term_on_target_rows_is_what_was_measured(
    name: str, objectives: int, seeds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    program = importlib.import_module("choose_office31_as_tune")
    runs = json.loads((program.RESULTS / f"confirm_office31_{name}.json").read_text(encoding="utf-8"))["runs"]
    assert len(runs) == objectives * 3 * 6 * seeds
    shown = (ROOT / "paper" / "README.md").read_text(encoding="utf-8")
    assert program.table(runs) in shown
    assert not name.startswith("as_tune") or program.leads(runs) in shown


def test_every_promise_names_a_test_that_is_there() -> None:
    promises = list(table_lines("reliability.md"))
    assert len(promises) > 20
    for line in promises:
        path, _, name = line.cells[1].strip("`").partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), line.cells[0]


def test_the_threat_model_names_tests_that_are_there() -> None:
    """``tests/FILE.py::NAME``; a file is named in full once, and ``::NAME`` alone is of the file before it."""
    text, files, source = (DOCS / "threat_model.md").read_text(encoding="utf-8"), {}, ""
    for folder, file, name in re.findall(r"`((?:tests/(?:[a-z]+/)+)?)(test_\w+\.py)?((?:::\w+)?)`", text):
        if folder:
            files[file] = (ROOT / folder / file).read_text(encoding="utf-8")
        if file:
            source = files[file]
        if name:
            assert f"def {name.removeprefix('::')}(" in source, (file, name)
    assert len(files) > 10


# Named ----------------------------------------------------------------------------------------------------------------


def test_the_files_that_the_architecture_names_exist() -> None:
    """Paths are relative to ``src/fedmm``, or to the repository; those of one round stand in a block of code."""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z][\w./]*(?:\.py|\.md|/))`", text))
    named |= set(re.findall(r"^ {4}.*?\b(\w+/\w+\.py)", text, re.MULTILINE))
    assert len(named) > 50
    missing = [name for name in named if not any((ROOT / place / name).exists() for place in ("", "src/fedmm"))]
    assert not missing


def test_the_architecture_names_every_room() -> None:
    rooms = {f"{path.parent.name}/" for path in (ROOT / "src" / "fedmm").glob("*/__init__.py")}
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+/)` \|", text, re.MULTILINE)) == rooms
