"""The wheel holds everything that the program needs, and runs where nothing of the source tree is."""

from __future__ import annotations

import fnmatch
import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from fedmm import __version__

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fedmm"
BUILDERS = [each.version for each in importlib.metadata.distributions(name="setuptools")]
BUILDS = bool(BUILDERS) and int(BUILDERS[0].split(".")[0]) >= 77


def packaged() -> set[str]:
    """The files of the package in the source tree, as paths below ``fedmm/``."""
    found = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(PACKAGE).as_posix() for path in found}


def test_every_file_of_the_package_is_one_that_the_wheel_takes_along() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["fedmm"]
    others = {name for name in packaged() if not name.endswith(".py")}
    assert {
        "py.typed",
        "data/checksums/mnist.sha256",
        "data/checksums/sources.toml",
        "reporting/html/assets/report.html",
    } <= others
    assert {name for name in others if not any(fnmatch.fnmatch(name, pattern) for pattern in settings)} == set()
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def run(*words: str | Path, cwd: Path) -> str:
    """What a command prints; it sees no checkout."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in words], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """The wheel of the source tree, built by the setuptools that is here."""
    source = tmp_path / "source"
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    shutil.copytree(PACKAGE, source / "src" / "fedmm", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", tmp_path / "dist"]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", *options, source, cwd=tmp_path)
    (made,) = (tmp_path / "dist").iterdir()
    return made


@pytest.mark.processes
@pytest.mark.skipif(not BUILDS, reason="the wheel needs setuptools 77 or newer, which make setup installs")
def test_the_wheel_is_installed_and_does_the_main_job(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name == f"fedmm-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        about = Parser().parsestr(opened.read(f"fedmm-{__version__}.dist-info/METADATA").decode())
    assert {name.removeprefix("fedmm/") for name in names if name.startswith("fedmm/")} == packaged()
    assert {name.split("/")[0] for name in names} == {"fedmm", f"fedmm-{__version__}.dist-info"}
    assert (about["License-Expression"], about["Requires-Python"]) == ("Apache-2.0", ">=3.11")
    assert {"flower", "tables", "vision"} <= set(about.get_all("Provides-Extra") or [])

    fresh = tmp_path / "fresh"
    run(sys.executable, "-m", "venv", "--without-pip", fresh, cwd=tmp_path)
    fedmm, python = fresh / "bin" / "fedmm", fresh / "bin" / "python"
    install = ["--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel]
    run(sys.executable, "-m", "pip", *install, cwd=tmp_path)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    others = {sysconfig.get_path("purelib"), *(path for path in sys.path if path.endswith("site-packages"))}
    (site / "others.pth").write_text("\n".join(sorted(others)) + "\n")  # torch and the rest, of this environment

    where = run(python, "-P", "-c", "import fedmm; print(fedmm.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(site)
    assert run(fedmm, "--version", cwd=tmp_path).split()[-1] == __version__
    assert "mnist" in run(fedmm, "data", "list", "--data-dir", tmp_path / "data", cwd=tmp_path)  # its checksums
    run(fedmm, "run", ROOT / "examples" / "digits.toml", "--set", "run.rounds=2", "--out", "digits", cwd=tmp_path)
    assert (tmp_path / "digits" / "model.safetensors").exists()
    run(fedmm, "report", "digits", "--out", "report.html", cwd=tmp_path)  # its template, script and style
    assert "</html>" in (tmp_path / "report.html").read_text()
    assert "site" in run(fedmm, "deploy", "--help", cwd=tmp_path)
