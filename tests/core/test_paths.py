from __future__ import annotations

from pathlib import Path

import pytest

from fedmm.core.paths import cache_folder, data_folder


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
