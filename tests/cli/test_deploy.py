"""``fedmm deploy``: what can be said without starting anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fedmm.cli import main
from fedmm.core.errors import Say
from fedmm.deploy.federation import prepare
from fedmm.deploy.flower_commands import environment
from fedmm.deploy.layout import Federation

MOONS = str(Path(__file__).parents[2] / "examples" / "moons.toml")


def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["fedmm", "deploy", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["status"], "error: federation holds no federation; `fedmm deploy up` makes one"),
        (["down"], "error: federation holds no federation; `fedmm deploy up` makes one"),
        (["resume", "first"], "error: federation holds no federation; `fedmm deploy up` makes one"),
        (["run", MOONS], "error: federation holds no federation; `fedmm deploy up` makes one"),
        (
            ["up", MOONS, "--host", "0.0.0.0"],
            "error: a SuperLink without a proxy in front of it is only for this machine (127.0.0.1), not for '0.0.0.0'",
        ),
        (
            ["up", MOONS, "--host", "0.0.0.0", "--insecure"],
            "error: a SuperLink without a proxy in front of it is only for this",
        ),
        (["up", "nowhere.toml"], "error: there is no file nowhere.toml"),
        (["up", MOONS, "--per-process", "0"], "error: --per-process must be at least 1, not 0"),
        (["site", "nowhere.toml"], "error: there is no file nowhere.toml"),
        (["demo", "--rounds", "0"], "error: --rounds must be at least 1, not 0"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = ended(monkeypatch, capsys, *words)
    assert code == 2
    assert err.startswith(sentence)
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("words", [["up", "nowhere.toml"], ["resume", "first"]])
def test_what_is_allowed_here_is_allowed_in_flowers_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert ended(monkeypatch, capsys, *words, "--allow-import", "mypackage.models:tower")[0] == 2
    assert environment(tmp_path)["FEDMM_ALLOW_IMPORT"] == "mypackage.models:tower"


def test_a_coordinator_prepares_and_a_site_makes_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = ended(monkeypatch, capsys, "prepare", "federation", "--host", "link.example.org")
    assert code == 0
    assert "known to sites as link.example.org" in out
    code, out, _ = ended(monkeypatch, capsys, "key", "hospital-a")
    assert (code, Path("hospital-a").exists(), Path("hospital-a.pub").exists()) == (0, True, True)
    code, out, _ = ended(monkeypatch, capsys, "status")
    assert "SuperLink 127.0.0.1:9093, TLS and node authentication" in out
    assert "superlink: not running" in out


def test_why_a_run_was_refused_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def follow(federation: Federation, name: str, number: int, on_line: Say) -> str:
        on_line("12:00:01 asking a for at most 90 rounds and 9 questions each")
        on_line("12:00:02 error: the tuning cannot start: a: it has 5 rounds left")
        return "finished:failed"

    monkeypatch.chdir(tmp_path)
    prepare(Federation(Path("federation")), 1, [])
    monkeypatch.setattr("fedmm.cli.deploy.follow", follow)
    monkeypatch.setattr("fedmm.cli.deploy.resume", lambda *_, **__: 3)
    code, out, err = ended(monkeypatch, capsys, "resume", "first")
    assert (code, (out + err).count("error: ")) == (2, 1)
    assert "asking a for at most 90 rounds" in out + err
    assert (
        "the tuning cannot start: a: it has 5 rounds left; once that is put right, `fedmm deploy resume first`" in err
    )


def test_a_run_that_was_begun_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(Federation(Path("federation")), 1, [])
    folder = Path("federation/runs/moons")
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text("")
    code, _, err = ended(monkeypatch, capsys, "run", MOONS)
    assert code == 2
    assert "the run 'moons' was started before; `fedmm deploy resume moons` continues it" in err
    code, _, err = ended(monkeypatch, capsys, "run", MOONS, "--name", "other")
    assert (code, "no SuperLink answers at 127.0.0.1:1" in err) == (2, True)
