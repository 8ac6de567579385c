"""A client's states on its disk: what is there after a crash, a torn file, a full disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from problems import random_game

from fedmm import FedMM, FedmmError
from fedmm.engines.messages import NEVER
from fedmm.engines.worker import Kept
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.messaging import Messaging
from fedmm.remote.site import Site


def state(number: int) -> Kept:
    return Kept({"dual": torch.tensor([float(number)])}, {"1.running_mean": torch.tensor(number)})


def rounds(memory: DurableMemory) -> list[int]:
    return sorted(memory.held)


def test_what_is_remembered_is_there_for_the_next_process(tmp_path: Path) -> None:
    memory = DurableMemory(tmp_path / "run" / "site")
    for t in (NEVER, 0, 1):
        memory.remember(t, state(t))
    again = DurableMemory(tmp_path / "run" / "site")
    assert rounds(again) == [0, 1]
    assert again.held[1].own["dual"].tolist() == [1.0]
    assert again.held[1].statistics["1.running_mean"].tolist() == 1
    assert sorted(path.name for path in again.folder.iterdir()) == [
        "round-00000001.safetensors",
        "round-00000002.safetensors",
    ]


def test_a_state_without_tensors_is_a_state(tmp_path: Path) -> None:
    DurableMemory(tmp_path).remember(NEVER, Kept({}, {}))
    assert DurableMemory(tmp_path).state_for(NEVER) == Kept({}, {})


def test_what_was_not_counted_is_removed_with_the_next_state(tmp_path: Path) -> None:
    memory = DurableMemory(tmp_path)
    for t in (3, 4):
        memory.remember(t, state(t))
    memory = DurableMemory(tmp_path)  # crashed; the server has counted round 3 and not round 4
    assert memory.state_for(3) is not None
    assert rounds(DurableMemory(tmp_path)) == [3, 4]
    memory.remember(5, state(5))
    assert rounds(DurableMemory(tmp_path)) == [3, 5]


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text"])
def test_a_damaged_file_is_left_out_and_said(tmp_path: Path, damage: str) -> None:
    memory = DurableMemory(tmp_path)
    for t in (0, 1):
        memory.remember(t, state(t))
    newest = tmp_path / "round-00000002.safetensors"
    whole = newest.read_bytes()
    newest.write_bytes(
        {"cut": whole[:-3], "changed": whole[:-1] + b"\x07", "empty": b"", "text": b"not a state"}[damage]
    )
    said: list[str] = []
    memory = DurableMemory(tmp_path, say=said.append)
    assert rounds(memory) == [0]
    assert len(said) == 1
    assert str(newest) in said[0]
    assert "the one before it is tried" in said[0]


def test_a_full_disk_leaves_memory_and_files_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = DurableMemory(tmp_path)
    memory.remember(0, state(0))

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedmmError, match=r"state after round 2 cannot be written to .*No space left on device"):
        memory.remember(1, state(1))
    assert rounds(memory) == rounds(DurableMemory(tmp_path)) == [0]
    assert [path.name for path in tmp_path.iterdir()] == ["round-00000001.safetensors"]


def test_any_name_makes_a_folder_of_its_own(tmp_path: Path) -> None:
    names = ["a/b", "a", "../a", "a b", "Ä", "a%2Fb"]
    folders = [state_folder(tmp_path, "run", f"x{name}") for name in names]
    assert len(set(folders)) == len(names)
    assert all(folder.parent == tmp_path / "run" for folder in folders)
    for name in ("", ".", ".."):
        with pytest.raises(FedmmError, match="cannot name a folder"):
            state_folder(tmp_path, name, "site")


def test_sites_that_restart_after_every_round_compute_the_same(tmp_path: Path) -> None:
    problem = random_game(1, clients=3).problem()
    plain, durable = (Messaging(problem, FedMM(), 5) for _ in range(2))
    one, other = plain.start(), durable.start()
    for _ in range(5):
        durable.sites = {
            name: Site(site.worker, DurableMemory(tmp_path / name), site.statistics)
            for name, site in durable.sites.items()
        }
        (one, _), (other, _) = plain.run_round(one), durable.run_round(other)
        assert torch.equal(one.z, other.z)
        for name in one.clients:
            assert torch.equal(one.clients[name]["dual"], other.clients[name]["dual"])
