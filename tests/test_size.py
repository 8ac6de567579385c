"""How large modules, folders and packages may grow before they are split."""

from __future__ import annotations

from pathlib import Path

import fedmm

SOURCE = Path(fedmm.__file__).parent
MODULES = [path for path in SOURCE.rglob("*.py") if "__pycache__" not in path.parts]


def lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def test_no_module_has_more_than_four_hundred_lines() -> None:
    assert {str(path): lines(path) for path in MODULES if lines(path) > 400} == {}


def test_no_folder_holds_more_than_twenty_modules() -> None:
    counts = {folder: sum(path.parent == folder for path in MODULES) for folder in {path.parent for path in MODULES}}
    assert {str(folder): count for folder, count in counts.items() if count > 20} == {}


def test_no_package_holds_more_than_twelve_percent_of_all_lines() -> None:
    of_all = sum(map(lines, MODULES))
    for package in {path.relative_to(SOURCE).parts[0] for path in MODULES if path.parent != SOURCE}:
        own = sum(lines(path) for path in MODULES if path.relative_to(SOURCE).parts[0] == package)
        assert own <= 0.12 * of_all, package
