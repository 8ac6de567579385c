"""A site's audit log: what it holds, how it survives crashes, and what it shows of those who changed it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deploy.asking import SITE, changed, entries, introduction, questions, refusal, site
from deploy.running import begin, text, until
from deploy.test_serving import grid_of, served, small

from fedmm import FedmmError
from fedmm.cli import main
from fedmm.deploy.federation import up
from fedmm.deploy.layout import Federation
from fedmm.deploy.local import RUN, demo_experiment, local_sites
from fedmm.deploy.server import serve
from fedmm.remote.packed import INTRODUCE, TRAIN, About, Packed
from fedmm.sites.config import SiteConfig, read_site
from fedmm.sites.experiments import deployed_experiment, experiment_text
from fedmm.sites.owner.audit import FIRST, AuditChain, AuditLog, BrokenChain, Entry, read_chain
from fedmm.sites.work import SiteWork


def command(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str, str]:
    """A command's exit code, what it printed, and its errors."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fedmm", "deploy", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


# What it holds --------------------------------------------------------------------------------------------------------


def test_the_log_holds_what_came_and_what_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each = small(run={"rounds": 2})
    serve(grid_of(tmp_path, each), served(tmp_path, each))
    config = read_site(tmp_path / "sites" / f"{SITE}.toml")
    (whole,) = entries(config, "experiment")
    assert whole["text"] == experiment_text(each)
    assert whole["experiment"] == hashlib.sha256(whole["text"].encode()).hexdigest()
    asked, answers = entries(config, "question"), entries(config, "answer")
    assert [entry["kind"] for entry in asked] == ["introduce", "train", "measure", "train", "measure"]
    assert [entry["kind"] for entry in answers] == [entry["kind"] for entry in asked]
    assert {entry["experiment"] for entry in (*asked, *answers)} == {whole["experiment"]}
    assert asked[1]["came"][0] == {"name": "min.omega", "shape": [910], "dtype": "float32", "bytes": 3640}
    assert (asked[3]["round"], asked[3]["run"]) == (1, "one")
    assert answers[1]["leaves"] == asked[1]["came"]
    assert answers[1]["values"]["client"] == SITE
    (plan,) = entries(config, "plan")
    assert json.loads(plan["text"])["listed"] == [SITE, "target-1"]
    assert config.audit.stat().st_mode & 0o777 == 0o600

    capsys.readouterr()
    code, out, _ = command(capsys, "audit", config.file)
    assert code == 0
    assert "answered 5 of 5000 questions and 2 of 1000 rounds; what left without noise has no finite epsilon" in out
    assert f"head {entries(config)[-1]['hash']}" in out
    code, out, err = command(capsys, "audit", config.file, "--json")
    assert [json.loads(line) for line in out.splitlines()] == entries(config)
    assert "every hash follows" in err


def test_the_policy_is_written_down_when_it_changes(tmp_path: Path) -> None:
    each = small()
    for rounds in (10, 10, 20):
        SiteWork(site(tmp_path, each, max_rounds=rounds))(INTRODUCE, introduction(each))
    assert [entry["policy"]["max_rounds"] for entry in entries(site(tmp_path, each), "policy")] == [10, 20]


# Who changes it -------------------------------------------------------------------------------------------------------


def logged(tmp_path: Path) -> SiteConfig:
    """A site that has answered three questions."""
    each = small()
    config = site(tmp_path, each)
    for run in ("one", "two", "three"):
        SiteWork(config)(INTRODUCE, introduction(each, run))
    return config


def _swap(lines: list[str]) -> list[str]:
    return [*lines[:3], lines[4], lines[3], *lines[5:]]


def _lie(lines: list[str]) -> list[str]:
    return [line.replace('"run": "two"', '"run": "new"') for line in lines]


def _rehash(lines: list[str]) -> list[str]:
    """A changed entry with a hash that is right for it; the one after it does not follow any more."""
    entry = json.loads(lines[3])
    entry.pop("hash")
    entry["run"] = "new"
    canonical = json.dumps(entry, sort_keys=True, separators=(",", ":"))
    entry["hash"] = hashlib.sha256(canonical.encode()).hexdigest()
    return [*lines[:3], json.dumps(entry), *lines[4:]]


