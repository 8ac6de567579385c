"""``fedmm.adapt(..., resume=folder)``: what was stopped goes on, to the bit."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engines.batched.stacks import assert_same_state
from problems import adapt, labels, mixed_client, network, rows, source_client, target_client
from runs.forking import Started, template
from runs.saved import model_in
from torch import nn
from torch.utils.data import Dataset

from fedmm import ALGORITHMS, CDAN, Adapted, Client, CropAndFlip, Diverged, FedAvgGDA, FedMM, FedmmError, Terms
from fedmm.core.aggregation import CoordinateMedian
from fedmm.core.mechanisms import GaussianUpdate
from fedmm.core.schedules import DannDecay
from fedmm.training.checkpoints import ABOUT, FOLDER
from fedmm.training.guard import Guard

ROUNDS = 8


class Stopped(Exception):  # noqa: N818 - what happens to the run
    pass


def ends_after(last: int, how: type[BaseException] = Stopped) -> Any:
    def on_round(row: dict[str, Any]) -> None:
        if row["round"] == last:
            raise how

    return on_round


def kept(folder: Path, rounds: int = ROUNDS, **options: Any) -> Adapted:
    return adapt(rounds=rounds, resume=folder, **{"checkpoint_every": 1, "checkpoint_seconds": 0.0} | options)


def history_of(adapted: Adapted) -> list[dict[str, Any]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in adapted.history]


def assert_same(one: Adapted, other: Adapted) -> None:
    assert_same_state(one.state, other.state, 0.0)
    assert repr(history_of(one)) == repr(history_of(other))
    assert one.history.refusals == other.history.refusals
    assert one.status == other.status


def numbered(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("round-")) for path in (folder / FOLDER).glob("round-*.safetensors"))


# To the bit -----------------------------------------------------------------------------------------------------------

HARD = {
    "dropout and batch norm kept by clients": {
        "model": network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), batch_norm="local", head_dropout=0.3),
    },
    "batch norm averaged": {"model": network(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh())},
    "a schedule": {"algorithm": FedMM(lr_min=0.1, lr_max=0.1, local_steps=2, lr_schedule=DannDecay())},
    "random maps": {"objective": CDAN(random_dim=3)},
    "some take part": {"terms": Terms(participation=0.5)},
    "fewer bytes": {"terms": Terms(uploads="int8", broadcasts="int8", participation=0.7)},
    "a robust mean": {"terms": Terms(aggregation=CoordinateMedian(), on_bad_update="skip")},
    "noise": {"terms": Terms(transmission=GaussianUpdate()), "probe_rows": 0},
    "validation": {"validation": (rows(8), labels(8)), "evaluate_every": 3},
}
HARD |= {name: {"algorithm": kind(lr_min=0.1, lr_max=0.1)} for name, kind in ALGORITHMS.items()}


@pytest.mark.parametrize("name", HARD)
def test_what_was_stopped_goes_on_to_the_same_end(name: str, tmp_path: Path) -> None:
    options = {"clients": [source_client(), mixed_client(), target_client()], **HARD[name]}
    for last in (2, 5):
        with pytest.raises(Stopped):
            kept(tmp_path, on_round=ends_after(last), **options)
    seen: list[Any] = []
    resumed = kept(tmp_path, on_round=lambda row: seen.append(row["round"]), **options)
    assert seen == [5, 6, 7, 8]  # round 5 was over, but its checkpoint was not yet written
    assert_same(resumed, adapt(rounds=ROUNDS, **options))


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    adapt(rounds=2)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_keeps_the_last_round_and_the_next_call_goes_on(tmp_path: Path) -> None:
    stopped = kept(tmp_path, checkpoint_every=0, on_round=ends_after(3, KeyboardInterrupt))
    assert stopped.status == "interrupted"
    assert numbered(tmp_path) == [3]
    assert_same(kept(tmp_path, checkpoint_every=0), adapt(rounds=ROUNDS))


def test_a_completed_call_returns_its_result_without_training(tmp_path: Path) -> None:
    first = kept(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = kept(tmp_path, on_round=ends_after(1))
    assert_same(again, first)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert torch.equal(again.predict(rows(5)), first.predict(rows(5)))


def test_the_last_few_are_kept_and_how_many_may_change(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        kept(tmp_path, keep_checkpoints=3, on_round=ends_after(6))
    assert numbered(tmp_path) == [3, 4, 5]
    kept(tmp_path, keep_checkpoints=1, checkpoint_every=2)
    assert numbered(tmp_path) == [8]


def test_refused_updates_are_remembered(tmp_path: Path) -> None:
    options = {"terms": Terms(max_update_norm=1e-3)}
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(4), **options)
    resumed = kept(tmp_path, **options)
    assert len(resumed.history.refusals) == ROUNDS
    assert_same(resumed, adapt(rounds=ROUNDS, **options))


def test_a_run_that_diverges_keeps_its_last_good_round_and_diverges_again(tmp_path: Path) -> None:
    options = {"algorithm": FedAvgGDA(lr_min=1e3, lr_max=1e3, local_steps=2), "rounds": 200}
    with pytest.raises(Diverged) as first:
        kept(tmp_path, **options)
    good = first.value.round - 1
    assert numbered(tmp_path)[-1] == good
    seen: list[Any] = []
    with pytest.raises(Diverged) as again:
        kept(tmp_path, on_round=seen.append, **options)
    assert str(again.value) == str(first.value)
    assert seen == []
    assert isinstance(again.value.partial, Adapted)
    assert again.value.partial.state.round == good


def test_a_guard_that_stopped_the_run_stops_it_again_with_one_word(tmp_path: Path) -> None:
    options = {"algorithm": FedAvgGDA(lr_min=1e3, lr_max=1e3, local_steps=2), "rounds": 200, "guard": Guard("stop")}
    ended = []
    for _ in range(2):
        with pytest.raises(Diverged) as stopped:
            kept(tmp_path, **options)
        assert isinstance(stopped.value.partial, Adapted)
        ended.append(stopped.value.partial)
    assert ended[0].history.events == ended[1].history.events
    assert [event["policy"] for event in ended[0].history.events] == ["stop"]


def test_a_guard_that_went_back_goes_on_to_the_same_end(tmp_path: Path) -> None:
    calm = Guard("rollback", window=4, look_back=2, calm=1e-4, most=3)
    options = {"algorithm": FedAvgGDA(lr_min=40.0, lr_max=40.0, local_steps=2), "rounds": 60, "guard": calm}
    whole = adapt(**options)
    assert whole.history.events
    last = whole.history.events[0]["round"] + 2
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(last), **options)
    resumed = kept(tmp_path, **options)
    assert_same(resumed, whole)
    assert resumed.history.events == whole.history.events


# What was damaged -----------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_warns(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(6))
    (tmp_path / FOLDER / "round-00000005.safetensors").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"round-00000005\.safetensors is not a state .*trying the one before it"):
        resumed = kept(tmp_path)
    assert_same(resumed, adapt(rounds=ROUNDS))
    assert numbered(tmp_path) == [7, 8]


def test_without_a_readable_checkpoint_it_begins_again_and_warns(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(6))
    for path in (tmp_path / FOLDER).iterdir():
        path.write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"trying the one before it|the run starts again") as warned:
        resumed = kept(tmp_path, checkpoint_every=2)
    assert "the run starts again" in str(warned[-1].message)
    assert_same(resumed, adapt(rounds=ROUNDS))
    assert numbered(tmp_path) == [6, 8]  # what could not be read is gone


def test_a_call_that_was_killed_before_its_first_checkpoint_begins_without_a_word(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(1))
    assert_same(kept(tmp_path), adapt(rounds=ROUNDS))


# What is another run --------------------------------------------------------------------------------------------------


class Pictures(Dataset[Any]):
    """Rows that are drawn anew each time, as by a random transform."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return np.random.default_rng().normal(size=4).astype(np.float32), index % 3


