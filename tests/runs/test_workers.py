"""Workers import the main program, so they are started only where that does not run it again."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from fedmm.reporting import read_comparison
from fedmm.runs.workers import can_start_workers

SWEEP = """
from pathlib import Path

from fedmm.config.sweep_grid import grid
from fedmm.runs import sweep
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

sweep.choose_settings = lambda *given: Tuned(StackSettings(), 1, 2, "as the test wants it")
tables = {
    "run": {"rounds": 2},
    "data": {"name": "moons", "rows": 20, "test_rows": 10},
    "model": {"name": "mlp", "hidden": [2]},
    "objective": {"name": "dann"},
    "algorithm": {"name": "fedmm", "local_steps": 1},
    "sweep": {"run.seed": [0, 1]},
}
sweep.run_sweep(grid(tables), Path("runs"), title="x", progress=False, say=print)
"""


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import fedmm\nfedmm.tune(tables)\n", False),
        ('def main():\n    if __name__ == "x":\n        pass\nmain()\n', False),
        ('if __name__ == "__main__":\n    main()\n', True),
        ('import fedmm\nif "__main__" == __name__ and fedmm:\n    main()\n', True),
        ("not Python {", True),
    ],
)
def test_a_script_needs_a_guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, expected: bool) -> None:
    main = ModuleType("__main__")
    main.__file__ = str(tmp_path / "script.py")
    (tmp_path / "script.py").write_text(script)
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert can_start_workers() is expected
    main.__spec__ = ModuleSpec("package.script", None)
    assert can_start_workers() is expected
    main.__spec__ = ModuleSpec("package.__main__", None)
    assert can_start_workers()


def test_a_notebook_needs_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    assert can_start_workers()


@pytest.mark.processes
def test_a_script_without_a_guard_runs_all_in_its_own_process(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SWEEP)
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert 'one process, not 2: the script has no `if __name__ == "__main__":`' in ended.stdout
    assert [run.status for run in read_comparison(tmp_path / "runs").runs] == ["completed"] * 2
