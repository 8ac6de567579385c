"""Refusals: all are written down or counted, none fills the site's disk, and what is final is asked once a round."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deploy.asking import SITE, changed, entries, introduction, questions, site
from deploy.grids import SitesGrid
from deploy.test_serving import served, site_files, small
from sites.owner.test_audit import command
from sites.test_node import FLOWER_RUN, NODE, QUESTION, asked, config_in

from fedmm import FedmmError
from fedmm.deploy.server import serve
from fedmm.remote.flower.envelope import seal
from fedmm.remote.packed import FINAL, INTRODUCE, NAME, PROBLEM, TRAIN, Packed
from fedmm.sites.config import SiteConfig
from fedmm.sites.node import SiteNode
from fedmm.sites.owner import ledger as refusals
from fedmm.sites.owner.ledger import FURTHER, MOST_BYTES_A_DAY, Ledger, NotAllowed, RefusalCounts
from fedmm.sites.owner.review import approve_experiment
from fedmm.sites.work import SiteWork

DAY = 86400.0


def node_of(config: SiteConfig, said: list[str]) -> SiteNode:
    work = SiteWork(config, said.append)
    return SiteNode(config, work, said.append, threading.Lock(), work.note_refusal)


# Messages that are not the coordinator's ------------------------------------------------------------------------------


def test_a_message_without_the_coordinators_signature_is_in_the_audit_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = config_in(tmp_path), list[str]()
    answer = node_of(config, said).answer(asked(seal(QUESTION, "train", NODE, FLOWER_RUN)), NODE)
    (entry,) = entries(config)
    assert answer.about == {PROBLEM: "it is not signed by the federation's coordinator"}
    assert (entry["event"], entry["kind"], entry["sentence"]) == ("refusal", "train", answer.about[PROBLEM])
    code, out, _ = command(capsys, "audit", config.file)
    assert code == 0
    assert "refusal: train: it is not signed by the federation's coordinator\n" in out
    assert "refused at least 1" in out


def test_a_flood_of_them_takes_a_few_lines_and_the_chain_still_counts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, said = config_in(tmp_path), list[str]()
    node = node_of(config, said)
    forged = asked(seal(QUESTION, "train", NODE, FLOWER_RUN))
    for _ in range(1100):
        node.answer(forged, NODE)
    assert [entry["times"] for entry in entries(config)] == [*range(1, 11), 16, 32, 64, 128, 256, 512, 1024]
    node = node_of(config, said)  # another process of the site goes on from what is written
    for _ in range(1100):
        node.answer(forged, NODE)
    assert entries(config)[-1]["times"] == 2048
    code, out, _ = command(capsys, "audit", config.file)
    assert code == 0
    assert "(2048 times this day)" in out
    assert "refused at least 2048" in out


# A server that is hostile ---------------------------------------------------------------------------------------------


def test_refusals_that_all_differ_take_a_part_of_the_disk_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "MOST_BYTES_A_DAY", 100_000)
    config = site(tmp_path, small())
    work = SiteWork(config)
    for number in range(60):
        junk = Packed({}, {"run": f"run {number}", "experiment": f"{number} \N{PILE OF POO}" * 50_000}, {})
        with pytest.raises(NotAllowed):
            work(INTRODUCE, junk)
    assert config.audit.stat().st_size < 300_000
    assert max(len(entry["sentence"]) for entry in entries(config)) <= 500
    last = entries(config)[-1]
    assert (last["sentence"], "text" in last) == (FURTHER, False)

    answer = work(INTRODUCE, introduction(small()))
    assert answer.about["site"] == SITE
    assert [entry["event"] for entry in entries(config)][-4:] == ["policy", "experiment", "question", "answer"]


def test_experiments_that_are_not_allowed_are_no_way_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MOST_BYTES_A_DAY", 60_000)
    config = site(tmp_path, small(), require_approval=True)
    work = SiteWork(config)
    for seed in range(40):
        with pytest.raises(NotAllowed, match="waits for the approval"):
            work(INTRODUCE, introduction(small(run={"seed": seed})))
    assert config.audit.stat().st_size < 100_000
    assert 0 < len(entries(config, "experiment")) < 40


def test_questions_that_fail_after_they_were_admitted_are_no_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    each = small(run={"rounds": 1})
    honest = questions(tmp_path / "honest", each)
    monkeypatch.setattr(refusals, "MOST_BYTES_A_DAY", 30_000)
    config = site(tmp_path, each)
    work = SiteWork(config)
    for number in range(100):
        with pytest.raises(FedmmError, match="which round"):
            work(TRAIN, changed(honest[TRAIN], round=-1, session=number))
    assert config.audit.stat().st_size < 60_000
    assert work(TRAIN, honest[TRAIN]).arrays
    assert [entry["event"] for entry in entries(config)][-2:] == ["question", "answer"]


def test_many_arrays_with_long_names_are_cut_in_the_log(tmp_path: Path) -> None:
    config = site(tmp_path, small())
    arrays: Any = {f"{number} {'x' * 500}": np.zeros(1) for number in range(1500)}
    SiteWork(config)(INTRODUCE, introduction(small())._replace(arrays=arrays))
    (entry,) = entries(config, "question")
    assert entry["came"][-1] == {"name": "500 more", "shape": [], "dtype": "", "bytes": 4000}
    assert max(len(array["name"]) for array in entry["came"]) == 300


def test_every_day_begins_anew() -> None:
    now = [20_000 * DAY]
    counts = RefusalCounts(Ledger(), lambda: now[0])
    written = [counts.count("train", "no", MOST_BYTES_A_DAY // 19) for _ in range(40)]
    assert [each.times for each in written if each and each.sentence == "no"] == [*range(1, 11), 16]
    full = counts.exhausted
    now[0] += DAY
    assert (full, counts.exhausted) == (True, False)
    assert counts.count("train", "no", 0) == ("train", "no", 1, True)


# What is final --------------------------------------------------------------------------------------------------------


def test_a_site_that_refuses_for_good_is_asked_once_a_round(tmp_path: Path) -> None:
    """It takes part in the rounds that its policy allows, and the others go on without it."""
    each = small(run={"rounds": 3})
    files = site_files(tmp_path, each)
    files[0].write_text(f"{files[0].read_text()}max_rounds = 1\n")
    asked_for: list[str] = []
    grid = SitesGrid(files)

    def listen(name: str, reply: Any) -> Any:
        if name == files[0].stem and reply.metadata.message_type == "train":
            asked_for.append(name)
        return reply

    grid.on_reply = listen
    serve(grid, served(tmp_path, each))
    log = (tmp_path / "runs" / "one" / "server.log").read_text()
    assert len(asked_for) == 3
    assert log.count("its policy.max_rounds is 1") == 2
    assert "it is asked again" not in log
    assert "completed after round 3" in log


def test_what_is_approved_later_is_answered_in_the_next_round(tmp_path: Path) -> None:
    each = small(run={"rounds": 1})
    honest = questions(tmp_path / "honest", each)
    config = site(tmp_path, each, require_approval=True)
    said: list[str] = []
    node = node_of(config, said)
    refused = node.answer(asked(seal(honest[TRAIN])), NODE)
    assert refused.about[FINAL] is True
    assert "waits for the approval" in str(refused.about[PROBLEM])
    approve_experiment(config, entries(config, "experiment")[0]["experiment"])
    assert node.answer(asked(seal(honest[TRAIN])), NODE).arrays, said


def test_an_accident_is_not_final(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = site(tmp_path, small())
    node = node_of(config, [])

    def broken(self: SiteWork, *_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(SiteWork, "_answer", broken)
    answer = node.answer(asked(seal(introduction(small())), "introduce"), NODE)
    assert list(answer.about) == [PROBLEM, NAME]
