"""Which folders a run may have, and how its files come to be."""

from __future__ import annotations

import errno
import json
import tomllib
import types
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedmm import FedmmError
from fedmm.core.files import write_json
from fedmm.runs.run_folder import RunFolder, claim_folder, free_folder

TABLES: dict[str, dict[str, object]] = {
    section: {} for section in ("run", "data", "partition", "model", "objective", "algorithm")
}


def older_run(folder: Path, kind: str = "run") -> Path:
    folder.mkdir()
    write_json(folder / "summary.json", {"kind": kind})
    (folder / "rounds.jsonl").write_text("")
    return folder


# Claiming -------------------------------------------------------------------------------------------------------------


def claim(folder: Path, *, overwrite: bool = False, resume: bool = False) -> bool:
    with claim_folder(folder, "experiment.toml", overwrite=overwrite, resume=resume) as going_on:
        return going_on


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_new_or_empty_is_free_and_gone_if_it_stays_empty(tmp_path: Path, overwrite: bool) -> None:
    folder = tmp_path / "new" / "one"
    for _ in range(2):
        with claim_folder(folder, "experiment.toml", overwrite=overwrite) as going_on:
            assert folder.is_dir()
            assert not going_on
    assert not folder.exists()


def test_an_older_run_stays_unless_it_may_be_overwritten(tmp_path: Path) -> None:
    folder = older_run(tmp_path / "run")
    with pytest.raises(FedmmError, match="is not empty; name another with --out, or pass --overwrite"):
        claim(folder)
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("kind", ["run", "comparison"])
def test_an_older_run_goes_where_it_may(tmp_path: Path, kind: str) -> None:
    folder = older_run(tmp_path / "run", kind)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "last").write_text("")
    with claim_folder(folder, "experiment.toml", overwrite=True) as going_on:
        assert not going_on
        assert list(folder.iterdir()) == []


