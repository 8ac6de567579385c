"""Which names of modules become code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import fedmm
from fedmm.core.errors import FedmmError
from fedmm.core.imports import ALLOWED, configuration_file, import_allowed

MODULE = """
import functools
import os
from os import system
from subprocess import run
from pathlib import Path

Path({marker!r}).touch()


def tower(width=1):
    return width


class Tower:
    @classmethod
    def small(cls):
        return cls()


half = functools.partial(system, "true")
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that appears when ``gate_nets`` or ``gate_nets.deep``, in the current folder, is imported."""
    marker, package = tmp_path / "imported", tmp_path / "gate_nets"
    package.mkdir()
    for name in ("__init__", "deep"):
        (package / f"{name}.py").write_text(MODULE.format(marker=str(marker)))
    (tmp_path / "gate_nets_too.py").write_text(f"open({str(marker)!r}, 'w').close()\ndef tower(): ...\n")
    (tmp_path / "gate_friend.py").write_text("import gate_nets_too\ndef tower(): ...\n")
    monkeypatch.chdir(tmp_path)
    for name in ("gate_nets", "gate_nets.deep", "gate_nets_too", "gate_friend"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return marker


def refusal(name: str, **options: Any) -> str:
    with pytest.raises(FedmmError) as refused:
        import_allowed(name, "backbone", **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def configure(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    monkeypatch.setenv("FEDMM_CONFIG", str(folder / "configuration"))
    configuration_file().parent.mkdir(exist_ok=True)
    configuration_file().write_text(text)


def test_nothing_is_allowed_at_first_and_a_refusal_imports_nothing(marker: Path) -> None:
    words = refusal("gate_nets.deep:tower")
    assert "would import 'gate_nets.deep' and run its code" in words
    assert "--allow-import gate_nets.deep:tower" in words
    assert not marker.exists()
    assert "'os'" in refusal("os:system")


def test_a_module_brings_its_submodules_and_no_other_name(marker: Path) -> None:
    fedmm.allow_import("gate_nets.deep")
    for name in ("gate_nets:tower", "gate_nets_too:tower", "gate_nets.deeper:tower", "gate:tower"):
        assert "not allowed" in refusal(name)
    assert not marker.exists()
    assert import_allowed("gate_nets.deep:tower", "backbone")(3) == 3
    fedmm.allow_import("gate_nets")
    assert import_allowed("gate_nets:Tower", "backbone").__module__ == "gate_nets"
    assert "not allowed" in refusal("gate_nets_too:tower")


def test_one_function_alone(marker: Path) -> None:
    fedmm.allow_import("gate_nets:tower")
    assert "not allowed" in refusal("gate_nets:Tower")
    assert "not allowed" in refusal("gate_nets.deep:tower")
    assert not marker.exists()
    assert import_allowed("gate_nets:tower", "backbone")(2) == 2


@pytest.mark.parametrize("name", ["system", "run", "half"])
def test_what_an_allowed_module_got_from_others_is_not_called(marker: Path, name: str) -> None:
    fedmm.allow_import("gate_nets")
    assert "is defined in" in refusal(f"gate_nets:{name}")


@pytest.mark.parametrize("name", ["gate_nets:os.system", "gate_nets:Tower.small", "gate_nets", "gate_nets:", ":tower"])
def test_a_name_is_one_module_and_one_attribute(marker: Path, name: str) -> None:
    fedmm.allow_import("gate_nets")
    assert "must have the form 'package.module:factory'" in refusal(name)
    assert not marker.exists()


def test_a_built_in_name_needs_no_leave_and_gives_none(marker: Path) -> None:
    assert import_allowed("fedmm.core.errors:require", "site", built_in=["fedmm.core.errors:require"])
    assert "not allowed" in refusal("fedmm.core.errors:unknown", built_in=["fedmm.core.errors:require"])


def test_the_users_configuration_allows_what_is_installed_and_nothing_of_the_current_folder(
    marker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configure(monkeypatch, tmp_path, 'allow_import = ["gate_nets", "fractions"]')
    assert import_allowed("fractions:Fraction", "backbone")(1, 2) == 0.5
    assert "cannot be imported" in refusal("gate_nets:tower")
    assert not marker.exists()
    monkeypatch.syspath_prepend(tmp_path)
    assert import_allowed("gate_nets:tower", "backbone")(2) == 2


def test_no_configuration_is_read_from_the_current_folder(marker: Path) -> None:
    for name in ("config.toml", "fedmm.toml", "pyproject.toml"):
        Path(name).write_text('allow_import = ["gate_nets"]')
    Path("fedmm").mkdir()
    Path("fedmm", "config.toml").write_text('allow_import = ["gate_nets"]')
    assert "not allowed" in refusal("gate_nets:tower")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("allow_import = 'gate_nets'", "must be a list of modules, not 'gate_nets'"),
        ("allow_import = [3]", "takes a module such as"),
        ("allow_import = ['']", "takes a module such as"),
        ("allow_imports = []", "did you mean 'allow_import'?"),
        ("allow_import = [", "is not valid TOML"),
    ],
)
def test_a_configuration_that_cannot_be_meant_is_refused(
    marker: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    configure(monkeypatch, tmp_path, text)
    assert words in refusal("gate_nets:tower")


def test_modules_of_the_current_folder_do_not_bring_others_of_it(marker: Path) -> None:
    before = list(sys.meta_path)
    fedmm.allow_import("gate_friend")
    assert "No module named 'gate_nets_too'" in refusal("gate_friend:tower")
    assert not marker.exists()
    fedmm.allow_import("gate_nets_too")
    assert import_allowed("gate_friend:tower", "backbone")
    assert sys.meta_path == before


@pytest.mark.parametrize("name", ["", "*", "os.", ".os", "a b", "os:", ":system", "os:path.join", "os,sys", "a/b", 3])
def test_what_is_no_name_cannot_be_allowed(name: Any) -> None:
    with pytest.raises(FedmmError, match="takes a module such as"):
        fedmm.allow_import(name)


def test_what_is_allowed_is_passed_on_to_processes() -> None:
    fedmm.allow_import("gate_nets", "gate_friend:tower")
    fedmm.allow_import("gate_nets")
    assert os.environ[ALLOWED] == "gate_nets,gate_friend:tower"
