"""States of interrupted runs as files."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from engines.batched.stacks import STACKS, Run, advanced, assert_same_state, stacked
from safetensors.torch import save_file

from fedmm import ALGORITHMS
from fedmm.core.engine import FederatedState
from fedmm.core.errors import FedmmError
from fedmm.data.tensor_files import checksum
from fedmm.training.history import History
from fedmm.training.snapshots import _FORMAT, load_snapshot, save_snapshot

CPU = torch.device("cpu")
HISTORY = History(
    [
        {"round": 1, "drift": 0.1, "target_accuracy": None, "loss": math.nan, "bytes_up": 10},
        {"round": 2, "drift": 1e-300, "target_accuracy": 1 / 3, "loss": math.inf, "bytes_up": 10},
    ]
)
UNLIKE = ["mixed", "dropout", "batch norm averaged", "batch norm frozen", "batch norm local"]


def after(runs: list[Run], rounds: int = 2) -> list[FederatedState]:
    """The states of a stack after some rounds."""
    stack = stacked(runs)
    advanced(stack, rounds)
    return [stack.state(replica) for replica in range(len(runs))]


def round_trip(state: FederatedState, path: Path) -> FederatedState:
    save_snapshot(path, state, HISTORY)
    return load_snapshot(path, CPU)[0]


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A state of FedMM on disk."""
    save_snapshot(tmp_path / "kept.safetensors", after(STACKS["fedmm alone"])[0], HISTORY)
    return tmp_path / "kept.safetensors"


@pytest.mark.parametrize("name", [f"{name} alone" for name in ALGORITHMS] + UNLIKE)
def test_every_vector_of_every_algorithm_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    for number, state in enumerate(after(STACKS[name])):
        back = round_trip(state, tmp_path / f"{number}.safetensors")
        assert_same_state(back, state, 0.0)
        assert back.clients.keys() == state.clients.keys()
        assert back.client_statistics.keys() == state.client_statistics.keys()


def test_what_clients_keep_is_in_it(tmp_path: Path) -> None:
    for name, vectors in {"fedmm": {"dual"}, "fedmm_smoothed": {"dual", "centre"}, "fedavg_gda": set()}.items():
        (state,) = after(STACKS[f"{name} alone"])
        back = round_trip(state, tmp_path / "state.safetensors")
        assert all(set(own) == vectors for own in back.clients.values())


def test_names_of_clients_may_be_anything(tmp_path: Path) -> None:
    odd = ["", ".", "a/b", "server", "0", "näme \n", '"']
    state = FederatedState(
        3, {"z": torch.ones(2)}, {name: {"dual": torch.full((2,), float(i))} for i, name in enumerate(odd)}
    )
    back = round_trip(state, tmp_path / "state.safetensors")
    assert list(back.clients) == odd
    assert_same_state(back, state, 0.0)


def test_one_tensor_in_two_places_is_kept_twice(tmp_path: Path) -> None:
    shared = torch.arange(3.0)
    state = FederatedState(1, {"z": shared}, {"a": {"centre": shared}, "b": {"centre": shared[::2]}})
    assert_same_state(round_trip(state, tmp_path / "state.safetensors"), state, 0.0)


def test_the_history_comes_back_with_what_is_no_number(kept: Path) -> None:
    _, history = load_snapshot(kept, CPU)
    assert repr(list(history)) == repr(list(HISTORY))


@pytest.mark.parametrize("name", ["every algorithm", *UNLIKE])
def test_a_stack_goes_on_from_snapshots_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    straight, first = stacked(STACKS[name]), stacked(STACKS[name])
    expected = advanced(straight, 6)
    advanced(first, 3)
    back = [round_trip(first.state(r), tmp_path / f"{r}.safetensors") for r in range(len(STACKS[name]))]
    resumed = stacked(STACKS[name])
    resumed.load(back)
    assert torch.equal(advanced(resumed, 3), expected)
    for replica in range(len(STACKS[name])):
        assert_same_state(resumed.state(replica), straight.state(replica), 0.0)


