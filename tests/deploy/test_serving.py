"""The server and sites of a deployment, with their files and states, without Flower's processes between them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.grids import SitesGrid
from flwr.app import Array, ArrayRecord, Message

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.deploy import server as serving
from fedmm.deploy.layout import Federation, RunRequest
from fedmm.deploy.local import local_sites, same_result
from fedmm.deploy.run_state import run_lock
from fedmm.deploy.server import keep_every_round, serve
from fedmm.remote.durable_store import DurableMemory, state_folder
from fedmm.remote.flower.engine import Patience
from fedmm.remote.packed import INTRODUCE, MEASURE, TRAIN, Packed
from fedmm.sites.config import read_site
from fedmm.sites.credentials.keys import make_node_key
from fedmm.sites.experiments import deployed_experiment, experiment_text
from fedmm.sites.work import SiteWork
from fedmm.training.checkpoints import Checkpoints

PLAN = '{"alpha": 1.0, "input_mean": 0.0, "clients": [], "listed": [], "algorithm": {"name": "fedmm"}}'
TABLES: dict[str, Any] = {
    "run": {"rounds": 4, "batch_size": 16, "threads": 1},
    "data": {"name": "digits", "test_rows": 1500},
    "model": {"name": "mlp", "hidden": [12], "adversary_hidden": [8]},
    "algorithm": {"name": "fedmm", "local_steps": 2},
}


def small(**sections: dict[str, Any]) -> Experiment:
    tables = {name: {**TABLES.get(name, {}), **sections.get(name, {})} for name in {**TABLES, **sections}}
    return keep_every_round(deployed_experiment(tables))


def site_files(folder: Path, each: Experiment, **policy: Any) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for site in local_sites(each):
        data = "\n".join(f"{key} = {json.dumps(value)}" for key, value in site.data.items())
        lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in policy.items())
        text = (
            f'[site]\nname = "{site.name}"\nstate = "state/{site.name}"\n'
            f'[data]\n{data}\n[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n[policy]\n{lines}\n'
        )
        path = folder / f"{site.name}.toml"
        path.write_text(text)
        files.append(path)
    return files


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that cannot answer are asked again at once."""
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


def served(federation: Path, each: Experiment, **more: Any) -> RunRequest:
    return RunRequest(federation, "one", experiment_text(each), **{"patience": 20.0, "enrol_seconds": 5.0, **more})


def test_a_site_imports_nothing_that_the_servers_experiment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "server_net.py").write_text(f"open({str(tmp_path / 'it-ran')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    work = SiteWork(read_site(site_files(tmp_path / "sites", small())[0]))
    for backbone, options in (("os:system", {"command": "touch it-ran"}), ("server_net:tower", {})):
        tables = {**TABLES, "model": {"name": "backbone", "backbone": backbone, "options": options}}
        text = experiment_text(deployed_experiment(tables))
        for kind, plan in ((INTRODUCE, "{}"), (TRAIN, PLAN), (MEASURE, PLAN)):
            with pytest.raises(FedmmError, match=f"backbone '{backbone}' would import .* is not allowed"):
                work(kind, Packed({}, {"run": "one", "experiment": text, "plan": plan}, {}))
    assert not (tmp_path / "it-ran").exists()


def grid_of(tmp_path: Path, each: Experiment, **policy: Any) -> SitesGrid:
    return SitesGrid(site_files(tmp_path / "sites", each, **policy))


def log(tmp_path: Path) -> str:
    return (tmp_path / "runs" / "one" / "server.log").read_text()


class Crash(BaseException):
    pass


@contextmanager
def crashing(in_round: int, *, after_the_checkpoint: bool = True) -> Iterator[None]:
    """A server dies in a round, before or after its checkpoint is written."""
    keep = Checkpoints.after_round

    def crash(checkpoints: Checkpoints, state: Any, history: Any) -> None:
        if after_the_checkpoint or state.round != in_round:
            keep(checkpoints, state, history)
        if state.round == in_round:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "after_round", crash)
        with pytest.raises(Crash):
            yield