ANOTHER: dict[str, tuple[dict[str, Any], str]] = {
    "rounds": ({"rounds": 9}, "run.rounds was 8, now 9"),
    "seed": ({"seed": 1}, "run.seed was 0, now 1"),
    "batch size": ({"batch_size": 6}, "run.batch_size was 8, now 6"),
    "dtype": ({"dtype": torch.float64}, "run.dtype was 'float32', now 'float64'"),
    "evaluations": ({"evaluate_every": 2}, "run.evaluate_every was 1, now 2"),
    "hyperparameter": (
        {"algorithm": FedMM(lr_min=0.2, lr_max=0.1, local_steps=2)},
        "algorithm.lr_min was 0.1, now 0.2",
    ),
    "algorithm": ({"algorithm": FedAvgGDA(0.1, 0.1, 2)}, "algorithm.name was 'FedMM', now 'FedAvgGDA'"),
    "objective": ({"objective": CDAN()}, "objective.name was 'DANN', now 'CDAN'"),
    "terms": ({"terms": Terms(participation=0.5)}, "terms.participation was 1.0, now 0.5"),
    "architecture": ({"model": network(nn.Linear(4, 6), nn.ReLU())}, "model.structure was "),
    "weights": ({"model": network(nn.Linear(4, 6), nn.Tanh())}, "model.weights was "),
    "rows": ({"clients": [source_client(seed=7), target_client()]}, "clients.source was "),
    "names": ({"clients": [source_client(), target_client("other")]}, "clients.other was None, now "),
    "validation": ({"validation": (rows(8), labels(8))}, "measures.target_accuracy was None, now 24"),
}


