"""The Ray engine computes what the reference does, whatever happens to its actors, in Ray's processes or in ours."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ray", reason="the engine 'ray' needs fedmm[ray]")

from local_ray import Handle, local_cluster
from problems import WORST_AUC, played, with_options
from ray_federation import Federation

from fedmm import ALGORITHMS, FedmmError, Terms
from fedmm.config.schema import Experiment, experiment
from fedmm.core.aggregation import AGGREGATIONS
from fedmm.core.algorithm import Algorithm
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.mechanisms import ClippedUpdate, GaussianUpdate
from fedmm.engines.in_process import InProcess
from fedmm.engines.messages import NEVER
from fedmm.engines.server import Server
from fedmm.engines.worker import Kept
from fedmm.remote.ray import Actors, Cluster, RayEngine, ray_cluster
from fedmm.remote.ray.actor import ActorSetup, Call, ClientActor, GivenState, Rules
from fedmm.remote.ray.cluster import require_listener
from fedmm.remote.ray.shared_memory import MemoryGone, SharedMemory, read, to_arrays, to_tensors
from fedmm.runs.run import run_experiment

pytestmark = [
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore:unclosed file <_io.* name='/dev/null':ResourceWarning"),  # Ray's, when it starts
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),  # it does not wait for them
]

CPU = torch.device("cpu")
MOONS: dict[str, Any] = {
    "data": {"name": "moons", "rows": 40, "test_rows": 20},
    "model": {"name": "mlp", "hidden": [8], "adversary_hidden": [4]},
    "partition": {"name": "source_target", "source_clients": 2, "target_clients": 2},
    "algorithm": {"name": "fedmm", "lr_min": 0.05, "lr_max": 0.05, "local_steps": 2},
    "run": {"rounds": 4, "batch_size": 8, "dtype": "float64"},
}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Where Ray keeps sockets and logs: their names must be short."""
    path = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module", params=["here", pytest.param("ray", marks=pytest.mark.processes)])
def cluster(request: pytest.FixtureRequest, folder: Path) -> Iterator[Cluster]:
    if request.param == "here":
        with local_cluster() as here:
            yield here
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parents[1]), prepend=os.pathsep)  # where ray_federation lies
        started, ray = _started(folder)
        yield ray
        started.__exit__(None, None, None)
    gc.collect()
    assert not _left_behind(folder)


def _started(folder: Path, tries: int = 10) -> tuple[AbstractContextManager[Cluster], Cluster]:
    """Ray gives itself 30 seconds to start, which on a busy machine are too few."""
    started = ray_cluster(cores=4, object_store_bytes=100 << 20, folder=folder)
    try:
        return started, started.__enter__()
    except FedmmError as problem:
        if tries == 0 or "timed out during startup" not in str(problem):
            raise
    return _started(folder, tries - 1)


@pytest.fixture(scope="module")
def actors(cluster: Cluster) -> Iterator[Actors]:
    """Two actors with two clients each, for tests in which nothing dies; whether statistics are shared, calls say."""
    made = Actors(cluster, Federation(share_statistics=False), Federation().names, number=2)
    yield made
    made.close()


