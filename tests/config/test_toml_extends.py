"""Files that say only what differs from another."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedmm.config.schema import experiment
from fedmm.config.toml import merge_tables, read_tables
from fedmm.core.errors import FedmmError

COMMON = """
[run]
rounds = 5
batch_size = 8

[data]
name = "moons"
rows = 40

[model]
name = "mlp"

[objective]
name = "dann"
nu = 0.5

[algorithm]
name = "fedmm"
penalty_min = 3.0
lr_min = 0.2
"""


def write(folder: Path, **files: str) -> Path:
    """TOML files by name; the folder."""
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text, encoding="utf-8")
    return folder


def test_a_file_that_extends_none_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, common=COMMON)
    tables = read_tables(tmp_path / "common.toml")
    assert tables["algorithm"] == {"name": "fedmm", "penalty_min": 3.0, "lr_min": 0.2}


def test_keys_of_the_file_go_before_those_it_extends(tmp_path: Path) -> None:
    write(tmp_path, common=COMMON, own='extends = "common.toml"\n[run]\nrounds = 7\n[algorithm]\nlr_min = 0.1\n')
    tables = read_tables(tmp_path / "own.toml")
    assert tables["run"] == {"rounds": 7, "batch_size": 8}
    assert tables["algorithm"] == {"name": "fedmm", "penalty_min": 3.0, "lr_min": 0.1}
    assert tables["data"] == {"name": "moons", "rows": 40}
    built = experiment(tables)
    assert (built.run.rounds, built.algorithm.lr_min, built.objective.nu) == (7, 0.1, 0.5)


def test_another_name_takes_none_of_the_options(tmp_path: Path) -> None:
    own = 'extends = "common.toml"\n[algorithm]\nname = "fedavg_gda"\nlr_max = 0.3\n[objective]\nname = "dann"\n'
    write(tmp_path, common=COMMON, own=own)
    tables = read_tables(tmp_path / "own.toml")
    assert tables["algorithm"] == {"name": "fedavg_gda", "lr_max": 0.3}
    assert tables["objective"] == {"name": "dann", "nu": 0.5}, "the same name keeps them"


def test_sections_that_the_other_file_does_not_have_are_added(tmp_path: Path) -> None:
    write(tmp_path, common=COMMON, own='extends = "common.toml"\n[sweep]\n"run.seed" = [0, 1]\n')
    assert read_tables(tmp_path / "own.toml")["sweep"] == {"run.seed": [0, 1]}


def test_a_chain_is_read_from_its_far_end_and_seen_from_each_files_own_folder(tmp_path: Path) -> None:
    write(tmp_path, common=COMMON)
    below = tmp_path / "figure" / "panel"
    below.mkdir(parents=True)
    write(tmp_path / "figure", middle='extends = "../common.toml"\n[run]\nrounds = 6\nseed = 3\n')
    write(below, curve='extends = "../middle.toml"\n[run]\nrounds = 7\n')
    assert read_tables(below / "curve.toml")["run"] == {"rounds": 7, "seed": 3, "batch_size": 8}


def test_in_a_chain_a_name_is_compared_with_the_one_that_counts(tmp_path: Path) -> None:
    write(
        tmp_path,
        common=COMMON,
        middle='extends = "common.toml"\n[algorithm]\nname = "fedavg_gda"\nserver_lr = 0.5\n',
        own='extends = "middle.toml"\n[algorithm]\nname = "fedmm"\n',
    )
    assert read_tables(tmp_path / "own.toml")["algorithm"] == {"name": "fedmm"}


def test_neither_table_is_changed_by_merging() -> None:
    base, changes = {"run": {"rounds": 5}}, {"run": {"seed": 1}}
    assert merge_tables(base, changes) == {"run": {"rounds": 5, "seed": 1}}
    assert (base, changes) == ({"run": {"rounds": 5}}, {"run": {"seed": 1}})


def test_a_value_in_the_place_of_a_section_is_kept_to_be_refused() -> None:
    assert merge_tables({"run": {"rounds": 5}}, {"run": 3}) == {"run": 3}
    with pytest.raises(FedmmError, match="run must be a section of its own"):
        experiment({"run": 3})


@pytest.mark.parametrize("files", [{"own": "own"}, {"own": "other", "other": "own"}, {"own": "a", "a": "b", "b": "a"}])
def test_a_loop_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    write(tmp_path, **{name: f'extends = "{base}.toml"\n' for name, base in files.items()})
    with pytest.raises(FedmmError, match=r"\.toml extends itself, through \w+\.toml"):
        read_tables(tmp_path / "own.toml")


@pytest.mark.parametrize("base", ["3", '""', '["a.toml"]', "true"])
def test_what_is_no_name_of_a_file_is_refused(tmp_path: Path, base: str) -> None:
    write(tmp_path, own=f"extends = {base}\n")
    with pytest.raises(FedmmError, match=r"own\.toml: extends must name a TOML file, not "):
        read_tables(tmp_path / "own.toml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    write(tmp_path, own='extends = "gone.toml"\n')
    with pytest.raises(FedmmError, match=r"there is no file .*gone\.toml"):
        read_tables(tmp_path / "own.toml")


def test_a_file_that_is_no_toml_is_named(tmp_path: Path) -> None:
    write(tmp_path, own='extends = "broken.toml"\n', broken="[run\n")
    with pytest.raises(FedmmError, match=r"broken\.toml is not valid TOML"):
        read_tables(tmp_path / "own.toml")