@pytest.mark.parametrize(
    ("change", "number"),
    [
        (_lie, 5), (_swap, 4), (_rehash, 5),
        (lambda lines: lines[1:], 1),
        (lambda lines: [*lines[:4], *lines[5:]], 5),
        (lambda lines: [*lines[:2], "garbage", *lines[3:]], 3),
        (lambda lines: [*lines[:2], "[]", *lines[3:]], 3),
        (lambda lines: [*lines, lines[-1]], 9),
        (lambda lines: [lines[0].replace('"event"', '"event" '), *lines[1:]], 1),
    ],
    ids=["changed", "moved", "rehashed", "first removed", "removed", "garbage", "no entry", "repeated", "spaced"],
)  # fmt: skip
def test_the_first_entry_that_is_wrong_is_named_and_the_site_answers_no_more(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[list[str]], list[str]],
    number: int,
) -> None:
    config = logged(tmp_path)
    lines = config.audit.read_text().splitlines()
    assert len(lines) == 8  # a policy, an experiment, three questions and their answers
    config.audit.write_text("\n".join(change(lines)) + "\n")
    code, _, err = command(capsys, "audit", config.file)
    assert (code, err.startswith("error: the audit log")) == (2, True)
    assert f"is broken at entry {number}: " in err
    with pytest.raises(FedmmError, match=f"is broken at entry {number}"):
        SiteWork(config)(INTRODUCE, introduction(small()))


def test_lines_cut_off_at_the_end_are_seen_by_who_noted_the_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = logged(tmp_path)
    heads = [entry["hash"] for entry in entries(config)]
    assert command(capsys, "audit", config.file, "--expect", heads[-1])[0] == 0
    assert command(capsys, "audit", config.file, "--expect", heads[2])[0] == 0
    config.audit.write_text("".join(config.audit.read_text().splitlines(keepends=True)[:-2]))
    assert command(capsys, "audit", config.file)[0] == 0  # a chain alone cannot show it
    code, _, err = command(capsys, "audit", config.file, "--expect", heads[-1])
    assert code == 2
    assert "entries were removed at its end" in err
    with pytest.raises(FedmmError, match="became shorter while it was in use"):
        read_chain(config.audit, begin=AuditChain(8, heads[-1], 10**9))


# Crashes --------------------------------------------------------------------------------------------------------------


def test_a_line_that_a_crash_left_is_told_and_mended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = logged(tmp_path)
    with config.audit.open("a") as file:
        file.write('{"number": 9, "ev')
    code, out, _ = command(capsys, "audit", config.file)
    assert code == 0
    assert "the last 17 bytes are not a whole line" in out
    SiteWork(config)(INTRODUCE, introduction(small(), "four"))
    (mended,) = entries(config, "mended")
    assert (mended["number"], mended["bytes"]) == (9, 17)
    code, out, _ = command(capsys, "audit", config.file)
    assert (code, "not a whole line" in out) == (0, False)