def _processes(folder: Path) -> list[int]:
    """Processes of the Ray whose files lie in a folder."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and str(folder).encode() in (path / "cmdline").read_bytes():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _left_behind(folder: Path) -> list[int]:
    """What is still there after a while."""
    for _ in range(600):
        if not _processes(folder):
            return []
        time.sleep(0.1)
    return _processes(folder)


def _pids(actors: Actors) -> list[int]:
    import ray

    return ray.get([handle.__ray_call__.remote(lambda _: os.getpid()) for handle in actors.handles])


def _kill(actors: Actors) -> None:
    """All of them at once."""
    if isinstance(actors.handles[0], Handle):
        for handle in actors.handles:
            handle.dead = True
    else:
        for pid in _pids(actors):
            os.kill(pid, signal.SIGKILL)


Played = list[tuple[FederatedState, RoundRecord]]


def _reference(algorithm: Algorithm, rounds: int, terms: Terms | None = None) -> Played:
    return list(played(InProcess(Federation().problem(), algorithm, rounds, terms or Terms()), rounds))


def _tensors(state: FederatedState) -> dict[tuple[str, ...], torch.Tensor]:
    """Every tensor of a state by its place."""
    shared = {(part, name): each for part in ("server", "statistics") for name, each in getattr(state, part).items()}
    own = {
        (part, client, name): each
        for part in ("clients", "client_statistics", "totals")
        for client, named in getattr(state, part).items()
        for name, each in named.items()
    }
    return {**shared, **own}


def _assert_same(one: Played, other: Played) -> None:
    """States and records to the bit, but for the seconds."""
    for (state, record), (expected, expected_record) in zip(one, other, strict=True):
        assert (state.round, state.counted) == (expected.round, expected.counted)
        left, right = _tensors(state), _tensors(expected)
        assert left.keys() == right.keys()
        assert [place for place in left if not torch.equal(left[place], right[place])] == []
        assert replace(record, seconds=0.0) == replace(expected_record, seconds=0.0)


# The same results -----------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("cluster", ["ray"], indirect=True)
def test_actors_start_in_the_current_folder_and_look_for_no_modules_there(cluster: Cluster) -> None:
    def looked() -> tuple[Path, list[str]]:
        import sys
        from pathlib import Path

        return Path.cwd(), sys.path

    there, path = cluster.ray.get(cluster.ray.remote(looked).remote())
    assert there == Path.cwd()
    assert not {"", str(there)} & set(path)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_the_same_bits_as_in_process(name: str, actors: Actors) -> None:
    algorithm = with_options(ALGORITHMS[name])
    engine = RayEngine(Federation().problem(), algorithm, 4, actors)
    _assert_same(list(played(engine, 4)), _reference(algorithm, 4))


@pytest.mark.parametrize(
    "terms",
    [
        Terms(participation=0.5),
        Terms(restore=True, transmission=ClippedUpdate(0.05)),
        Terms(max_update_norm=0.2, on_bad_update="skip"),
        Terms(uploads="int8", broadcasts="fp16", participation=0.75),
        *(Terms(aggregation=kind()) for kind in AGGREGATIONS.values()),
    ],
    ids=lambda terms: f"{terms.aggregation.name}-{terms.participation}-{terms.transmission.name}-{terms.uploads}",
)
def test_all_terms_have_the_same_bits_as_in_process(terms: Terms, actors: Actors) -> None:
    algorithm = with_options(ALGORITHMS["fedmm"])
    engine = RayEngine(Federation().problem(), algorithm, 6, actors, terms)
    _assert_same(list(played(engine, 6)), _reference(algorithm, 6, terms))


@pytest.mark.parametrize("terms", [Terms(), Terms(transmission=GaussianUpdate(trust="server"))], ids=["exact", "noise"])
def test_statistics_that_clients_keep_stay_their_own(terms: Terms, actors: Actors) -> None:
    """Also if updates carry noise, which the clients of a round share: the same noise as in one process."""
    kind = ALGORITHMS["fedavg_gda" if terms.trusts_server else "fedmm"]
    federation, algorithm = Federation(share_statistics=False), with_options(kind)
    reference = list(played(InProcess(federation.problem(), algorithm, 4, terms), 4))
    _assert_same(list(played(RayEngine(federation.problem(), algorithm, 4, actors, terms), 4)), reference)


def test_a_state_from_anywhere_is_gone_on_from(actors: Actors) -> None:
    """From a reference's third round, and back again: the state that is given decides, not what actors remember."""
    algorithm = with_options(ALGORITHMS["fedmm"])
    reference = _reference(algorithm, 6)
    engine = RayEngine(Federation().problem(), algorithm, 6, actors)
    for _ in range(2):
        state = replace(reference[2][0], counted={})
        for expected, _ in reference[3:]:
            state, _ = engine.run_round(state)
            assert torch.equal(state.z, expected.z)
            assert all(torch.equal(state.clients[name]["dual"], own["dual"]) for name, own in expected.clients.items())


def test_one_state_is_handed_out_once(actors: Actors, monkeypatch: pytest.MonkeyPatch) -> None:
    """States travel to the actors at the start alone, also where a guard has added to the state."""
    handed_out = []
    monkeypatch.setattr(
        actors, "load", lambda states, load=actors.load: (handed_out.append(list(states)), load(states))
    )
    engine = RayEngine(Federation().problem(), with_options(ALGORITHMS["fedmm"]), 3, actors)
    state, _ = engine.run_round(engine.start())
    state, _ = engine.run_round(replace(state, fallback=(state,)))
    engine.run_round(state)
    assert [names for names in handed_out if names] == [Federation().names]


