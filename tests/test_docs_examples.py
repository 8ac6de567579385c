"""What a page tells a reader to type: every TOML block is an experiment, and every command takes what it is given."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import typer

from fedmm.cli.app import app
from fedmm.config.schema import experiment
from fedmm.config.sweep_grid import SWEEP, grid
from fedmm.core.errors import FedmmError
from fedmm.core.imports import configuration_file, import_allowed
from fedmm.deploy.invite import read_sites
from fedmm.runs.tuning.candidates import TUNE, derive_candidates
from fedmm.sites.config import read_site
from fedmm.sites.experiments import deployed_experiment

ROOT = Path(__file__).parents[1]
PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "paper" / "README.md"]
SMALL: dict[str, dict[str, Any]] = {"data": {"name": "digits"}, "model": {"name": "mlp"}}


def texts() -> list[tuple[Path, str]]:
    return [(page, page.read_text(encoding="utf-8")) for page in PAGES]


TOML = [
    (page, block)
    for page, text in texts()
    for block in re.findall(r"^```toml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
]
COMMANDS = [
    (page, line.replace("\\\n", " "))
    for page, text in texts()
    for line in re.findall(r"^(?:\$ |    )fedmm ((?:[^\n]*\\\n)*[^\n]*)$", text, re.MULTILINE)
]


@pytest.mark.parametrize(("page", "block"), TOML, ids=[f"{page.stem} {n}" for n, (page, _) in enumerate(TOML, 1)])
def test_a_toml_block_is_an_experiment_or_a_part_of_one(
    page: Path, block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = tomllib.loads(block)
    if "allow_import" in tables:
        monkeypatch.setenv("FEDMM_CONFIG", str(tmp_path))
        configuration_file().write_text(block, encoding="utf-8")
        with pytest.raises(FedmmError, match="cannot be imported"):  # not: is not allowed
            import_allowed(f"{tables['allow_import'][0]}:tower", "backbone")
        return
    if "site" in tables:
        file = tmp_path / "site.toml"
        file.write_text(block, encoding="utf-8")
        assert read_site(file).site.name == tables["site"]["name"]
        return
    if "sites" in tables:
        file = tmp_path / "sites.toml"
        file.write_text(block, encoding="utf-8")
        assert set(read_sites(file)) == set(tables["sites"])
        return
    preset = "preset" in tables.get("run", {})
    full = {**{name: table for name, table in SMALL.items() if not preset or name == "data"}, **tables}
    if SWEEP in full:
        assert len(grid(full)) > 1
    elif TUNE in full:
        assert len(derive_candidates(full)) > 2
    elif full["data"]["name"] == "sites":
        assert deployed_experiment(full)
    else:
        assert experiment(full)


@pytest.mark.parametrize(
    ("page", "line"), COMMANDS, ids=[f"{page.stem} {n}" for n, (page, _) in enumerate(COMMANDS, 1)]
)
def test_a_command_takes_what_it_is_given(page: Path, line: str) -> None:
    words = shlex.split(line, comments=True)
    command: click.Command = typer.main.get_command(app)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command = command.commands[words.pop(0)]
    if isinstance(command, click.Group):
        assert words in (["--version"], ["--help"])
    else:
        command.make_context(line, list(words))
