"""The clients of an NVFlare job compute what the reference does, and their states outlive its processes.

The same clients answer NVFlare's messages in this process where no process is what is tested.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("nvflare", reason="the engine 'nvflare' needs fedmm[nvflare]")

import psutil
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal
from nvflare_sites import FEDERATION, ROUNDS
from problems import WORST_AUC, played, with_options

from fedmm import ALGORITHMS, FedmmError
from fedmm.config.schema import Experiment, experiment
from fedmm.engines.in_process import InProcess
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.engine import AskingEngine
from fedmm.remote.nvflare import federation, job
from fedmm.remote.nvflare.executor import SiteExecutor, to_packed, to_shareable
from fedmm.remote.packed import PROBLEM, Ask, Malformed, Packed
from fedmm.runs.run import run_experiment

pytestmark = pytest.mark.xdist_group("nvflare")

NAMES = FEDERATION.names
NOTHING = Packed({}, {}, {})
MOONS: dict[str, Any] = {
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "partition": {"name": "source_target"},
    "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
    "run": {"rounds": 6, "batch_size": 8, "threads": 1, "evaluate_every": 6, "dtype": "float64"},
}
"""In float64, so that sums which sites take in another order agree to its rounding."""
ON_NVFLARE = experiment({**MOONS, "run": {**MOONS["run"], "engine": "nvflare"}})


def _processes(folder: Path) -> list[psutil.Process]:
    """Those that NVFlare started below a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FEDMM_NVFLARE", "").startswith(str(folder)):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _listening(folder: Path) -> set[str]:
    """The addresses at which they listen; a process that ends in between listens nowhere."""
    found = set()
    for process in _processes(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            connections = process.net_connections("inet")
            found |= {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}
    return found


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where NVFlare leaves its files: the names of sockets must be short. Nothing is left there at the end."""
    tmp_path_factory.getbasetemp()  # before there is another folder for temporary files
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # where nvflare_sites lies
        patch.setenv("FEDMM_ALLOW_IMPORT", "nvflare_sites")
        patch.setattr(tempfile, "tempdir", folder)
        patch.setattr(job, "_COMMAND_SECONDS", 3600.0)  # a busy machine is no failure here
        patch.setattr(sys.modules[federation.__module__], "_START_SECONDS", 3600.0)
        yield Path(folder)
        assert not _processes(Path(folder))


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@contextlib.contextmanager
def federation_here(clients: Sequence[str], site: str, arguments: Mapping[str, Any], **_: Any) -> Iterator[Ask]:
    """In place of ``federation``: the executors that NVFlare's clients have, without a process."""
    executors = {name: SiteExecutor(site, arguments) for name in clients}

    def execute(name: str, kind: str, question: Packed) -> Packed:
        context = SimpleNamespace(get_identity_name=lambda: name)
        return to_packed(executors[name].execute(kind, to_shareable(question), context, Signal()))

    def ask(kind: str, questions: Mapping[str, Packed]) -> dict[str, Packed]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDMM_ALLOW_IMPORT", "nvflare_sites")
            return {name: execute(name, kind, question) for name, question in questions.items()}

    yield ask


@pytest.fixture(scope="module", params=["here", pytest.param("simulator", marks=pytest.mark.processes)])
def ask(request: pytest.FixtureRequest, own: Path, states: Path) -> Iterator[Ask]:
    """Two clients, for all tests in which nothing dies."""
    there = federation_here if request.param == "here" else federation
    with there(NAMES, "nvflare_sites:site", {"states": str(states / request.param)}) as asking:
        yield asking
    assert list(own.iterdir()) == []


def in_the_simulator(test: Callable[..., None]) -> Callable[..., None]:
    return pytest.mark.processes(pytest.mark.parametrize("ask", ["simulator"], indirect=True)(test))


# One simulation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedmm", "scaffold_gda", "fedgda_gt"])
def test_rounds_have_the_same_bits_as_in_process(
    name: str, ask: Ask, states: Path, request: pytest.FixtureRequest
) -> None:
    algorithm = with_options(ALGORITHMS[name])
    place = request.node.callspec.params["ask"]

    def ask_to_work(kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        assert kind == "train"
        return ask(name, questions)

    ours = list(played(AskingEngine(FEDERATION.problem(), algorithm, ROUNDS, ask_to_work), ROUNDS))
    reference = list(played(InProcess(FEDERATION.problem(), algorithm, ROUNDS), ROUNDS))
    for (state, record), (expected, expected_record) in zip(ours, reference, strict=True):
        assert state.counted == expected.counted
        assert all(torch.equal(state.server[key], vector) for key, vector in expected.server.items())
        assert all(torch.equal(state.statistics[key], each) for key, each in expected.statistics.items())
        assert record.dual_norm == pytest.approx(expected_record.dual_norm, rel=1e-6)
        same = {"seconds": 0.0, "dual_norm": 0.0}
        assert replace(record, **same) == replace(expected_record, **same)
    for client, own in reference[-1][0].clients.items():
        kept = DurableMemory(state_folder(states / place, name, client)).held[ROUNDS - 1].own
        assert kept.keys() == own.keys()
        assert all(torch.equal(kept[key], vector) for key, vector in own.items())


def test_a_question_that_is_repeated_is_answered_the_same(ask: Ask) -> None:
    asked: list[dict[str, Packed]] = []

    def twice(kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
        asked.extend(dict(ask("fedavg_gda", questions)) for _ in range(2))
        return asked[-1]

    engine = AskingEngine(FEDERATION.problem(), with_options(ALGORITHMS["fedavg_gda"]), ROUNDS, twice)
    list(played(engine, 2))
    for first, again in ((asked[0], asked[1]), (asked[2], asked[3])):
        for name in NAMES:
            assert first[name].arrays.keys() == again[name].arrays.keys()
            assert all(np.array_equal(array, again[name].arrays[key]) for key, array in first[name].arrays.items())


def test_what_a_client_refuses_is_told_as_it_was_said(ask: Ask) -> None:
    answers = ask("refuse", dict.fromkeys(NAMES, NOTHING))
    assert {name: answer.about for name, answer in answers.items()} == {
        name: {PROBLEM: f"{name} does not want to"} for name in NAMES
    }


@in_the_simulator
def test_a_bug_in_a_client_is_told_with_its_log(ask: Ask) -> None:
    said = str(ask("fail", {NAMES[0]: NOTHING})[NAMES[0]].about[PROBLEM])
    assert said.startswith("the client 'client-0' of NVFlare failed: EXECUTION_EXCEPTION; ")
    log = said.rpartition("; ")[2].removesuffix(" says why")
    assert "a bug" in Path(log).read_text()


@in_the_simulator
def test_nvflare_listens_on_loopback_alone(ask: Ask, own: Path) -> None:
    listening = _listening(own)
    assert listening
    assert listening <= {"127.0.0.1", "::1"}


def assert_same_validators(found: Path, expected: Path) -> None:
    """What the clients measured on their own rows in the last round is what one process measures."""
    ours, other = (json.loads((folder / "rounds.jsonl").read_text().splitlines()[-1]) for folder in (found, expected))
    for column in ("target_information", "target_entropy", "target_bnm", "target_snd", "domain_accuracy"):
        assert ours[column] == pytest.approx(other[column], rel=1e-9), column


# A whole run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["fedmm", "fedgda_gt"])
def test_a_run_whose_client_was_lost_goes_on_with_the_same_bits(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As below, without a process: a client is lost after round 3, and the server has forgotten that round.

    With fedgda_gt round 3 is the first of a pair: the client has answered it, and then dies.
    """

    @contextlib.contextmanager
    def losing(*given: Any, **more: Any) -> Iterator[Ask]:
        with federation_here(*given, **more) as ask:

            def until_lost(kind: str, questions: Mapping[str, Packed]) -> Mapping[str, Packed]:
                if kind == "train" and lost:
                    raise FedmmError("the process of the client 'target-1' ended before the run did")
                return ask(kind, questions)

            yield until_lost

    lost: list[Any] = []
    monkeypatch.setattr("fedmm.remote.nvflare.federation", losing)
    with pytest.raises(FedmmError, match="ended before the run did"):
        run_experiment(
            working_by(algorithm, ON_NVFLARE),
            tmp_path / "killed",
            progress=False,
            on_round=lambda row: lost.extend([row][: row["round"] == 3]),
        )
    lost.clear()
    assert_goes_on_with_the_same_bits(tmp_path, algorithm)


def working_by(algorithm: str, like: Experiment) -> Experiment:
    return replace(like, algorithm=replace(with_options(ALGORITHMS[algorithm]), lr_min=0.05, lr_max=0.05))


@pytest.mark.processes
def test_a_run_whose_client_was_killed_goes_on_with_the_same_bits(own: Path, tmp_path: Path) -> None:
    """After the kill the server forgets its last round too, so that the clients' states are a round ahead of it."""

    def kill(row: Mapping[str, Any]) -> None:
        if row["round"] == 3:
            clients = [each for each in _processes(own) if "--client" in each.cmdline()]
            victim = next(each for each in clients if "target-1" in each.cmdline())
            os.kill(victim.pid, signal.SIGKILL)

    sentence = r"^the process of the client 'target-1' ended before the run did; (.*) may say why, and the run can be"
    with pytest.raises(FedmmError, match=sentence) as caught:
        run_experiment(working_by("fedmm", ON_NVFLARE), tmp_path / "killed", progress=False, on_round=kill)
    log = Path(re.match(sentence, str(caught.value))[1])  # type: ignore[index]
    assert log.exists()
    shutil.rmtree(log.parent)
    assert_goes_on_with_the_same_bits(tmp_path)


def assert_goes_on_with_the_same_bits(folder: Path, algorithm: str = "fedmm") -> None:
    max((folder / "killed" / "checkpoints").glob("*.safetensors")).unlink()
    summary = run_experiment(working_by(algorithm, ON_NVFLARE), folder / "killed", resume=True, progress=False)
    run_experiment(working_by(algorithm, experiment(MOONS)), folder / "whole", progress=False)
    assert (summary["engine"]["name"], summary["rounds"]) == ("nvflare", 6)
    models = [(folder / name / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert models[0] == models[1]
    assert_same_validators(folder / "killed", folder / "whole")


@pytest.mark.processes
@pytest.mark.parametrize("place", ["simulator", "poc"])
def test_nothing_goes_on_when_the_driver_was_killed(place: str, own: Path, states: Path) -> None:
    code = (
        "import os, signal, sys\nfrom fedmm.remote.nvflare import federation\n"
        "with federation(['client-0'], 'nvflare_sites:site', {'states': sys.argv[2]}, place=sys.argv[1]):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    left = Path(tempfile.mkdtemp(prefix="d"))
    try:
        ended = subprocess.run(
            [sys.executable, "-c", code, place, str(states)],
            env={**os.environ, "TMPDIR": str(left), "FEDMM_ALLOW_IMPORT": "nvflare_sites"},
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL
        deadline = time.monotonic() + 600
        while _processes(left):
            assert time.monotonic() < deadline
            time.sleep(0.5)
    finally:
        shutil.rmtree(left, ignore_errors=True)


@pytest.mark.processes
def test_a_proof_of_concept_has_the_same_bits_and_listens_on_loopback(own: Path, tmp_path: Path) -> None:
    listening: set[str] = set()

    def look(row: Mapping[str, Any]) -> None:
        listening.update(_listening(own))

    before = set(own.iterdir())
    deployed = experiment({**MOONS, "run": {**MOONS["run"], "engine": "nvflare_poc"}})
    summary = run_experiment(deployed, tmp_path / "poc", progress=False, on_round=look)
    run_experiment(experiment(MOONS), tmp_path / "whole", progress=False)
    assert summary["engine"]["name"] == "nvflare_poc"
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("poc", "whole")]
    assert models[0] == models[1]
    assert_same_validators(tmp_path / "poc", tmp_path / "whole")
    assert listening
    assert listening <= {"127.0.0.1", "::1"}
    assert set(own.iterdir()) == before


@pytest.mark.parametrize("place", ["here", pytest.param("simulator", marks=pytest.mark.processes)])
def test_auc_for_the_worst_mixture_of_sites_has_the_same_bits(
    place: str, own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if place == "here":
        monkeypatch.setattr("fedmm.remote.nvflare.federation", federation_here)
    run_experiment(experiment(WORST_AUC), tmp_path / "whole", progress=False)
    on_nvflare = experiment({**WORST_AUC, "run": {**WORST_AUC["run"], "engine": "nvflare"}})
    run_experiment(on_nvflare, tmp_path / "nvflare", progress=False)
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("nvflare", "whole")]
    assert models[0] == models[1]


# What is refused ------------------------------------------------------------------------------------------------------


def test_nvflare_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(FedmmError, match=r"pip install 'fedmm\[nvflare\]'"), federation(["a"], "x:y", {}):
        pass


@pytest.mark.parametrize("site", ["os:system", "fedmm.remote.nvflare.job:os.system", "nvflare_sites:site"])
def test_a_job_names_no_other_code_than_ours_unless_it_is_allowed(site: str, tmp_path: Path) -> None:
    marker = tmp_path / "it-ran"
    executor = SiteExecutor(site, {"command": f"touch {marker}"})
    answer = to_packed(executor.execute("train", Shareable(), FLContext(), Signal()))
    words = str(answer.about[PROBLEM])
    assert "is not allowed" in words or "must have the form" in words
    assert not marker.exists()


def test_clients_have_the_configuration_of_who_started_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDMM_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    environment = job.Place(tmp_path / "nvflare")._environment()
    assert environment["HOME"] == str(tmp_path / "nvflare")
    assert environment["FEDMM_CONFIG"] == str(tmp_path / "fedmm")


def test_a_command_of_nvflare_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "_COMMAND_SECONDS", 0.05)
    with pytest.raises(
        FedmmError, match=r"^`nvflare poc --help` did not finish within 0\.05 seconds; .*nvflare\.log may say"
    ):
        job.Place(tmp_path)._nvflare("poc", "--help")


@pytest.mark.parametrize("name", ["a b", "a,b", "", "-a", "a/b"])
def test_names_that_nvflare_does_not_take_are_refused(name: str) -> None:
    with pytest.raises(FedmmError, match="letters, digits, dots and dashes"), federation([name], "x:y", {}):
        pass


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"guard": {"policy": "rollback"}}, "goes back further than clients of the engine 'nvflare' keep states"),
        ({"run": {"actors": 2}}, "run.actors is for the engine 'ray', and run.engine is 'nvflare'"),
    ],
)
def test_what_it_cannot_do_is_refused(section: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    run = {**MOONS["run"], "engine": "nvflare", **section.pop("run", {})}
    with pytest.raises(FedmmError, match=sentence):
        run_experiment(experiment({**MOONS, **section, "run": run}), tmp_path / "run", progress=False)


# Messages -------------------------------------------------------------------------------------------------------------


def test_messages_are_the_same_after_the_journey() -> None:
    arrays = {"min.omega": np.arange(3, dtype=np.float32), "statistics/count": np.array(7)}
    packed = Packed(arrays, {"round": 3, "lost": False, "client": "a"}, {"loss": 0.5})
    back = to_packed(to_shareable(packed))
    assert (back.about, back.metrics) == (packed.about, packed.metrics)
    assert all(np.array_equal(back.arrays[name], array) for name, array in arrays.items())
    assert to_packed(to_shareable(NOTHING)) == NOTHING


def test_what_is_no_message_is_refused() -> None:
    with pytest.raises(Malformed, match="did not send a data exchange object"):
        to_packed(Shareable())
    for arrays, about, sentence in (
        ({"z": [1.0]}, {}, "its 'z' is not an array"),
        ({}, 3, "what its message is about"),
    ):
        with pytest.raises(Malformed, match=sentence):
            to_packed(to_shareable(Packed(arrays, about, {})))  # type: ignore[arg-type]
