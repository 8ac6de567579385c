"""A site's node: it answers the coordinator's signed questions, refuses all others, and says why."""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from deploy.grids import KINDS
from deploy.running import begin, long_experiment, pid_of, rounds_in, server_log, text, until
from flwr.app import Message, RecordDict
from remote.flower.local_grid import acting_as

from fedmm import FedmmError
from fedmm.core.errors import require
from fedmm.deploy.federation import start_sites, up
from fedmm.deploy.flower_commands import CONNECTION, environment, flwr
from fedmm.deploy.layout import Federation, read_settings
from fedmm.deploy.local import RUN, demo_experiment, local_sites, same_result
from fedmm.deploy.runs import follow
from fedmm.remote.flower.envelope import Sealer, plain, seal
from fedmm.remote.flower.fleet import FleetNode, Question, TurnedAway
from fedmm.remote.packed import PROBLEM, Packed
from fedmm.sites import node as node_module
from fedmm.sites.compatibility import difference, versions
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.credentials.certificates import site_context
from fedmm.sites.credentials.keys import make_node_key, read_node_key, signer
from fedmm.sites.node import SiteNode, run_sites

NODE, OTHER, FLOWER_RUN = 77, 78, 5


def config_in(folder: Path, *, signed: bool = True) -> SiteConfig:
    make_node_key(folder / "coordinator")
    link = 'coordinator = "coordinator.pub"\n' if signed else ""
    (folder / "site.toml").write_text(
        f'[site]\nname = "clinic"\n[superlink]\naddress = "127.0.0.1:1"\ninsecure = true\n{link}'
    )
    return read_site(folder / "site.toml")


def asked(records: RecordDict, kind: str = "train") -> Question:
    with acting_as(1):
        message = Message(records, NODE, {kind: each for each, kind in KINDS.items()}[kind])
    return Question(message, kind, FLOWER_RUN)


class Clinic:
    """A site's node whose work is to repeat what it is asked. said: its log."""

    def __init__(self, folder: Path, *, signed: bool = True) -> None:
        self.said: list[str] = []
        self.worked = 0
        self.node = SiteNode(config_in(folder, signed=signed), self.work, self.said.append, threading.Lock())
        self.sign = signer(folder / "coordinator")

    def work(self, kind: str, question: Packed) -> Packed:
        self.worked += 1
        require(question.about.get("round") != 13, "round 13 is not worked on")
        if question.about.get("round") == 14:
            raise IndexError("a bug")
        return Packed({}, {"kind": kind, **question.about}, {})

    def asked(self, records: RecordDict, kind: str = "train") -> Packed:
        return self.node.answer(asked(records, kind), NODE)


@pytest.fixture
def clinic(tmp_path: Path) -> Clinic:
    return Clinic(tmp_path)


QUESTION = Packed({}, {"round": 3}, {})


def test_a_signed_question_is_answered(clinic: Clinic) -> None:
    answer = clinic.asked(Sealer(FLOWER_RUN, clinic.sign)("train", NODE, QUESTION))
    assert answer.about == {"kind": "train", "round": 3}
    assert clinic.said == ["train: came no arrays", "train: leaves no arrays; values kind = 'train', round = 3"]


def test_what_the_coordinator_did_not_write_for_this_node_run_and_question_is_refused(
    clinic: Clinic, tmp_path: Path
) -> None:
    make_node_key(tmp_path / "forger")
    forged = signer(tmp_path / "forger")
    for records in (
        plain("train", NODE, QUESTION),
        seal(QUESTION, "train", NODE, FLOWER_RUN),
        Sealer(FLOWER_RUN, forged)("train", NODE, QUESTION),
        Sealer(FLOWER_RUN, clinic.sign)("train", OTHER, QUESTION),
        Sealer(FLOWER_RUN + 1, clinic.sign)("train", NODE, QUESTION),
        Sealer(FLOWER_RUN, clinic.sign)("introduce", NODE, QUESTION),
    ):
        answer = clinic.asked(records)
        assert not answer.arrays
        assert list(answer.about) == [PROBLEM]
        assert clinic.said.pop() == f"train: refused: {answer.about[PROBLEM]}"
    assert clinic.worked == 0


