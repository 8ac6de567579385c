"""Sites of a deployment that mask their updates: their own code, files and ledgers, without Flower's processes."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deploy.grids import UNAVAILABLE, SitesGrid
from deploy.running import begin, pid_of, rounds_in, server_log, text, until
from deploy.test_serving import crashing, log, served, small
from flwr.app import Error, Message

from fedmm import FedmmError
from fedmm.config.schema import Experiment
from fedmm.deploy import server as serving
from fedmm.deploy.federation import up
from fedmm.deploy.layout import Federation
from fedmm.deploy.local import RUN, local_sites
from fedmm.deploy.runs import follow
from fedmm.deploy.server import serve
from fedmm.remote.flower.engine import Patience
from fedmm.remote.flower.envelope import read
from fedmm.remote.packed import CONFIRM, INTRODUCE, MESSAGE_TYPES, OPEN, TRAIN, Packed
from fedmm.runs.run import run_experiment
from fedmm.sites.config import MasksSection, read_site
from fedmm.sites.credentials.keys import make_node_key
from fedmm.sites.experiments import experiment_text
from fedmm.sites.work import SiteWork
from fedmm.training.checkpoints import checkpoints_of, newest_common


def masked(name: str = "fedmm", **run: Any) -> Experiment:
    return small(
        run={"secure_sum": True, "probe_rows": 0, **run},
        partition={"name": "source_target", "source_clients": 2, "target_clients": 2},
        algorithm={"name": name},
    )


def site_files(folder: Path, each: Experiment, *, least: int = 3) -> list[Path]:
    """A file, a key, and a folder with the others' keys for every site."""
    names = [site.name for site in local_sites(each)]
    for name in names:
        make_node_key(folder / "keys" / name)
    files = []
    for site in local_sites(each):
        peers = folder / "peers" / site.name
        peers.mkdir(parents=True)
        for other in names:
            if other != site.name:
                (peers / f"{other}.pub").write_bytes((folder / "keys" / f"{other}.pub").read_bytes())
        data = "\n".join(f"{key} = {json.dumps(value)}" for key, value in site.data.items())
        path = folder / f"{site.name}.toml"
        path.write_text(
            f'[site]\nname = "{site.name}"\nstate = "state/{site.name}"\n[data]\n{data}\n'
            f'[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\nkey = "keys/{site.name}"\n'
            f'[masks]\npeers = "peers/{site.name}"\nleast = {least}\n'
        )
        files.append(path)
    return files


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites that cannot answer are asked again at once."""
    monkeypatch.setattr(serving, "Patience", lambda seconds: Patience(seconds, retry_after=0.0, pause=0.0))


def last_point(each: Experiment, folder: Path) -> torch.Tensor:
    ((state, _),) = newest_common([checkpoints_of(each.run, folder)], torch.device("cpu"), print)
    return state.z


def reference(each: Experiment, folder: Path) -> torch.Tensor:
    run_experiment(each, folder, progress=False)
    return last_point(each, folder)


@pytest.mark.parametrize("name", ["fedmm_smoothed", "scaffold_gda", "fedavg_gda"])
def test_a_masked_deployment_computes_what_one_process_does(tmp_path: Path, name: str) -> None:
    each = masked(name)
    grid = SitesGrid(site_files(tmp_path / "sites", each))
    seen: list[np.ndarray[Any, Any]] = []

    def look(site: str, reply: Message) -> Message:
        arrays = read(reply.content).arrays
        seen.extend(arrays.values())
        return reply

    grid.on_reply = look
    serve(grid, served(tmp_path, each))
    expected = reference(each, tmp_path / "reference")
    assert torch.allclose(last_point(each, tmp_path / "runs" / "one"), expected, rtol=0, atol=1e-6)
    assert {array.dtype for array in seen} == {np.dtype(np.int64)}  # nothing else that comes of a point has left a site
    summary = json.loads((tmp_path / "runs" / "one" / "summary.json").read_text())
    assert summary["bytes_up"] == 2 * json.loads((tmp_path / "reference" / "summary.json").read_text())["bytes_up"]


def lose(grid: SitesGrid, kind: str, site: str, times: int, *, after_the_work: bool) -> list[str]:
    """A site's answers of a kind are lost so often, before or after it worked; what was asked and lost."""
    answered, lost = grid.answered, []

    def answers(message: Message) -> list[Message]:
        node = message.metadata.dst_node_id
        if (grid.files[node].stem, message.metadata.message_type) != (site, MESSAGE_TYPES[kind]) or len(lost) >= times:
            return answered(message)
        lost.append(kind)
        if after_the_work:
            answered(message)
        return [Message(Error(UNAVAILABLE, "Node Unavailable"), reply_to=message)]

    grid.answered = answers  # type: ignore[method-assign]
    return lost