@pytest.mark.parametrize("name", ["fedmm", "fedmm_restrained", "fedmm_smoothed", "scaffold_gda", "fedavg_gda"])
def test_the_sites_result_is_that_of_one_process_to_the_bit(tmp_path: Path, name: str) -> None:
    each = small(algorithm={"name": name})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)
    summary = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    expected = json.loads((tmp_path / "reference" / "summary.json").read_text())
    assert summary["engine"] == {"name": "flower"}
    assert summary["clients"] == {"source-1": {"holds": "source"}, "target-1": {"holds": "target"}}
    for key in ("bytes_up", "bytes_down", "target_accuracy", "parameters"):
        assert summary[key] == expected[key], key


def test_a_mean_over_all_sites_inputs_comes_of_their_sums(tmp_path: Path) -> None:
    weights = {"client_weights": {"client-1": 3.0}}
    each = small(model={"centre": "train_mean"}, partition={"name": "p_split", "p": 0.3}, run=weights)
    serve(grid_of(tmp_path, each, min_batch_size=2), served(tmp_path, each))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)


@pytest.mark.parametrize(
    "objective",
    [{"name": "auc"}, {"name": "auc", "positive_share": 0.3}, {"name": "source_only", "class_weights": "balanced"}],
    ids=["auc", "auc, given", "balanced"],
)
def test_the_share_of_each_class_comes_of_the_sites_counts(tmp_path: Path, objective: dict[str, Any]) -> None:
    weights = {"client_weights": {"source-1": 3.0}}
    data, partition = {"name": "moons", "rows": 80, "test_rows": 40}, {"name": "disjoint_classes", "source_clients": 2}
    tables = {**TABLES, "data": data, "partition": partition, "objective": objective}
    each = keep_every_round(deployed_experiment({**tables, "run": {**TABLES["run"], **weights}}))
    grid = grid_of(tmp_path, each)
    with crashing(2):
        serve(grid, served(tmp_path, each))
    serve(grid, served(tmp_path, each, resume=True))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)
    sites = json.loads((tmp_path / "runs" / "one" / "sites.json").read_text())
    counts = [[], [], []] if "positive_share" in objective else [[40, 0], [0, 40], []]
    assert [sites[name]["class_counts"] for name in ("source-1", "source-2", "target-1")] == counts


@pytest.mark.parametrize("crash_in", [0, 2])
def test_with_noise_the_norm_of_the_duals_comes_of_what_the_server_has(tmp_path: Path, crash_in: int) -> None:
    """After a resume too, where the server has forgotten all but its checkpoint."""
    noise = {"name": "gaussian", "norm_min": 0.1, "norm_max": 0.1, "noise_min": 2.0, "noise_max": 2.0}
    each = small(transmission=noise, model={"centre": "none"})
    grid = grid_of(tmp_path, each)
    if crash_in:
        with crashing(crash_in):
            serve(grid, served(tmp_path, each))
    serve(grid, served(tmp_path, each, resume=crash_in > 0))
    last = json.loads((tmp_path / "runs" / "one" / "rounds.jsonl").read_text().splitlines()[-1])
    duals = []
    for name in ("source-1", "target-1"):
        held = DurableMemory(state_folder(tmp_path / "sites" / "state" / name / "runs", "one", name)).held
        duals.append(float(held[max(held)].own["dual"].norm()))
    assert min(duals) > 0.0
    assert last["dual_norm"] == pytest.approx((sum(dual**2 for dual in duals) / 2) ** 0.5, rel=1e-5)


def test_nodes_that_die_and_come_back_change_nothing(tmp_path: Path) -> None:
    each = small()
    grid = grid_of(tmp_path, each)
    grid.dead = {"source-1": 7, "target-1": 2}
    serve(grid, served(tmp_path, each))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)
    assert "source-1: it did not answer: Node Unavailable; it is asked again" in log(tmp_path)
    assert not (tmp_path / "runs" / "one" / "refused.jsonl").exists()


