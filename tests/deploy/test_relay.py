"""Questions to a resident worker, and how its answers come back."""

from __future__ import annotations

import stat
import threading
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client
from pathlib import Path

import numpy as np
import pytest

from fedmm import FedmmError
from fedmm.deploy.relay import NoWorker, ask, listen, socket_path
from fedmm.engines.packed import Packed

QUESTION = Packed(
    {"min.omega": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.empty((0, 2)), "scalar": np.array(7)},
    {"round": 3, "run": "Ä", "resume": True},
    {"loss": 0.1 + 0.2},
)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    def answer(kind: str, question: Packed) -> Packed:
        if kind == "fail":
            raise FedmmError("there is nothing to say")
        return Packed({name: 2 * array for name, array in question.arrays.items()}, question.about, question.metrics)

    ready = threading.Event()
    threading.Thread(target=listen, args=(tmp_path / "state", answer, ready.set), daemon=True).start()
    assert ready.wait(600)
    return tmp_path / "state"


def test_arrays_values_and_measures_come_back_as_they_are(state: Path) -> None:
    answer = ask(state, "train", QUESTION)
    assert answer.about == QUESTION.about
    assert answer.metrics == QUESTION.metrics
    assert list(answer.arrays) == list(QUESTION.arrays)
    for name, array in answer.arrays.items():
        assert array.dtype == QUESTION.arrays[name].dtype
        np.testing.assert_array_equal(array, 2 * QUESTION.arrays[name])
    assert ask(state, "train", answer).about == QUESTION.about  # and again


def test_a_refusal_comes_back_as_one(state: Path) -> None:
    with pytest.raises(FedmmError, match="there is nothing to say"):
        ask(state, "fail", QUESTION)


def test_only_the_owner_can_reach_the_worker_and_only_with_its_secret(state: Path) -> None:
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert stat.S_IMODE((state / "worker.secret").stat().st_mode) == 0o600
    assert stat.S_IMODE(socket_path(state).stat().st_mode) == 0o600
    with pytest.raises((AuthenticationError, EOFError, OSError)):
        Client(str(socket_path(state)), family="AF_UNIX", authkey=b"another")
    assert ask(state, "train", QUESTION).about == QUESTION.about


def test_without_a_worker_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoWorker):
        ask(tmp_path, "train", QUESTION)


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    assert len(str(socket_path(deep))) < 100
    assert socket_path(deep) != socket_path(tmp_path / ("y" * 120))
