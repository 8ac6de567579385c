"""Files that are there whole, or as they were before."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from fedmm.core.errors import FedmmError
from fedmm.core.files import append_text, atomic_write, cache_folder, data_folder, replace_file, require_replaceable


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
        ("pipe", "not a regular file"),
        ("a\0b", "zero byte"),
        ("there/a", "cannot be written"),
    ):
        with pytest.raises(FedmmError, match=words), atomic_write(tmp_path / name) as partial:
            partial.write_text("new")
    with pytest.raises(FedmmError, match="pass --overwrite"), atomic_write(tmp_path / "there", overwrite=False):
        pass


def test_only_a_file_of_the_same_kind_or_an_empty_one_may_be_replaced(tmp_path: Path) -> None:
    def refuse(name: str, words: str) -> None:
        with pytest.raises(FedmmError, match=words):
            require_replaceable(tmp_path / name, "--out", "a score", lambda path: path.read_text() == "score")

    def unreadable(path: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name, content in (("own", "score"), ("empty", ""), ("other", "letter")):
        (tmp_path / name).write_text(content)
    for name in ("own", "empty", "new"):
        require_replaceable(tmp_path / name, "--out", "a score", lambda path: path.read_text() == "score")
    refuse("other", "other is there and holds something else than a score; name another file")
    refuse(".", "is a folder; name a file to write")
    refuse("a\0b", "zero byte")
    refuse("a" * 300, "cannot be written: ")
    with pytest.raises(FedmmError, match=f"--out .*own cannot be written: {os.strerror(errno.EACCES)}"):
        require_replaceable(tmp_path / "own", "--out", "a score", unreadable)


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


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("FEDMM_DATA", "FEDMM_CACHE", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", "/home/somebody")


def test_without_a_word_it_is_the_user_s_own_folders() -> None:
    assert data_folder() == Path("/home/somebody/.local/share/fedmm")
    assert cache_folder() == Path("/home/somebody/.cache/fedmm")


def test_the_desktop_s_folders_are_honoured_where_they_are_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/large")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert data_folder() == Path("/large/fedmm")
    assert cache_folder() == Path("/home/somebody/.cache/fedmm")


def test_our_own_variables_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/large")
    monkeypatch.setenv("FEDMM_DATA", "~/sets")
    monkeypatch.setenv("FEDMM_CACHE", "here")
    assert data_folder() == Path("/home/somebody/sets")
    assert cache_folder() == Path("here")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "new\n"),
        ("", "new\n"),
        ("old\n", "old\nnew\n"),
        ("old", "old\nnew\n"),
        ("old\nto", "old\nnew\n"),
        ("to", "new\n"),
    ],
)
def test_a_line_is_added_after_whole_ones_and_in_place_of_one_cut_short(
    before: str | None, after: str, tmp_path: Path
) -> None:
    path = tmp_path / "lines"
    if before is not None:
        path.write_text(before)
    append_text(path, "new\n", lambda line: line == b"old")
    assert path.read_text() == after
