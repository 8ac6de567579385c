"""Pages and notebooks import public names alone, and the names that a reader starts from are explained."""

from __future__ import annotations

import ast
import inspect
import json
import re
from importlib import import_module
from pathlib import Path

import pytest

import fedmm

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("*/README.md"))]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
PUBLIC = {
    "fedmm",
    "fedmm.cli",
    "fedmm.data",
    "fedmm.inference",
    "fedmm.preflight",
    "fedmm.reporting.html",
    "fedmm.sklearn",
    "fedmm.theory",
}
"""The modules that a page may import from: what they list in ``__all__``, and nothing deeper."""

IMPORT = re.compile(r"^ *(?:from (fedmm[\w.]*) import (\([^)]*\)|[^\n#]+)|import (fedmm[\w.]*))", re.MULTILINE)


def code(path: Path) -> str:
    """The text of a page, or the code of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    return "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code")


def imports(path: Path) -> list[tuple[str, list[str]]]:
    """The modules of fedmm that a page imports from, and the names it takes."""
    found = []
    for module, names, alone in IMPORT.findall(code(path)):
        tree = ast.parse(f"from {module} import {names.strip()}" if module else f"import {alone}").body[0]
        assert isinstance(tree, ast.Import | ast.ImportFrom)
        found.append((module or alone, [alias.name for alias in tree.names] if module else []))
    return found


IMPORTING = [path for path in (*PAGES, *NOTEBOOKS) if imports(path)]


def test_there_are_imports_to_look_at() -> None:
    assert len(IMPORTING) > 12
    assert {module for path in IMPORTING for module, _ in imports(path)} == PUBLIC


@pytest.mark.parametrize("path", IMPORTING, ids=lambda path: path.stem)
def test_a_page_imports_public_names_alone(path: Path) -> None:
    for module, names in imports(path):
        assert module in PUBLIC, f"{module} is private; make the name public, or leave it out"
        assert set(names) <= set(import_module(module).__all__), module


@pytest.mark.parametrize("module", sorted(PUBLIC - {"fedmm"}))
def test_what_a_room_makes_public_is_documented(module: str) -> None:
    room = import_module(module)
    for name in room.__all__:
        thing = getattr(room, name)
        assert not callable(thing) or inspect.getdoc(thing), name


STARTS = ("Callback", "EarlyStopping", "Experiment", "TrainOptions", "experiment", "open_run", "run_experiment")


@pytest.mark.parametrize("name", STARTS)
def test_what_a_reader_starts_from_explains_its_parameters_and_stands_in_code_that_runs(name: str) -> None:
    thing = getattr(fedmm, name)
    written = inspect.getdoc(thing) or ""
    given = [] if thing is fedmm.Callback else list(inspect.signature(thing).parameters)
    assert [parameter for parameter in given if not re.search(rf"\b{parameter}\b", written)] == []
    blocks = re.findall(r"^```python\n(.*?)^```$", code(ROOT / "docs" / "python.md"), re.MULTILINE | re.DOTALL)
    assert any(re.search(rf"\bfedmm\.{name}\b", block) for block in blocks)
    assert re.search(rf"^::: fedmm\.{name}$", code(ROOT / "docs" / "api.md"), re.MULTILINE)


def test_every_public_name_is_in_the_reference() -> None:
    page = code(ROOT / "docs" / "api.md")
    shown = set(re.findall(r"^::: fedmm\.(\w+)$", page, re.MULTILINE)) | set(re.findall(r"`fedmm\.(\w+)`", page))
    for room in re.findall(r"^::: (fedmm\.(?:algorithms|objectives))$", page, re.MULTILINE):
        shown |= set(import_module(room).__all__)
    assert set(fedmm.__all__) - shown == set()