@pytest.mark.parametrize("after_the_checkpoint", [False, True])
def test_a_server_that_dies_in_any_round_goes_on_to_the_same_bits(tmp_path: Path, after_the_checkpoint: bool) -> None:
    each = small()
    grid = grid_of(tmp_path, each)
    for round_ in (1, 2, 3):
        with crashing(round_, after_the_checkpoint=after_the_checkpoint):
            serve(grid, served(tmp_path, each, resume=True))
    serve(grid, served(tmp_path, each, resume=True))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)
    assert f"continuing after round {3 if after_the_checkpoint else 2}" in log(tmp_path)


def test_a_site_whose_states_are_lost_gets_them_back(tmp_path: Path) -> None:
    each = small(run={"rounds": 5})
    grid = grid_of(tmp_path, each)
    states = tmp_path / "sites" / "state" / "source-1" / "runs" / "one" / "source-1"

    def lose(name: str, reply: Message) -> Message:
        if name == "source-1" and list(states.glob("round-00000002*")):
            for path in states.glob("*.safetensors"):
                path.unlink()
            grid.on_reply = lambda name, reply: reply
        return reply

    grid.on_reply = lose
    serve(grid, served(tmp_path, each))
    assert "round 3: source-1 was not counted: it has lost its state after round 2" in log(tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "one" / "rounds.jsonl").read_text().splitlines()]
    assert [row["clients"] for row in rows] == [2, 2, 1, 2, 2]


def test_what_a_site_sends_that_is_no_update_is_refused_and_the_round_goes_on(tmp_path: Path) -> None:
    each = small(run={"rounds": 5})
    grid = grid_of(tmp_path, each)
    rounds = iter(range(100))

    def spoil(name: str, reply: Message) -> Message:
        if name != "target-1" or reply.metadata.message_type != "train":
            return reply
        arrays = reply.content["arrays"]
        what = next(rounds)
        if what == 0:
            arrays["min.omega"] = Array(np.zeros(3, np.float32))
        elif what == 1:
            arrays["more"] = Array(np.zeros(4_000_000))
        elif what == 2:
            reply.content["again"] = ArrayRecord({})
        elif what == 3:
            reply.content["config"]["client"] = "source-1"
        else:
            arrays["max.psi"] = Array("float32", (3,), "numpy.ndarray", b"no array at all")
        return reply

    grid.on_reply = spoil
    serve(grid, served(tmp_path, each))
    refused = [json.loads(line) for line in (tmp_path / "runs" / "one" / "refused.jsonl").read_text().splitlines()]
    assert [(each["client"], each["round"]) for each in refused] == [("target-1", t) for t in range(1, 6)]
    for reason, words in zip(
        (each["reason"] for each in refused),
        ["of shape (3,)", "bytes of arrays, but at most", "2 records of kind ArrayRecord",
         "it answers in the name of 'source-1'", "an array that cannot be read"],
        strict=True,
    ):  # fmt: skip
        assert words in reason


def test_a_site_that_cannot_write_its_state_says_so_and_is_left_out(tmp_path: Path) -> None:
    each = small(run={"rounds": 2})
    grid = grid_of(tmp_path, each)
    blocked = (
        tmp_path / "sites" / "state" / "source-1" / "runs" / "one" / "source-1" / "round-00000001.safetensors.partial"
    )
    blocked.mkdir(parents=True)
    serve(grid, served(tmp_path, each))
    refused = [json.loads(line) for line in (tmp_path / "runs" / "one" / "refused.jsonl").read_text().splitlines()]
    assert refused[0]["client"] == "source-1"
    assert "the client's state after round 1 cannot be written to" in refused[0]["reason"]