@pytest.mark.parametrize("after_the_work", [False, True])
@pytest.mark.parametrize("kind", [TRAIN, CONFIRM, OPEN])
def test_a_site_that_is_asked_again_answers_the_same(tmp_path: Path, kind: str, after_the_work: bool) -> None:
    each = masked(rounds=2)
    grid = SitesGrid(site_files(tmp_path / "sites", each))
    lost = lose(grid, kind, "target-2", 1, after_the_work=after_the_work)
    serve(grid, served(tmp_path, each))
    assert lost == [kind]
    expected = reference(each, tmp_path / "reference")
    assert torch.allclose(last_point(each, tmp_path / "runs" / "one"), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", [CONFIRM, OPEN])
def test_a_round_whose_sum_is_not_opened_counts_nobody_and_the_run_goes_on(tmp_path: Path, kind: str) -> None:
    each = masked(rounds=2)
    grid = SitesGrid(site_files(tmp_path / "sites", each))
    answered = grid.answered

    def answers(message: Message) -> list[Message]:
        out = grid.files[message.metadata.dst_node_id].stem == "source-2" and message.metadata.group_id == "0"
        if out and message.metadata.message_type == MESSAGE_TYPES[kind]:
            return []
        return answered(message)

    grid.answered = answers  # type: ignore[method-assign]
    serve(grid, served(tmp_path, each, patience=2.0))
    assert "source-2 does not help to open the sum: it did not answer within 2 seconds" in log(tmp_path)
    assert (
        "round 1: target-1 was not counted: the round's sum was not opened: 'source-2' did not help open the sum"
        in log(tmp_path)
    )
    assert "round 2: " in log(tmp_path)
    assert "4 counted" in log(tmp_path)


def test_a_site_that_is_away_is_left_out_of_the_sum(tmp_path: Path) -> None:
    each = masked(rounds=3)
    grid = SitesGrid(site_files(tmp_path / "sites", each))
    grid.hanging = {"target-1"}
    serve(grid, served(tmp_path, each, patience=2.0))
    assert "3 counted" in log(tmp_path)
    assert "target-1 was not counted: it did not answer" in log(tmp_path)


def test_fewer_sites_than_they_ask_for_have_no_sum(tmp_path: Path) -> None:
    each = masked(rounds=1)
    grid = SitesGrid(site_files(tmp_path / "sites", each, least=4))
    grid.hanging = {"target-1"}
    serve(grid, served(tmp_path, each, patience=2.0))
    assert "it helps to open sums of at least 4 updates, but this one has 3" in log(tmp_path)
    assert "0 counted" in log(tmp_path)


def test_a_server_that_was_restarted_gets_no_second_sum_of_a_round_that_differs(tmp_path: Path) -> None:
    """Its first sum has all sites, its second would have one fewer: their difference is that site's update."""
    each = masked(rounds=3)
    files = site_files(tmp_path / "sites", each)
    with crashing(2, after_the_checkpoint=False):
        serve(SitesGrid(files), served(tmp_path, each))
    grid = SitesGrid(files)
    answered = grid.answered

    def answers(message: Message) -> list[Message]:
        site, kind = grid.files[message.metadata.dst_node_id].stem, message.metadata.message_type
        away = site == "target-1" and kind == MESSAGE_TYPES[TRAIN] and message.metadata.group_id == "2"
        return [] if away else answered(message)

    grid.answered = answers  # type: ignore[method-assign]
    serve(grid, served(tmp_path, each, resume=True, patience=2.0))
    assert "a second one would reveal an update" in log(tmp_path)
    assert "round 2: source-1 was not counted: the round's sum was not opened" in log(tmp_path)
    assert "round 3: " in log(tmp_path).partition("not opened")[2]


def test_a_key_that_the_server_made_up_is_refused_by_every_site(tmp_path: Path) -> None:
    each = masked(rounds=1)
    files = site_files(tmp_path / "sites", each)
    make_node_key(tmp_path / "forged" / "target-1")
    grid = SitesGrid(files)
    honest, forged = files[2], tmp_path / "sites" / "forged" / "target-1.toml"
    assert honest.stem == "target-1"
    forged.parent.mkdir()
    text = honest.read_text().replace('key = "keys/target-1"', f'key = "{tmp_path / "forged" / "target-1"}"')
    forged.write_text(text.replace('peers = "peers/', 'peers = "../peers/').replace('"state/', '"../forged-state/'))
    grid.files = {node: forged if file == honest else file for node, file in grid.files.items()}
    serve(grid, served(tmp_path, each, patience=2.0))
    assert "the mask key of 'target-1' is not signed with the key that this site holds for 'target-1'" in log(tmp_path)
    assert "0 counted" in log(tmp_path)


def test_a_site_with_peers_sends_nothing_unmasked_and_one_without_cannot_mask(tmp_path: Path) -> None:
    each = masked()
    config = read_site(site_files(tmp_path / "sites", each)[0])
    plain = small(partition=each.tables()["partition"])
    with pytest.raises(FedmmError, match="only for masked sums"):
        SiteWork(config)(INTRODUCE, Packed({}, {"run": "one", "experiment": experiment_text(plain)}, {}))
    bare = replace(config, masks=MasksSection())
    with pytest.raises(FedmmError, match=r"needs superlink.key and masks.peers"):
        SiteWork(bare)(INTRODUCE, Packed({}, {"run": "one", "experiment": experiment_text(each)}, {}))


def test_an_experiment_that_needs_single_updates_is_refused_before_anybody_works(tmp_path: Path) -> None:
    each = masked(max_update_norm=5.0)
    with pytest.raises(FedmmError, match="max_update_norm needs each of them"):
        serve(SitesGrid(site_files(tmp_path / "sites", each)), served(tmp_path, each))


def test_masks_take_sums_of_at_least_two() -> None:
    with pytest.raises(FedmmError, match="must be at least 2, not 1"):
        MasksSection(least=1)


# Real processes -------------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_sites_in_processes_of_their_own_open_their_sums_and_one_that_dies_is_left_out(federation: Federation) -> None:
    each = masked(rounds=6)
    up(federation, local_sites(each), say=print)
    number = begin(federation, each, patience=15.0)
    until(lambda: rounds_in(federation) >= 2, 200, "no rounds")
    os.kill(pid_of(federation, "site", "target-2.toml"), signal.SIGKILL)
    assert "completed" in follow(federation, RUN, number, print)
    said = server_log(federation)
    assert "4 counted" in said
    assert "3 counted" in said
    assert "target-2 was not counted" in said
    uploads = [line for line in text(federation.logs / "source-1.log").splitlines() if "train: leaves" in line]
    assert uploads
    assert all("float" not in line for line in uploads)
