"""Run folders come back as they were written, and what is wrong with one is said in a sentence that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedmm.core.errors import FedmmError
from fedmm.reporting import read_comparison, read_kind, read_run


def test_a_run_reads_back(folders: Any) -> None:
    folder = folders.run(label="ours", seed=3)
    run = read_run(folder)
    assert (run.label, run.algorithm, run.objective, run.data, run.seed) == ("ours", "fedmm", "dann", "two_moons", 3)
    assert (run.status, run.target_accuracy, run.source_accuracy) == ("completed", 0.75, None)
    assert (run.seconds, run.bytes_up, run.bytes_down) == (1.5, 3_000_000, 6_000_000)
    assert run.samples is None
    assert run.boundary is None
    assert read_kind(folder) == "run"


def test_a_series_skips_rounds_without_a_finite_value(folders: Any) -> None:
    run = read_run(folders.run())
    assert run.series("target_accuracy") == ([1, 3], [0.5, 0.75])
    assert run.series("loss") == ([2, 3], [1.0, 1.0])
    assert run.series("no such column") == ([], [])


@pytest.mark.parametrize("tail", [b'{"round": 4, "target_acc', b'{"round": 4, "name": "\xc3', b"\x00\x00\n", b"\n"])
def test_a_last_line_cut_short_is_dropped(folders: Any, tail: bytes) -> None:
    folder = folders.run()
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(tail)
    assert list(read_run(folder).records) == [1, 2, 3]


def test_a_round_written_again_after_a_resume_counts_once(folders: Any) -> None:
    folder = folders.run()
    with (folder / "rounds.jsonl").open("a") as file:
        file.write('{"round": 2, "target_accuracy": 0.6}\n')
    assert read_run(folder).series("target_accuracy") == ([1, 2, 3], [0.5, 0.6, 0.75])


@pytest.mark.parametrize("line", ["not json", "[1]", '{"drift": 1.0}', '{"round": "one"}', '{"round": true}'])
def test_a_broken_line_before_the_last_is_refused(folders: Any, line: str) -> None:
    folder = folders.run()
    path = folder / "rounds.jsonl"
    path.write_text(line + "\n" + path.read_text())
    _refused(folder, "rounds.jsonl", "line 1")


@pytest.mark.parametrize("name", ["summary.json", "rounds.jsonl"])
def test_a_missing_file_is_named(folders: Any, name: str) -> None:
    folder = folders.run()
    (folder / name).unlink()
    _refused(folder, f"/{name} is missing")


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    _refused(tmp_path / "nowhere", "/nowhere/summary.json is missing")
    (tmp_path / "file").write_text("")
    _refused(tmp_path / "file", "/file/summary.json cannot be read")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "sweep"}', "\x00"])
def test_a_corrupt_summary_is_named(folders: Any, text: str) -> None:
    folder = folders.run()
    (folder / "summary.json").write_text(text)
    _refused(folder, "summary.json")


@pytest.mark.parametrize(
    ("key", "value"),
    [("label", None), ("seed", "zero"), ("seconds", float("nan")), ("bytes_up", True), ("target_accuracy", 93.0)],
)
def test_a_wrong_value_is_named_with_its_key(folders: Any, key: str, value: object) -> None:
    _refused(folders.run(**{key: value}), "summary.json", key)


@pytest.mark.parametrize("name", ["samples.safetensors", "boundary.safetensors"])
def test_corrupt_tensors_are_named(folders: Any, name: str) -> None:
    folder = folders.run()
    (folder / name).write_bytes(b"not tensors")
    _refused(folder, name)
    save_file({"other": np.zeros(3)}, folder / name)
    _refused(folder, name, "lacks the tensor")


def test_tensors_that_do_not_fit_each_other_are_refused(folders: Any) -> None:
    folder = folders.run()
    grid = np.zeros(3)
    save_file({"grid_x": grid, "grid_y": grid, "probability": np.zeros((3, 4))}, folder / "boundary.safetensors")
    _refused(folder, "boundary.safetensors")
    x = {"source_x": np.zeros((4, 2)), "source_y": grid, "target_x": np.zeros((3, 2)), "target_y": grid}
    save_file(x, folder / "samples.safetensors")
    _refused(folder, "samples.safetensors")


def test_a_comparison_holds_its_runs_by_label_in_order(folders: Any) -> None:
    folder = folders.comparison({"source only": [[0.5]], "FedMM": [[0.8], [0.9]]})
    comparison = read_comparison(folder)
    assert comparison.title == "two moons"
    assert {label: [run.seed for run in runs] for label, runs in comparison.groups().items()} == {
        "source only": [0],
        "FedMM": [0, 1],
    }
    assert read_kind(folder) == "comparison"


def test_runs_go_by_the_label_of_their_comparison(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8]]})
    path = folder / "summary.json"
    path.write_text(path.read_text().replace('"label": "FedMM"', '"label": "M = 20"'))
    assert [run.label for run in read_comparison(folder).runs] == ["M = 20"]


def test_one_kind_is_not_taken_for_the_other(folders: Any) -> None:
    comparison = folders.comparison({"FedMM": [[0.8]]})
    _refused(comparison, "summary.json", "describes a comparison, not a run")
    with pytest.raises(FedmmError, match="describes a run, not a comparison"):
        read_comparison(comparison / "runs/0")


def test_a_comparison_names_what_is_wrong_with_it(folders: Any) -> None:
    folder = folders.comparison({"FedMM": [[0.8]]})
    (folder / "runs/0/rounds.jsonl").unlink()
    with pytest.raises(FedmmError, match=r"runs/0/rounds\.jsonl is missing"):
        read_comparison(folder)
    for runs in ([], None, ["a"]):
        (folder / "summary.json").write_text(json.dumps({"kind": "comparison", "title": "", "runs": runs}))
        with pytest.raises(FedmmError, match=r"summary\.json must give 'runs'"):
            read_comparison(folder)


def _refused(folder: Path, *words: str) -> None:
    """Reading the run fails with one sentence that holds these words."""
    with pytest.raises(FedmmError) as error:
        read_run(folder)
    message = str(error.value)
    assert all(word in message for word in words), message
    assert "\n" not in message
