"""What ``import fedmm`` gives: little, documented, and without what only some users need."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import subprocess
import sys
import types

import pytest

import fedmm

HEAVY = ["torch", "numpy", "matplotlib", "typer", "torchvision", "flwr", "tensorboard"]


def order(name: str) -> tuple[int, str]:
    """Words in capitals, then other classes, then functions; each in the order of the alphabet."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


def test_the_names_are_sorted_and_each_is_there_once() -> None:
    assert fedmm.__all__ == sorted(set(fedmm.__all__), key=order)


def test_every_name_is_there_and_none_is_private() -> None:
    for name in fedmm.__all__:
        assert hasattr(fedmm, name)
        assert not name.startswith("_")


def test_nothing_public_is_left_out() -> None:
    for name in fedmm.__all__:
        getattr(fedmm, name)
    public = {
        name
        for name, value in vars(fedmm).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
    }
    assert public == set(fedmm.__all__)


def test_a_star_brings_exactly_these_names() -> None:
    names: dict[str, object] = {}
    exec("from fedmm import *", names)
    assert names.keys() - {"__builtins__"} == set(fedmm.__all__)


def test_every_algorithm_and_objective_can_be_imported() -> None:
    for row in [*fedmm.ALGORITHMS.values(), *fedmm.OBJECTIVES.values()]:
        assert row.__name__ in fedmm.__all__


@pytest.mark.parametrize("name", [name for name in fedmm.__all__ if callable(getattr(fedmm, name))])
def test_whatever_is_public_is_documented(name: str) -> None:
    thing = getattr(fedmm, name)
    written = inspect.getdoc(thing)
    assert written
    assert not (dataclasses.is_dataclass(thing) and written.startswith(f"{name}(")), "dataclass wrote this itself"
    if not inspect.isclass(thing):
        return
    for method, value in inspect.getmembers(thing):
        if not method.startswith("_") and (inspect.isroutine(value) or isinstance(value, property)):
            assert inspect.getdoc(value), f"{name}.{method}"


def test_what_is_promised_to_type_checkers_is_what_is_there() -> None:
    tree = ast.parse(inspect.getsource(fedmm))
    promised = next(node for node in tree.body if isinstance(node, ast.If))
    homes: dict[str, tuple[str, ...]] = {}
    for node in promised.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == (None if alias.name == "*" else alias.name)  # this form exports the name
            homes[node.module or ""] = (*homes.get(node.module or "", ()), alias.name)
    assert homes == {**fedmm._HOME, **dict.fromkeys(fedmm._TABLES, ("*",))}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'sovle'"):
        _ = fedmm.sovle
    assert fedmm.core.errors.FedmmError is fedmm.FedmmError


def test_the_names_of_rows_come_from_their_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [kind.__name__ for table in (fedmm.ALGORITHMS, fedmm.OBJECTIVES) for kind in table.values()]
    assert not set(rows) & {name for names in fedmm._HOME.values() for name in names}
    monkeypatch.setattr(fedmm.algorithms, "__all__", [*fedmm.algorithms.__all__, "Algorithm2"])
    monkeypatch.setattr(fedmm.algorithms, "Algorithm2", fedmm.FedMM, raising=False)
    assert "Algorithm2" in fedmm.__all__
    assert fedmm.Algorithm2 is fedmm.FedMM
    del fedmm.Algorithm2  # it was kept when it was asked for


def test_the_version_is_a_version() -> None:
    parts = fedmm.__version__.split(".")
    assert len(parts) == 3
    assert all(part.isdigit() for part in parts)


@pytest.fixture(scope="module")
def imported() -> set[str]:
    """The top-level modules that ``import fedmm`` brings into a fresh interpreter."""
    program = "import fedmm, sys, json; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return set(json.loads(done.stdout))


def test_import_leaves_drawing_the_command_line_and_extras_alone(imported: set[str]) -> None:
    assert imported.isdisjoint(HEAVY)


def test_import_leaves_scikit_learn_alone(imported: set[str]) -> None:
    assert imported.isdisjoint(["sklearn", "scipy"])