def test_states_outlive_the_processes_that_made_them_and_hold_no_others(cluster: Cluster) -> None:
    """They lie in memory that is shared with the actors, and what is held of it is freed with them."""
    algorithm = with_options(ALGORITHMS["fedmm"])
    made = Actors(cluster, Federation(), Federation().names, number=2)
    engine = RayEngine(Federation().problem(), algorithm, 6, made)
    state, held = engine.start(), []
    for _ in range(6):
        state, _ = engine.run_round(state)
        held.append(len(list(Path("/proc/self/fd").iterdir())))
    made.close()
    expected, _ = _reference(algorithm, 6)[-1]
    assert len(set(held[1:])) == 1
    state.clients["client-0"]["dual"] += 1.0
    assert torch.equal(state.clients["client-0"]["dual"], expected.clients["client-0"]["dual"] + 1.0)
    assert torch.equal(state.clients["client-1"]["dual"], expected.clients["client-1"]["dual"])


# Failures -------------------------------------------------------------------------------------------------------------

ROUNDS = 30


def test_an_actor_that_is_gone_before_its_answer_is_read_works_again(
    actors: Actors, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm, reads = with_options(ALGORITHMS["fedmm"]), []

    def read_the_second_time(posted: Any) -> Any:
        reads.append(posted)
        if len(reads) == 4:
            raise MemoryGone(posted.place)
        return read(posted)

    monkeypatch.setattr("fedmm.remote.ray.actors.read", read_the_second_time)
    engine = RayEngine(Federation().problem(), algorithm, 3, actors)
    _assert_same(list(played(engine, 3)), _reference(algorithm, 3))
    assert len(reads) > 3 * 4


@pytest.mark.parametrize(
    ("durable", "local"),
    [(False, True), (True, True), (False, False)],
    ids=["in memory", "durable", "in memory, as on a cluster"],
)
@pytest.mark.parametrize("name", ["fedmm", "fedgda_gt"])
def test_processes_killed_in_mid_call_change_no_bit(
    name: str, durable: bool, local: bool, cluster: Cluster, tmp_path: Path
) -> None:
    """Client 2 dies after client 0 of the same actor has worked, so that one of its states is a round ahead on disk.

    It dies in round 7, which with fedgda_gt is the second of a pair whose first it has answered. Without anything on
    disk, every process is killed at once in round 20 as well.
    """
    algorithm, terms = with_options(ALGORITHMS[name]), Terms(participation=0.75)
    federation = Federation(deaths={"client-2": (7,)}, marks=tmp_path)
    where = replace(cluster, local=local)
    made = Actors(where, federation, federation.names, number=2, durable=(tmp_path, "run") if durable else None)
    engine = RayEngine(Federation().problem(), algorithm, ROUNDS, made, terms)
    handed_out, load = 0, made.load

    def counted_load(states: Any) -> None:
        nonlocal handed_out
        handed_out += bool(states)
        load(states)

    made.load = counted_load  # type: ignore[method-assign]
    states = []
    try:
        state = engine.start()
        for number in range(ROUNDS):
            if number == 20 and not durable:
                _kill(made)
            state, record = engine.run_round(state)
            states.append((state, record))
    finally:
        made.close()
    _assert_same(states, _reference(algorithm, ROUNDS, terms))
    assert [mark.name for mark in tmp_path.glob("client-*")] == ["client-2-7"]
    assert handed_out == 1 if durable else handed_out > 1


def test_a_repeated_call_is_not_counted_twice(tmp_path: Path) -> None:
    """An actor, without Ray: the same call gives the same answer, also from a process that comes back from its disk."""
    federation, algorithm = Federation(), with_options(ALGORITHMS["fedmm"])
    server = Server(federation.problem(), algorithm, 3, Terms())
    setup = ActorSetup(federation, federation.names, 1, (tmp_path, "run"))
    first = InProcess(federation.problem(), algorithm, 3).start()
    actor = ClientActor(setup)
    actor.load(
        {name: to_arrays(GivenState(NEVER, Kept(first.clients[name], first.statistics))) for name in federation.names}
    )
    call = Call(0, Rules(algorithm, 3, Terms()), to_arrays(server.invitations(first)))
    once = actor.work(call, federation.names)
    again = actor.work(call, federation.names)
    after_a_crash = ClientActor(setup).work(call, federation.names)
    for name in federation.names:
        answers = [to_tensors(each[name], CPU) for each in (once, again, after_a_crash)]
        for other in answers[1:]:
            assert torch.equal(other.update.vectors["z"], answers[0].update.vectors["z"])
            assert torch.equal(other.kept.own["dual"], answers[0].kept.own["dual"])


def test_a_client_without_its_state_does_not_begin_anew() -> None:
    """A dual of zero in place of the one that was lost would go unnoticed."""
    federation, algorithm = Federation(), with_options(ALGORITHMS["fedmm"])
    engine = InProcess(federation.problem(), algorithm, 3)
    call = Call(0, Rules(algorithm, 3, Terms()), to_arrays(engine.server.invitations(engine.start())))
    assert ClientActor(ActorSetup(federation, federation.names, 1)).work(call, federation.names) == {}


def test_what_cannot_go_on_is_said_in_one_sentence(cluster: Cluster) -> None:
    """What a client refuses is told as it was said there; so is a process that dies more often than calls are made."""
    federation = Federation(1, refusals={"client-0": (0,)}, deaths={"client-0": (1,)})
    made = Actors(cluster, federation, federation.names, retries=0)
    engine = RayEngine(federation.problem(), with_options(ALGORITHMS["fedmm"]), 2, made)
    with pytest.raises(FedmmError, match=r"^client-0 does not work in round 1$"):
        engine.run_round(engine.start())
    with pytest.raises(FedmmError, match=r"^an actor died 1 time in one call, so the run cannot continue: "):
        engine.run_round(replace(engine.start(), round=1))
    made.close()


# A whole run ----------------------------------------------------------------------------------------------------------


def _assert_goes_on_as_one_process(on_ray: Experiment, tables: dict[str, Any], folder: Path) -> None:
    summary = run_experiment(on_ray, folder / "killed", resume=True, progress=False)
    expected = run_experiment(experiment(tables), folder / "whole", progress=False)
    assert (summary["engine"]["name"], expected["engine"]["name"]) == ("ray", "in_process")
    models = [(folder / name / "model.safetensors").read_bytes() for name in ("killed", "whole")]
    assert models[0] == models[1]
    lines = [(folder / name / "rounds.jsonl").read_text().splitlines() for name in ("killed", "whole")]
    assert len(lines[0]) == len(lines[1]) == tables["run"]["rounds"]


def test_a_run_that_ended_midway_goes_on_with_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors are in this process, and their states on disk; the driver ends without a word to them."""
    monkeypatch.setattr("fedmm.remote.ray.ray_cluster", local_cluster)
    tables = {**MOONS, "run": {**MOONS["run"], "rounds": 6, "threads": 1, "checkpoint_every": 1}}
    on_ray = experiment({**tables, "run": {**tables["run"], "engine": "ray", "actors": 2, "durable": True}})

    class Ended(BaseException):
        pass

    def end(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            raise Ended

    with pytest.raises(Ended):
        run_experiment(on_ray, tmp_path / "killed", progress=False, on_round=end)
    _assert_goes_on_as_one_process(on_ray, tables, tmp_path)


@pytest.mark.processes
def test_a_driver_that_was_killed_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    tables = {**MOONS, "run": {**MOONS["run"], "rounds": 40, "threads": 1, "checkpoint_every": 1}}
    on_ray = experiment({**tables, "run": {**tables["run"], "engine": "ray", "actors": 2, "durable": True}})
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from fedmm.remote.ray import ray_cluster\n"
        "from fedmm.config.schema import experiment\nfrom fedmm.runs.run import run_experiment\n"
        f"with ray_cluster(cores=2, object_store_bytes=100 << 20, folder=Path(sys.argv[2])):\n"
        f"    run_experiment(experiment({on_ray.tables()!r}), Path(sys.argv[1]), progress=False)\n"
    )
    own = Path(tempfile.mkdtemp(prefix="fr", dir="/tmp"))
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "killed"), str(own)])
    try:
        rounds = tmp_path / "killed" / "rounds.jsonl"
        deadline = time.monotonic() + 600
        while not (rounds.exists() and len(rounds.read_text().splitlines()) >= 3):
            assert driver.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    finally:
        driver.kill()
        driver.wait()
        left_behind = _left_behind(own)
        shutil.rmtree(own, ignore_errors=True)
    assert not left_behind
    _assert_goes_on_as_one_process(on_ray, tables, tmp_path)


@pytest.mark.parametrize("place", ["here", pytest.param("ray", marks=pytest.mark.processes)])
def test_auc_for_the_worst_mixture_of_sites_has_the_same_bits(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_ray = experiment({**WORST_AUC, "run": {**WORST_AUC["run"], "engine": "ray", "actors": 2}})
    if place == "here":
        monkeypatch.setattr("fedmm.remote.ray.ray_cluster", local_cluster)
    _assert_goes_on_as_one_process(on_ray, WORST_AUC, tmp_path)


# Where it runs --------------------------------------------------------------------------------------------------------


@pytest.mark.processes
@pytest.mark.parametrize("cluster", ["ray"], indirect=True)
def test_ray_listens_on_loopback_alone(cluster: Cluster, actors: Actors, folder: Path) -> None:
    sockets = set()
    for pid in [*_processes(folder), *_pids(actors), os.getpid()]:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(str(descriptor.readlink()))
            except OSError:
                continue
    listening = []
    for family, table in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A" and f"socket:[{rest[5]}]" in sockets:
                words = bytes.fromhex(local.split(":")[0])
                address = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                listening.append(socket.inet_ntop(family, address))
    assert listening
    assert set(listening) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_more_actors_than_cores_are_refused(cluster: Cluster) -> None:
    with pytest.raises(FedmmError, match="9 actors need as many cores, and Ray has 4"):
        Actors(cluster, Federation(9), Federation(9).names, number=9)


def test_gpus_that_are_not_there_are_refused(cluster: Cluster) -> None:
    with pytest.raises(FedmmError, match="GPUs, and Ray has 0"):
        Actors(cluster, Federation(), Federation().names, gpus=True)


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    ray = pytest.importorskip("ray")
    with closing(socket.create_server(("127.0.0.1", 0))) as there:
        port = there.getsockname()[1]
        require_listener(ray, f"127.0.0.1:{port}")
    for address in (f"127.0.0.1:{port}", f"localhost:{port}", "127.0.0.1:99999", "no.such.host.invalid:6379"):
        with pytest.raises(FedmmError, match=f"Ray cannot be reached at {address}: nothing answers there"):
            require_listener(ray, address)
    for address in ("auto", "ray://127.0.0.1:1", "nonsense"):
        require_listener(ray, address)


def test_ray_that_is_not_installed_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(FedmmError, match=r"pip install 'fedmm\[ray\]'"), ray_cluster():
        pass


@pytest.mark.parametrize("option", [{"actors": 2}, {"ray_address": "auto"}, {"stacked": True}, {"durable": True}])
def test_options_of_ray_are_refused_for_other_engines(option: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(FedmmError, match=f"run.{next(iter(option))} is for the engine 'ray'"):
        run_experiment(experiment({**MOONS, "run": option}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_board_is_read_until_the_next_message_and_what_was_read_stays() -> None:
    shared, z = SharedMemory(), np.arange(5.0)
    first, other = shared.post({"z": z, "same": z, "no rows": np.zeros((0, 3))}, "a word")
    there = read(first)
    assert there["z"] is there["same"]
    assert there["no rows"].shape == (0, 3)
    assert read(other) == "a word"
    shared.post({"z": z + 1})
    with pytest.raises(MemoryGone):
        read(first)
    shared.close()
    there["z"] += 1.0  # of this reader alone
    np.testing.assert_array_equal(there["z"], z + 1.0)
    with pytest.raises(MemoryGone):
        read(other)


def test_messages_that_are_kept_hold_no_files_open() -> None:
    shared = SharedMemory()

    def posted_and_read(number: int) -> Any:
        [posted] = shared.post({"z": np.full(3, number)})
        return read(posted)

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    first = posted_and_read(0)
    before = open_files()
    kept = [first, *map(posted_and_read, range(1, 20))]
    assert open_files() == before
    assert [each["z"][2] for each in kept] == list(range(20))
    shared.close()


def test_messages_are_the_same_after_the_journey() -> None:
    z = torch.arange(3.0)
    message = {"a": GivenState(4, Kept({"z": z, "same": z}, {"count": torch.tensor(7)}))}
    there = to_arrays(message)
    assert there["a"].kept.own["z"] is there["a"].kept.own["same"]
    back = to_tensors(there, CPU)["a"]
    assert back.counted == 4
    assert torch.equal(back.kept.own["z"], z)
    assert back.kept.statistics["count"].shape == ()
    assert to_tensors(there, CPU, own=True)["a"].kept.own["z"].data_ptr() != z.data_ptr()
