"""Checkpoints whose clients' tensors lie in files of their own, written when they change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.batched.stacks import assert_same_state

from fedmm import FedmmError
from fedmm.core.engine import FederatedState
from fedmm.data import tensor_files
from fedmm.training import snapshots
from fedmm.training.checkpoints import Checkpoints, newest_common
from fedmm.training.history import History

CPU = torch.device("cpu")
NAMES = [f"site-{number}" for number in range(5)]
SIZE = 1000


def first() -> FederatedState:
    zero = {"z": torch.zeros(SIZE)}
    return FederatedState(
        0,
        {"z": torch.randn(SIZE, generator=torch.Generator().manual_seed(0)), "h": torch.zeros(SIZE)},
        {name: {"dual": torch.zeros(SIZE)} for name in NAMES},
        totals=dict.fromkeys(NAMES, zero),
    )


def after(state: FederatedState, counted: list[str]) -> FederatedState:
    """The next state, with some sites counted."""
    draw = torch.Generator().manual_seed(state.round + 1)
    own = {name: {"z": state.totals[name]["z"] + torch.randn(SIZE, generator=draw)} for name in counted}
    moved = {name: value + torch.randn(SIZE, generator=draw) for name, value in state.server.items()}
    rounds = dict.fromkeys(counted, state.round)
    return replace(
        state,
        round=state.round + 1,
        server=moved,
        totals={**state.totals, **own},
        counted={**state.counted, **rounds},
        norms={**state.norms, **{name: {"z": 0.1 * state.round} for name in counted}},
    )


def kept(folder: Path, **more: Any) -> Checkpoints:
    return Checkpoints(folder, every=1, seconds=0.0, keep=2, **{"in_parts": True, **more})


def files(folder: Path) -> set[str]:
    return {path.name for path in (folder / "checkpoints" / "parts").glob("*")}


def test_a_state_comes_back_to_the_bit(tmp_path: Path) -> None:
    state = after(after(first(), NAMES), NAMES[:2])
    kept(tmp_path).save(state, History())
    back, _ = kept(tmp_path).load(2, CPU)
    assert_same_state(back, state, 0.0)
    assert (back.totals.keys(), back.clients.keys()) == (state.totals.keys(), state.clients.keys())
    assert all(torch.equal(back.totals[name]["z"], state.totals[name]["z"]) for name in NAMES)
    assert (back.counted, back.norms) == (state.counted, state.norms)


def test_a_part_is_written_when_it_changes_and_removed_with_the_last_checkpoint_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[Path] = []
    write = tensor_files.write_tensors

    def counting(path: Path, *more: Any) -> None:
        if path.parent.name == "parts":
            written.append(path)
        write(path, *more)

    monkeypatch.setattr(snapshots, "write_tensors", counting)
    checkpoints, state = kept(tmp_path), first()
    checkpoints.save(state, History())
    assert len(written) == 2  # the first duals are all alike, and so are the first sums
    for counted in (NAMES, NAMES[:1], NAMES[1:3], [], NAMES):
        written.clear()
        state = after(state, counted)
        checkpoints.save(state, History())
        assert len(written) == len(counted)
        assert len(files(tmp_path)) <= 1 + 2 * len(NAMES)
    assert checkpoints.rounds() == [5, 4]
    assert len(files(tmp_path)) == 1 + 2 * len(NAMES)
    checkpoints.save(after(state, []), History())
    assert len(files(tmp_path)) == 1 + len(NAMES)


def test_after_a_restart_nothing_that_is_there_is_written_again(tmp_path: Path) -> None:
    checkpoints, state = kept(tmp_path), after(first(), NAMES)
    checkpoints.save(state, History())
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "checkpoints" / "parts").glob("*")}
    ((back, history),) = newest_common([kept(tmp_path)], CPU, print)
    again = kept(tmp_path)
    again.go_on(back, CPU)
    again.save(after(back, NAMES[:1]), history)
    assert {path: path.stat().st_mtime_ns for path in before if path.exists()} == before
    assert len(files(tmp_path)) == len(before) + 1


class Crash(BaseException):
    pass


@pytest.mark.parametrize("moment", range(9))
def test_a_crash_at_any_moment_leaves_a_checkpoint_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Before and after each of the files of a checkpoint, and before old ones are removed."""
    checkpoints, state = kept(tmp_path), first()
    states = {}
    for _ in range(3):
        state = after(state, NAMES)
        states[state.round] = state
        checkpoints.save(state, History())
    steps, replaced, unlink = iter(range(100)), Path.replace, Path.unlink

    def step(call: Any) -> Any:
        def stopped(path: Path, *arguments: Any, **named: Any) -> Any:
            if next(steps) >= moment:
                raise Crash
            return call(path, *arguments, **named)

        return stopped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", step(replaced))
        patch.setattr(Path, "unlink", step(unlink))
        states[4] = after(state, NAMES)
        with pytest.raises(Crash):
            checkpoints.save(states[4], History())
    said: list[str] = []
    ((back, _),) = newest_common([kept(tmp_path)], CPU, said.append)
    assert back.round == (4 if moment > len(NAMES) else 3)
    assert said == []
    assert_same_state(back, states[back.round], 0.0)
    assert all(torch.equal(back.totals[name]["z"], states[back.round].totals[name]["z"]) for name in NAMES)
    again = kept(tmp_path)
    again.go_on(back, CPU)
    again.save(after(back, NAMES), History())
    assert len(files(tmp_path)) == 1 + 2 * len(NAMES)


@pytest.mark.parametrize("damage", ["removed", "cut", "another", "changed"])
def test_a_damaged_part_falls_back_to_the_checkpoint_before(tmp_path: Path, damage: str) -> None:
    checkpoints, state = kept(tmp_path), after(first(), NAMES)
    checkpoints.save(state, History())
    before = files(tmp_path)
    checkpoints.save(after(state, NAMES), History())
    new = tmp_path / "checkpoints" / "parts" / sorted(files(tmp_path) - before)[0]
    if damage == "removed":
        new.unlink()
    elif damage == "cut":
        new.write_bytes(new.read_bytes()[:-100])
    elif damage == "changed":
        new.write_bytes(new.read_bytes()[:-1] + b"\x7f")
    else:
        new.write_bytes((new.parent / sorted(before)[0]).read_bytes())
    said: list[str] = []
    ((back, _),) = newest_common([kept(tmp_path)], CPU, said.append)
    assert back.round == 1
    assert "trying the one before it" in said[0]
    again = kept(tmp_path)
    again.go_on(back, CPU)
    again.save(after(back, NAMES), History())  # the same bits, and so the same names as those that are damaged
    assert newest_common([kept(tmp_path)], CPU, print)[0][0].round == 2


def test_checkpoints_in_one_file_are_read_and_gone_on_with(tmp_path: Path) -> None:
    state = after(first(), NAMES)
    kept(tmp_path, in_parts=False).save(state, History())
    ((back, history),) = newest_common([kept(tmp_path)], CPU, print)
    assert_same_state(back, state, 0.0)
    again = kept(tmp_path)
    again.go_on(back, CPU)
    again.save(after(back, NAMES), history)
    assert again.rounds() == [2, 1]
    assert newest_common([kept(tmp_path)], CPU, print)[0][0].round == 2


def test_a_name_that_leads_elsewhere_is_no_part(tmp_path: Path) -> None:
    with pytest.raises(tensor_files.UnreadableFile, match="names no part"):
        snapshots.Parts(tmp_path).get("../secret")


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "parts").write_text("no folder")
    with pytest.raises(FedmmError, match="the state cannot be written to"):
        kept(tmp_path).save(first(), History())