@pytest.mark.parametrize("name", ANOTHER)
def test_another_call_is_refused_with_the_differences(name: str, tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        kept(tmp_path, on_round=ends_after(3))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    changes, words = ANOTHER[name]
    torch.manual_seed(123)
    with pytest.raises(FedmmError) as refused:
        kept(tmp_path, **changes)
    assert words in str(refused.value)
    assert str(refused.value).startswith(f"the run in {tmp_path} was started with another configuration")
    assert "\n" not in str(refused.value)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_another_network_says_how_to_get_the_same(tmp_path: Path) -> None:
    def made(seed: int) -> Any:
        torch.manual_seed(seed)
        return network(nn.Linear(4, 6), nn.Tanh())

    with pytest.raises(Stopped):
        kept(tmp_path, model=made(1), on_round=ends_after(3))
    with pytest.raises(FedmmError, match=r"model\.weights was .* \(call torch\.manual_seed before"):
        kept(tmp_path, model=made(2))
    kept(tmp_path, model=made(1))


def test_a_dataset_that_draws_its_rows_is_known_by_their_number_and_shape(tmp_path: Path) -> None:
    clients = [Client(source=Pictures(), name="s"), target_client()]
    with pytest.raises(Stopped):
        kept(tmp_path, clients=clients, on_round=ends_after(3))
    assert len(kept(tmp_path, clients=clients).history) == ROUNDS


def test_a_view_is_part_of_it(tmp_path: Path) -> None:
    x, y = torch.zeros(12, 1, 6, 6), labels(1, 12)
    options = {"clients": [Client((x, y), x)], "model": network(nn.Flatten(), nn.LazyLinear(4))}
    kept(tmp_path, rounds=1, view=CropAndFlip(5), **options)
    with pytest.raises(FedmmError, match=r"view\.flip was True, now False"):
        kept(tmp_path, rounds=1, view=CropAndFlip(5, flip=False), **options)


def test_what_it_is_can_be_read_beside_the_checkpoints(tmp_path: Path) -> None:
    kept(tmp_path, rounds=1)
    about = json.loads((tmp_path / ABOUT).read_text())
    assert about["run"] == {
        "rounds": 1, "dtype": "float32", "device": "cpu", "seed": 0, "batch_size": 8, "evaluate_every": 1
    }  # fmt: skip
    assert about["algorithm"]["lr_min"] == 0.1
    assert set(about["clients"]) == {"source", "target"}


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    with pytest.raises(FedmmError, match=r"holds checkpoints that are not from fedmm\.adapt"):
        kept(tmp_path)
    (tmp_path / ABOUT).write_text("[]")
    with pytest.raises(FedmmError, match="cannot be read; name another folder with resume"):
        kept(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"checkpoint_every": -1}, "checkpoint_every must be"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds must"),
        ({"keep_checkpoints": 0}, "keep_checkpoints must be at least 1"),
        ({"resume": 3}, "resume must be a folder's name, not 3"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=words):
        adapt(**{"resume": tmp_path / "x"} | options)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_cannot_be_made_is_told_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FedmmError, match="cannot be written to"):
        kept(tmp_path / "file" / "x")


# SIGKILL --------------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys, time, torch, fedmm

def hold(row):
    while row["round"] == 99 and not os.path.exists("go"):
        time.sleep(1)

torch.set_num_threads(1)
torch.manual_seed(0)
draw = torch.Generator().manual_seed(1)
x, t = (torch.randn(40, 4, generator=draw) for _ in range(2))
y = torch.randint(0, 3, (40,), generator=draw)
model = fedmm.Network(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()), 3, head_dropout=0.2)
adapted = fedmm.adapt([fedmm.Client((x, y), name="a"), fedmm.Client(target=t, name="b")], model, rounds=100,
                      resume=sys.argv[1], checkpoint_every=1, progress=False, on_round=hold)
adapted.save(sys.argv[2])
"""


@pytest.mark.processes
def test_sigkill_at_random_moments_changes_nothing(tmp_path: Path) -> None:
    """A process that is faster than the kills waits for its own before the last round."""
    draw, go = random.Random(0), tmp_path / "go"
    with template() as interpreter:

        def started(name: str) -> Started:
            return interpreter.start(PROGRAM, name, f"{name}.safetensors", folder=tmp_path)

        for _ in range(4):
            process = started("killed")
            time.sleep(draw.uniform(0.2, 0.7))
            assert process.poll() is None
            process.kill()
        go.touch()
        assert started("killed").wait() == 0
        assert started("whole").wait() == 0
    assert model_in(tmp_path / "killed.safetensors") == model_in(tmp_path / "whole.safetensors")