def test_a_disk_that_takes_no_entry_lets_no_answer_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = logged(tmp_path)
    before = config.audit.read_bytes()

    def full(number: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(FedmmError, match=r"cannot be written: No space left"):
            SiteWork(config)(INTRODUCE, introduction(small()))
    assert config.audit.read_bytes().startswith(before)
    assert len(entries(config, "answer")) == 3
    SiteWork(config)(INTRODUCE, introduction(small()))
    assert read_chain(config.audit).fragment == b""


def test_two_processes_add_to_one_chain(tmp_path: Path) -> None:
    one: list[Entry] = []
    other: list[Entry] = []
    first, second = (AuditLog(tmp_path / "audit.jsonl", seen.append) for seen in (one, other))
    for number in range(6):
        with (first, second)[number % 2].alone():
            (first, second)[number % 2].add("note", which=number)
    with first.alone():
        pass
    assert [entry["which"] for entry in one] == list(range(6))
    assert len(other) == 6
    assert read_chain(tmp_path / "audit.jsonl").entries == 6
    assert one[0]["previous"] == FIRST
    (tmp_path / "audit.jsonl").unlink()
    with pytest.raises(BrokenChain), first.alone():
        pass


KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from fedmm.sites.owner.gate import Gate
from fedmm.sites.config import read_site
from fedmm.sites.work import SiteWork

def release(gate, *given):
    if sys.argv[3] == "after":
        usual(gate, *given)
    os.kill(os.getpid(), signal.SIGKILL)

usual, Gate.release = Gate.release, release
question = pickle.loads(Path(sys.argv[2]).read_bytes())
SiteWork(read_site(Path(sys.argv[1])))("train", question)
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_process_killed_beside_its_entry_neither_forgets_a_round_nor_pays_it_twice(tmp_path: Path, when: str) -> None:

    each = small(run={"rounds": 1})
    question = questions(tmp_path / "honest", each)[TRAIN]
    config = site(tmp_path, each, max_rounds=1)
    (tmp_path / "question").write_bytes(pickle.dumps(question))
    done = subprocess.run([sys.executable, "-c", KILLED, config.file, tmp_path / "question", when], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(entries(config, "answer")) == (when == "after")
    assert SiteWork(config)(TRAIN, question).arrays
    assert sum(entry["rounds"] for entry in entries(config, "answer")) == 1
    assert "max_rounds is 1" in refusal(config, TRAIN, changed(question, session=5))


# Approval -------------------------------------------------------------------------------------------------------------


def test_only_what_the_owner_approved_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    each, other = small(run={"rounds": 1}), small(run={"rounds": 1, "seed": 4})
    config = site(tmp_path, each, require_approval=True)
    assert command(capsys, "approve", config.file) == (0, "no experiment was asked for\n", "")
    work = SiteWork(config)
    with pytest.raises(FedmmError, match="waits for the approval of this site's owner"):
        work(INTRODUCE, introduction(each))
    _, out, _ = command(capsys, "approve", config.file)
    digest = out.split()[0]
    assert f"{digest} not approved; runs: one; fedmm with dann on digits, mlp, 1 rounds of 2 local steps" in out
    for wrong, words in (("0" * 8, "0 experiments"), ("0" * 7, "neither 8 or more"), ("no.toml", "neither 8 or more")):
        code, _, err = command(capsys, "approve", config.file, wrong)
        assert (code, words in err) == (2, True)
    assert command(capsys, "approve", config.file, digest[:8])[0] == 0
    assert work(INTRODUCE, introduction(each))  # the process that runs sees it
    assert "waits for the approval" in refusal(config, INTRODUCE, introduction(other))
    assert "approved; runs: one" in command(capsys, "approve", config.file)[1]
    asked = questions(tmp_path / "honest", each)[TRAIN]
    assert work(TRAIN, asked).arrays
    smuggled = json.loads(str(asked.about["plan"]))
    smuggled["algorithm"] |= {"local_steps": 50}
    assert "guard allows" in refusal(config, TRAIN, changed(asked, plan=json.dumps(smuggled)))


def test_an_experiment_is_approved_by_its_file_before_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = '[data]\nname = "digits"\n[model]\nname = "mlp"\n'
    (tmp_path / "experiment.toml").write_text(short)
    config = site(tmp_path, small(), require_approval=True)
    code, out, _ = command(capsys, "approve", config.file, tmp_path / "experiment.toml")
    assert (code, out.startswith("approved ")) == (0, True)
    full: About = {"run": "one", "experiment": f"# the same, written otherwise\n{short}[run]\nrounds = 200\n"}
    assert SiteWork(config)(INTRODUCE, Packed({}, full, {}))


# With real processes --------------------------------------------------------------------------------------------------


@pytest.mark.processes
def test_real_sites_do_not_run_a_command_and_say_so_at_both_ends(
    federation: Federation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that is installed everywhere, and that the server alone lets experiments import."""
    ran, each = tmp_path / "it-ran", demo_experiment(1)
    program = f"import sys\nfrom torch import nn\nopen({str(ran)!r}, 'a').write(' '.join(sys.argv) + '\\n')\n"
    program += "def tower():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU())\n"
    (tmp_path / "evil_net.py").write_text(program)
    sites = local_sites(each)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(":"))
    monkeypatch.setenv("FEDMM_ALLOW_IMPORT", "evil_net")
    up(federation, sites, say=print)
    tables: dict[str, Any] = {**each.tables(), "model": {"name": "backbone", "backbone": "evil_net:tower"}}
    begin(federation, deployed_experiment(tables))
    words = "refuses: backbone 'evil_net:tower' would import a module and run its code, which is not allowed at this"
    server_log = federation.run(RUN) / "server.log"
    for name in (SITE, "target-1"):
        until(lambda name=name: f"the site '{name}' {words}" in text(server_log), 300, f"{name} was not named")
        log = federation.folder / "state" / name / "audit.jsonl"
        refused = [json.loads(line) for line in log.read_text().splitlines() if '"refusal"' in line]
        assert words in refused[0]["sentence"]
        assert words in text(federation.logs / f"{name}.log")
    assert ran.exists()  # at the server
    assert "site" not in ran.read_text().split()