def test_a_stranger_and_a_site_with_anothers_key_are_turned_away(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    make_node_key(tmp_path / "keys" / "source-1")
    grid = grid_of(tmp_path, each)
    with pytest.raises(FedmmError, match=r"source-1, target-1 did not come within 0\.3 seconds; the run needs them"):
        serve(grid, served(tmp_path, each, enrol_seconds=0.3))
    assert "it calls itself 'source-1', but does not hold that site's key" in log(tmp_path)
    stranger = tmp_path / "sites" / "stranger.toml"
    stranger.write_text((tmp_path / "sites" / "source-1.toml").read_text().replace('name = "source-1"', 'name = "x"'))
    grid.files[1] = stranger
    (tmp_path / "keys" / "source-1.pub").unlink()
    serve(grid, served(tmp_path, each))
    assert "node 1 is turned away: the site 'x' refuses: site.name 'x' has no share" in log(tmp_path)


def test_a_site_that_hangs_is_left_out_and_the_run_goes_on(tmp_path: Path) -> None:
    each = small(run={"rounds": 2})
    grid = grid_of(tmp_path, each)
    grid.hanging = {"target-1"}
    serve(grid, served(tmp_path, each, patience=0.5))
    refused = [json.loads(line) for line in (tmp_path / "runs" / "one" / "refused.jsonl").read_text().splitlines()]
    assert [(each["client"], each["reason"]) for each in refused] == [
        ("target-1", "it did not answer within 0.5 seconds")
    ] * 2


def test_another_experiment_is_not_gone_on_with(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    other = small(run={"rounds": 2})
    with pytest.raises(FedmmError, match=r"started with another configuration.*run\.rounds was 1, now 2"):
        serve(grid_of(tmp_path, other), served(tmp_path, other, resume=True))


def test_a_run_of_an_old_name_begins_anew_at_the_sites(tmp_path: Path) -> None:
    each = small(algorithm={"name": "fedmm_smoothed"}, run={"participation": 0.5})
    grid = grid_of(tmp_path, each)
    for _ in range(2):
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)
        serve(grid, served(tmp_path, each))
    assert same_result(each, tmp_path / "runs" / "one", tmp_path / "reference", print)


def test_one_server_at_a_time(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    (tmp_path / "runs" / "one").mkdir(parents=True)
    with run_lock(tmp_path / "runs" / "one"), pytest.raises(FedmmError, match="another server is already running"):
        serve(grid_of(tmp_path, each), served(tmp_path, each))


def test_sites_with_rows_of_their_own_and_a_server_without_any(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    rows = {
        "north": {"source_x": random.random((40, 6), np.float32), "source_y": np.arange(40) % 3},
        "south": {"target_x": random.random((30, 6), np.float32)},
    }
    (tmp_path / "sites").mkdir()
    files = []
    for name, arrays in rows.items():
        np.savez(tmp_path / "sites" / f"{name}.npz", **arrays)
        file = tmp_path / "sites" / f"{name}.toml"
        file.write_text(
            f'[site]\nname = "{name}"\nstate = "state/{name}"\n'
            f'[data]\nkind = "npz"\npath = "{name}.npz"\ndomain = "{"source" if name == "north" else "target"}"\n'
            '[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n'
        )
        files.append(file)
    each = keep_every_round(
        deployed_experiment(
            {
                **{section: TABLES[section] for section in ("run", "model", "algorithm")},
                "data": {"name": "sites", "sites": ["north", "south"], "classes": ["a", "b", "c"], "shape": [6]},
            }
        )
    )
    serve(SitesGrid(files), served(tmp_path, each))
    import fedmm

    clients = [
        fedmm.Client(source=(rows["north"]["source_x"], rows["north"]["source_y"]), name="north"),
        fedmm.Client(target=rows["south"]["target_x"], name="south"),
    ]
    torch.set_num_threads(1)
    network = each.model.build((6,), 3, 0)
    adapted = fedmm.adapt(clients, network, each.objective, each.algorithm, 4, batch_size=16, progress=False)
    deployed = fedmm.load_model(tmp_path / "runs" / "one" / "model.safetensors", network)
    x = torch.from_numpy(rows["south"]["target_x"])
    assert torch.equal(torch.as_tensor(deployed.predict_proba(x)), torch.as_tensor(adapted.predict_proba(x)))


def test_the_federation_folder_names_runs_safely(tmp_path: Path) -> None:
    for name in ("", "..", "a/b", 'a"b'):
        with pytest.raises(FedmmError, match="becomes a folder's"):
            Federation(tmp_path).run(name)
