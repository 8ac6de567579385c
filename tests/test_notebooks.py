"""The notebooks run from top to bottom, and are stored without what they put out."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import nbformat
import pytest
from matplotlib import pyplot
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples" / "notebooks").glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_notebooks_and_a_page_that_names_them() -> None:
    page = (Path(__file__).parents[1] / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert {path.stem for path in NOTEBOOKS} == {"first_steps", "rare_class", "worst_site", "your_own_table"}
    assert all(f"examples/notebooks/{path.name}" in page for path in NOTEBOOKS)


@each_notebook
def test_a_notebook_is_valid_and_stored_without_outputs(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")  # torch's
@each_notebook
def test_the_code_of_a_notebook_runs_from_top_to_bottom(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process; what a kernel would show is asked of one below."""
    monkeypatch.setenv("FEDMM_NOTEBOOK_ROUNDS", "2")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    code = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    exec(compile(code, path.name, "exec", dont_inherit=True), {"__name__": "__main__"})
    pyplot.close("all")
    said = capsys.readouterr()
    assert said.out
    assert said.err == ""


@pytest.mark.processes
@each_notebook
def test_a_notebook_runs_from_top_to_bottom(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FEDMM_NOTEBOOK_ROUNDS": "2", "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = read(path)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any(output.output_type in ("display_data", "execute_result") for output in said)
    assert not [output.text for output in said if output.get("name") == "stderr"]