def test_a_run_goes_on_where_it_was_begun(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with RunFolder(folder, TABLES):
        pass
    assert claim(folder, resume=True)
    (folder / "experiment.toml").unlink()
    with pytest.raises(FedmmError, match="is not empty"):
        claim(folder, resume=True)
    (folder / "rounds.jsonl").rename(folder / "summary.json")
    assert not claim(folder, resume=True)


def test_a_folder_in_which_a_run_is_under_way_is_left_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with claim_folder(folder, "experiment.toml"), RunFolder(folder, TABLES) as files:
        files.append({"round": 1})
        for options in ({}, {"overwrite": True}, {"resume": True}):
            with pytest.raises(FedmmError, match="another process is at work in"):
                claim(folder, **options)
        files.append({"round": 2})
    assert len((folder / "rounds.jsonl").read_text().splitlines()) == 2
    assert claim(folder, resume=True)


def test_a_run_that_never_finished_may_be_overwritten(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "run", TABLES):
        pass
    claim(tmp_path / "run", overwrite=True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_of_someone_else_is_never_deleted(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(FedmmError, match="name another with --out"):
        claim(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


@pytest.mark.parametrize("name", ["summary.json", "experiment.toml"])
def test_a_folder_of_someone_else_with_a_file_of_that_name_is_never_deleted(tmp_path: Path, name: str) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    (tmp_path / name).write_text("{}" if name == "summary.json" else 'title = "my own"')
    with pytest.raises(FedmmError):
        claim(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "precious"


def test_a_link_to_an_older_run_is_refused_in_words(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(older_run(tmp_path / "run"))
    with pytest.raises(FedmmError, match="so it is not overwritten"):
        claim(link, overwrite=True)
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match="is a file; name a folder for the run"):
        claim(tmp_path / "file", overwrite=True)


def test_a_name_that_is_too_long_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="cannot be used: File name too long"):
        claim(tmp_path / ("x" * 300))


def test_the_next_free_folder_is_found(tmp_path: Path) -> None:
    assert free_folder(tmp_path / "run") == tmp_path / "run"
    for name in ("run", "run-2"):
        (tmp_path / name).mkdir()
    assert free_folder(tmp_path / "run") == tmp_path / "run-3"


# Files ----------------------------------------------------------------------------------------------------------------


def test_the_experiment_is_there_before_the_first_round(tmp_path: Path) -> None:
    with RunFolder(tmp_path / "deep" / "run", {"run": {"rounds": 3}}) as files:
        assert tomllib.loads((files.folder / "experiment.toml").read_text()) == {"run": {"rounds": 3}}
        assert (files.folder / "rounds.jsonl").read_text() == ""


def test_every_round_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {}) as files:
        for t in (1, 2):
            files.append({"round": t, "target_accuracy": None})
            lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
            assert [json.loads(line) for line in lines][-1] == {"round": t, "target_accuracy": None}
            assert len(lines) == t
        files.summarise({"kind": "run"})
    assert json.loads((tmp_path / "summary.json").read_text()) == {"kind": "run"}


def test_a_number_that_is_not_finite_becomes_null(tmp_path: Path) -> None:
    with RunFolder(tmp_path, {}) as files:
        files.append({"round": 1, "drift": float("inf"), "loss": float("nan"), "target_accuracy": None})
    assert json.loads((tmp_path / "rounds.jsonl").read_text()) == {
        "round": 1,
        "drift": None,
        "loss": None,
        "target_accuracy": None,
    }


def test_tensors_are_saved_whatever_their_strides(tmp_path: Path) -> None:
    x = torch.arange(6.0).view(2, 3).T
    with RunFolder(tmp_path, {}) as files:
        files.tensors("samples.safetensors", {"x": x})
    assert torch.equal(load_file(tmp_path / "samples.safetensors")["x"], x)


@pytest.mark.parametrize("folder", ["file/run", "file"])
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, folder: str) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match=r"^the run cannot be written to "):
        RunFolder(tmp_path / folder, {})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_round_that_does_not_fit_on_the_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").symlink_to("/dev/full")
    with (
        pytest.raises(FedmmError, match=r"^round 1 cannot be written to .*: No space left on device$"),
        RunFolder(tmp_path, {}) as files,
    ):
        files.append({"round": 1})


def test_rounds_that_cannot_be_closed_are_named(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    files = RunFolder(tmp_path, {})
    files._rounds.close()
    files._rounds = types.SimpleNamespace(close=fail)  # type: ignore[assignment]
    sentence = f"^the last rounds cannot be written to {tmp_path}: Disk quota exceeded$"
    with pytest.raises(FedmmError, match=sentence), files:
        pass
    with pytest.raises(KeyError, match="first"), files:
        raise KeyError("first")


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("summary.json", lambda files: files.summarise({"kind": "run"})),
        ("samples.safetensors", lambda files: files.tensors("samples.safetensors", {"x": torch.zeros(1)})),
    ],
)
def test_a_file_that_cannot_be_written_is_named(tmp_path: Path, name: str, write: Callable[[RunFolder], None]) -> None:
    (tmp_path / name / "in the way").mkdir(parents=True)
    with (
        pytest.raises(FedmmError, match=rf"^{name} cannot be written to {tmp_path}: .+$") as refused,
        RunFolder(tmp_path, {}) as files,
    ):
        write(files)
    assert "\n" not in str(refused.value)


def test_text_that_is_not_utf8_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match="text must be UTF-8"):
        RunFolder(tmp_path / "run", {"run": {"label": "\udcff"}})
    assert list(tmp_path.iterdir()) == []


def test_json_makes_its_folder(tmp_path: Path) -> None:
    write_json(tmp_path / "deep" / "a.json", {"a": 1})
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["a.json"]


def test_json_that_cannot_be_written_leaves_the_older_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"old": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "a.json", {"new": object()})
    assert json.loads((tmp_path / "a.json").read_text()) == {"old": 1}