def test_a_signature_of_another_text_is_none(clinic: Clinic) -> None:
    records = Sealer(FLOWER_RUN, clinic.sign)("train", NODE, QUESTION)
    records["fedmm"]["head"] = bytes(records["fedmm"]["head"]).replace(b'"round": 3', b'"round": 4')
    assert clinic.asked(records).about == {PROBLEM: "it is not signed by the federation's coordinator"}


def test_a_refusal_and_a_bug_are_told_and_the_node_goes_on(clinic: Clinic) -> None:
    write = Sealer(FLOWER_RUN, clinic.sign)
    refused = clinic.asked(write("train", NODE, Packed({}, {"round": 13}, {})))
    assert refused.about == {PROBLEM: "round 13 is not worked on"}
    failed = clinic.asked(write("train", NODE, Packed({}, {"round": 14}, {})))
    assert failed.about == {PROBLEM: "it failed with IndexError; see the site's own log"}
    assert "IndexError: a bug" in clinic.said[-1]
    assert clinic.asked(write("train", NODE, QUESTION)).about["round"] == 3


def test_in_plain_text_without_a_key_questions_need_no_signature(tmp_path: Path) -> None:
    assert Clinic(tmp_path, signed=False).asked(seal(QUESTION)).about["round"] == 3


def test_two_processes_of_one_site_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_in(tmp_path)
    monkeypatch.setattr(node_module, "_run", lambda nodes: run_sites([config], lambda name, line: None))
    with pytest.raises(FedmmError, match=r"the site with its state in .* is already running"):
        run_sites([config], lambda name, line: None)
    with pytest.raises(FedmmError, match=r"two of these files have the same site\.name"):
        run_sites([config, config], lambda name, line: None)


def test_a_node_looks_for_questions_when_they_are_due_and_seldom_when_none_comes() -> None:
    now = [0.0]
    waits = node_module._Polling(lambda: now[0])
    waits.answered()
    now[0] = 2.0
    waits.asked()
    waits.answered()
    looks = []
    while now[0] < 62.0:
        looks.append(waits.next())
        now[0] += looks[-1]
    assert looks[0] == pytest.approx(1.2)
    assert min(looks[1:6]) < 0.25
    assert looks[-1] == 5.0
    assert len(looks) < 60
    assert waits.next(took=0.5) == 5.0
    assert waits.next(took=2.0) == 8.0  # the SuperLink is full
    assert waits.next(took=60.0) == 15.0


def test_versions_that_differ_are_told_in_one_sentence() -> None:
    ours = {"fedmm": "1", "torch": "2.10", "flwr": "1.41"}
    assert difference(json.dumps(ours), "the server", ours) == ""
    other = difference(json.dumps({**ours, "torch": "2.6"}), "the site 'a'", ours)
    assert other == "the site 'a' runs other versions: torch 2.6 there, 2.10 here; results may differ in the last bits"
    for bad in ("", "[" * 5000, "[]", '{"torch": 3}', None, 7):
        assert difference(bad, "the server", ours) == "the server does not say which versions it runs"
    assert set(versions()) == {"fedmm", "torch", "flwr"}


def test_a_clock_that_differs_is_named_where_signatures_are_refused() -> None:
    early = "Mon, 02 Jan 2006 15:04:05 GMT"
    assert "days ahead of the SuperLink's" in node_module._reason(TurnedAway(401, "HTTP 401: no", early))
    assert node_module._reason(TurnedAway(401, "HTTP 401: no")) == "HTTP 401: no"
    assert node_module._reason(TurnedAway(412, "HTTP 412: no", early)) == "HTTP 412: no"


# Real processes -------------------------------------------------------------------------------------------------------