def test_the_folder_is_made_and_an_older_state_replaced(tmp_path: Path) -> None:
    state = FederatedState(1, {"z": torch.zeros(2)}, {})
    path = tmp_path / "deep" / "er" / "state.safetensors"
    save_snapshot(path, state, History())
    save_snapshot(path, replace(state, round=2), History())
    assert load_snapshot(path, CPU)[0].round == 2
    assert [each.name for each in path.parent.iterdir()] == ["state.safetensors"]


def test_where_nothing_can_be_written_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match=r"the state cannot be written to .*state: "):
        save_snapshot(tmp_path / "file" / "state", FederatedState(1, {"z": torch.zeros(2)}, {}), History())


# What is no state -----------------------------------------------------------------------------------------------------


def assert_refused(path: Path) -> None:
    with pytest.raises(FedmmError) as refused:
        load_snapshot(path, CPU)
    assert str(refused.value) == f"{path} is not a state from which a run can continue; remove the file"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.9999])
def test_a_truncated_file_is_refused(kept: Path, share: float) -> None:
    whole = kept.read_bytes()
    kept.write_bytes(whole[: int(share * len(whole))])
    assert_refused(kept)


@pytest.mark.parametrize("place", [0, 7, 40, 0.3, 0.9, -1])
def test_a_changed_byte_is_noticed(kept: Path, place: float) -> None:
    content = bytearray(kept.read_bytes())
    content[int(place * len(content)) if isinstance(place, float) else place] ^= 0x11
    kept.write_bytes(content)
    assert_refused(kept)


def test_a_tail_of_zeros_is_noticed(kept: Path) -> None:
    content = kept.read_bytes()
    kept.write_bytes(content[:-400] + bytes(400))
    assert_refused(kept)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    assert_refused(tmp_path / "gone.safetensors")


def described(**changes: Any) -> dict[str, Any]:
    """What a file with one tensor says of itself, with some of it changed."""
    state = {"round": 1, "clients": [], "client_statistics": [], "counted": {}, "offender": None}
    whole = {"format": _FORMAT, "states": [state], "places": {"0": ["0", "server", "z"]}}
    return {**whole, "history": [], "events": [], "refusals": {}, **changes}


def write_described(path: Path, about: object) -> None:
    tensors, text = {"0": torch.zeros(2)}, json.dumps(about)
    save_file(tensors, path, metadata={"fedmm": text, "sha256": checksum(text, tensors)})


def test_a_file_that_is_as_it_should_be_is_accepted(tmp_path: Path) -> None:
    write_described(tmp_path / "state.safetensors", described())
    assert load_snapshot(tmp_path / "state.safetensors", CPU)[0].z.tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    "about",
    [
        ["a list"],
        {},
        described(format="another"),
        {key: value for key, value in described().items() if key != "history"},
        described(places={"1": ["0", "server", "z"]}),
        described(places={"0": ["0", "nowhere", "z"]}),
        described(places={"0": ["1", "server", "z"]}),
        described(places={"0": []}),
        described(states=[]),
        described(states=[{"round": 1, "clients": 3}]),
        described(refusals={"1": [["a", "b", "c"]]}),
    ],
    ids=lambda about: json.dumps(about)[-60:],
)
def test_other_descriptions_are_refused(tmp_path: Path, about: object) -> None:
    write_described(tmp_path / "other.safetensors", about)
    assert_refused(tmp_path / "other.safetensors")


@pytest.mark.parametrize("metadata", [None, {"fedmm": "no JSON"}, {"fedmm": json.dumps(described())}])
def test_other_files_of_tensors_are_refused(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    path = tmp_path / "other.safetensors"
    save_file({"0": torch.zeros(2)}, path, metadata=metadata)
    assert_refused(path)
