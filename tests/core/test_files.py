"""Files that are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from fedmm.core.errors import FedmmError
from fedmm.core.files import atomic_write, replace_file


def full(number: int) -> NoReturn:
    """What syncing to a full disk raises."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_gets_its_name_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.txt"
    with atomic_write(path) as partial:
        partial.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert [each.name for each in path.parent.iterdir()] == ["a.txt"]


def test_a_full_disk_leaves_the_older_file_and_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedmmError, match=r"a\.txt cannot be written: "), atomic_write(path) as partial:
        partial.write_text("new")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)), replace_file(path) as partial:
        partial.write_text("new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_to_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("old")
    os.mkfifo(tmp_path / "pipe")
    for name, words in (
        (".", "is a folder"),
        ("pipe", "no ordinary file"),
        ("a\0b", "zero byte"),
        ("there/a", "cannot be written"),
    ):
        with pytest.raises(FedmmError, match=words), atomic_write(tmp_path / name) as partial:
            partial.write_text("new")
    with pytest.raises(FedmmError, match="pass --overwrite"), atomic_write(tmp_path / "there", overwrite=False):
        pass


def test_a_link_and_the_permissions_of_a_file_stay(tmp_path: Path) -> None:
    path, link = tmp_path / "a.txt", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with atomic_write(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