ATTACK = """
import pathlib
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def query(message, context):
    pathlib.Path({ran!r}).touch()
    return Message(message.content, reply_to=message)


@server.main()
def main(grid, context):
    asked = [Message(RecordDict({{"config": ConfigRecord({{"run": "x", "experiment": ""}})}}), node, "query")
             for node in grid.get_node_ids()]
    replies = list(grid.send_and_receive(asked, timeout=60))
    said = [str(dict(record)) for reply in replies for record in reply.content.config_records.values()]
    pathlib.Path({answers!r}).write_text("\\n".join([str(len(asked)), *said]))
"""

APP = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "attack"
version = "0.1.0"
description = "an app of somebody with an account on the coordinator's machine"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["attack"]
[tool.flwr.app]
publisher = "somebody"
[tool.flwr.app.components]
serverapp = "attack.app:server"
clientapp = "attack.app:client"
"""


@pytest.fixture
def two_sites(federation: Federation) -> Federation:
    up(federation, local_sites(demo_experiment(2)), say=print)
    return federation


@pytest.mark.processes
def test_an_app_of_somebody_elses_runs_at_no_site_and_learns_nothing(two_sites: Federation, tmp_path: Path) -> None:
    """Whoever reaches the control API can hand the SuperLink an app: sites run none, and answer nothing unsigned."""
    ran, answers = tmp_path / "ran", tmp_path / "answers"
    folder = tmp_path / "app"
    (folder / "attack").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(APP)
    (folder / "attack" / "__init__.py").touch()
    (folder / "attack" / "app.py").write_text(ATTACK.format(ran=str(ran), answers=str(answers)))
    flwr(two_sites, "run", str(folder), CONNECTION)
    until(answers.exists, 300, "the attacker's server did not run")
    asked, *said = answers.read_text().splitlines()
    assert (asked, len(said)) == ("2", 2)
    assert all("it is not a message of fedmm" in each for each in said)
    assert not ran.exists()
    for name in ("source-1", "target-1"):
        assert "refused: it is not a message of fedmm" in text(two_sites.logs / f"{name}.log")


@pytest.mark.processes
def test_a_registered_site_cannot_send_another_one_questions(two_sites: Federation) -> None:
    start = "site target-1 is node "
    victim = int(text(two_sites.logs / "target-1.log").split(start)[1].split()[0])
    os.kill(pid_of(two_sites, "site", "source-1.toml"), signal.SIGTERM)  # its key is the attacker's now
    until(lambda: "has stopped" in text(two_sites.logs / "source-1.log"), 60, "the site did not end")
    number = begin(two_sites, demo_experiment(2))
    config = read_site(two_sites.sites / "source-1.toml")
    key = read_node_key(Path(config.superlink.key), "key")
    attacker = FleetNode(read_settings(two_sites).address, site_context(config), key)
    mine = attacker.activate()
    until(lambda: "waiting for source-1" in server_log(two_sites), 300, "the run did not begin")
    taken = 0
    for source in (mine, 1):  # in its own name, and as the server
        with acting_as(source):
            false = Message(seal(QUESTION, "train", victim, number), victim, "train")
            false.metadata.__dict__["_run_id"] = number
            false.metadata.__dict__["_src_node_id"] = source
        with suppress(TurnedAway):  # where the SuperLink refuses it by itself
            taken += _push(attacker, Question(false, "train", number))

    def refused() -> int:
        said = text(two_sites.logs / "target-1.log")
        return said.count("refused: ")

    until(lambda: refused() == taken, 120, f"{taken} false questions were taken in, and {refused()} refused")
    attacker.close()
    start_sites(two_sites, ["source-1"], print)
    assert "completed" in follow(two_sites, RUN, number, print)
    assert "train: came no arrays" not in text(two_sites.logs / "target-1.log")


def _push(attacker: FleetNode, question: Question) -> bool:
    """Send a message that is no reply, with the means of a node; whether the SuperLink took it in."""
    from flwr.app.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.message_pb2 import PushObjectRequest
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,
        get_object_tree,
        no_object_id_recompute,
    )

    from fedmm.remote.flower.fleet import _call

    message = question.message
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = get_all_nested_objects(message)
        request = PushMessagesRequest(
            node=attacker._node,
            messages_list=[message_to_proto(remove_content_from_message(message))],
            message_object_trees=[get_object_tree(message)],
            clientapp_runtime_list=[0.0],
        )
        response = _call(attacker._client.PushMessages, request)
        for name in response.objects_to_push:
            pushed = PushObjectRequest(
                node=attacker._node,
                run_id=question.run,
                object_id=name,
                object_content=objects[name].deflate(),
                session_id=response.session_id,
            )
            _call(attacker._client.PushObject, pushed)
    return bool(response.objects_to_push)


@pytest.mark.processes
def test_a_site_is_one_process_that_listens_nowhere_and_shows_no_secret(two_sites: Federation) -> None:
    site = pid_of(two_sites, "site", "source-1.toml")
    children = subprocess.run(["ps", "--ppid", str(site)], capture_output=True, text=True, check=False).stdout
    assert len(children.splitlines()) == 1  # ps's own first line
    sockets = {
        str(path.readlink()).removeprefix("socket:[").removesuffix("]")
        for path in Path(f"/proc/{site}/fd").iterdir()
        if path.is_symlink() and str(path.readlink()).startswith("socket:")
    }
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{site}/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                listening.add(words[9])
    assert not sockets & listening
    command = Path(f"/proc/{site}/cmdline").read_bytes().decode().split("\0")
    assert not [word for word in command if "token" in word]
    state = read_site(two_sites.sites / "source-1.toml").state
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


@pytest.mark.processes
def test_a_killed_site_costs_seconds_not_the_patience(federation: Federation, tmp_path: Path) -> None:
    """The round is asked again as soon as the site is back, long before its patience of ten minutes."""
    each = long_experiment(25)
    up(federation, local_sites(each), say=print)
    number = begin(federation, each, patience=600.0)
    until(lambda: rounds_in(federation) >= 2, 300, "two rounds were not finished")
    site = pid_of(federation, "site", "source-1.toml")
    os.kill(site, signal.SIGSTOP)  # in mid-round: what it was asked is lost with it
    at = rounds_in(federation)
    until(lambda: rounds_in(federation) in (at, at + 1), 60, "")
    os.kill(site, signal.SIGKILL)
    start_sites(federation, ["source-1"], print)
    until(lambda: rounds_in(federation) >= at + 4, 300, "the run waited out its patience")
    assert "completed" in follow(federation, RUN, number, print)
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)


@pytest.mark.processes
def test_a_site_whose_clock_is_wrong_is_told_so(two_sites: Federation, tmp_path: Path) -> None:
    """A process whose clock is shifted, as far as Flower's signatures go."""
    (tmp_path / "sitecustomize.py").write_text(
        "import datetime\nimport flwr.supernode.node_auth_http_interceptor as auth\nreal = auth.now\n"
        "auth.now = lambda: real() + datetime.timedelta(seconds=60)\n"
        "from fedmm.sites import compatibility as clock\nnow = datetime.datetime.now\n"
        "clock.datetime.datetime = type('Shifted', (datetime.datetime,), {'now': classmethod("
        "lambda cls, tz=None: now(tz) + datetime.timedelta(seconds=60))})\n"
    )
    os.kill(pid_of(two_sites, "site", "source-1.toml"), signal.SIGTERM)
    until(lambda: "has stopped" in text(two_sites.logs / "source-1.log"), 60, "the site did not end")
    log = tmp_path / "shifted.log"
    env = {**environment(two_sites.flower), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "fedmm", "deploy", "site", str(two_sites.sites / "source-1.toml")]
    with log.open("wb") as out, subprocess.Popen(command, stderr=out, env=env) as site:
        try:
            until(lambda: "turns this site away" in text(log), 120, "the site said nothing")
        finally:
            site.terminate()
    assert re.search(r"this machine's clock is \d+ s ahead of the SuperLink's", text(log))
