"""Real processes over TLS with node authentication: the commands, kills in mid-run, and the same bits after them.

Each test takes a minute or more, so they run with FEDMM_SLOW=1 (``make test-distributed``).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from deploy.asking import entries
from deploy.running import begin, long_experiment, pid_of, pids_of, rounds_in, text, until
from problems import WORST_AUC

from fedmm import FedmmError, experiment
from fedmm.deploy import processes
from fedmm.deploy.federation import down, start_sites, up
from fedmm.deploy.layout import Federation
from fedmm.deploy.local import RUN, demo_experiment, local_sites, same_result
from fedmm.deploy.run_state import server_pid
from fedmm.deploy.runs import follow, resume
from fedmm.sites.config import read_site
from fedmm.sites.experiments import experiment_text

pytestmark = pytest.mark.processes

SUMMED = 100 * 2.0**-23
"""Relative: logits are sums of about a hundred float32 products, which sites and one process may order unlike."""


def type_deploy(folder: Path, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """``fedmm deploy WORDS`` for a federation, which must end with this exit code."""
    command = [sys.executable, "-m", "fedmm", "deploy", *words, "--federation", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done


def test_a_run_survives_the_death_of_a_site_and_of_the_superlink_to_the_bit(
    federation: Federation, tmp_path: Path
) -> None:
    each = long_experiment(25)
    up(federation, local_sites(each), say=print)
    number = begin(federation, each)
    until(lambda: rounds_in(federation) >= 1, 600, "the first round was not finished")

    # A site dies in mid-round, and is started again, as its service would: the SuperLink still takes it for connected.
    for name in ("source-1", "target-1"):
        os.kill(pid_of(federation, "site", f"{name}.toml"), signal.SIGKILL)
        until(lambda name=name: not pids_of(federation, f"{name}.toml"), 600, "a killed site lives")
        start_sites(federation, [name], print)
        killed_at = rounds_in(federation)
        until(lambda at=killed_at: rounds_in(federation) >= at + 2, 600, f"the run did not go on after {name}'s death")

    # The SuperLink dies: the run ends with it, and goes on as another run of Flower's.
    os.kill(pid_of(federation, "flower-superlink"), signal.SIGKILL)
    with pytest.raises(FedmmError, match="the SuperLink has died"):
        follow(federation, RUN, number, print)
    done = rounds_in(federation)
    assert done < 25
    number = resume(federation, RUN, patience=200.0, say=print)
    assert "completed" in follow(federation, RUN, number, print)
    (begun,) = re.findall(r"continuing after round (\d+)\n", text(federation.run(RUN) / "server.log"))
    # The last row may lack its checkpoint, which is written after it; the server may also have finished another round.
    assert done - 1 <= int(begun) < 25
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
    assert text(federation.run(RUN) / "refused.jsonl") == ""


def test_auc_for_the_worst_mixture_of_sites_is_bit_identical(federation: Federation, tmp_path: Path) -> None:
    each = experiment({**WORST_AUC, "run": {**WORST_AUC["run"], "checkpoint_every": 1}})
    up(federation, local_sites(each), say=print)
    assert "completed" in follow(federation, RUN, begin(federation, each), print)
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)
    ours, other = (
        json.loads(text(folder / "rounds.jsonl").splitlines()[-1])
        for folder in (federation.run(RUN), tmp_path / "reference")
    )
    for column in ("validation_auroc", "validation_accuracy", "source_auroc"):
        assert ours[column] == pytest.approx(other[column], rel=SUMMED), column


def test_the_demo_is_bit_identical_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "fedmm", "deploy", "demo", "--out", str(tmp_path / "demo"), "--rounds", "2"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "federation and one process are bit-identical" in done.stdout
    ours, other = (
        json.loads((tmp_path / "demo" / folder / "rounds.jsonl").read_text().splitlines()[-1])
        for folder in (f"runs/{RUN}", "in-process")
    )
    for column in ("target_information", "target_entropy", "target_bnm", "target_snd", "domain_accuracy"):
        assert ours[column] == pytest.approx(other[column], rel=SUMMED), column
    said = text(tmp_path / "demo" / "logs" / "target-1.log")
    assert "target-1: round 2: leaves sums for target_information (11 over " in said
    assert processes.find_marked(tmp_path / "demo") == []


def test_the_commands_up_run_status_and_down(tmp_path: Path) -> None:
    folder = tmp_path / "federation"
    experiment = tmp_path / "digits.toml"
    experiment.write_text(experiment_text(demo_experiment(2)))

    def fedmm(*words: str) -> str:
        return type_deploy(folder, *words).stdout

    try:
        assert "site target-1 has joined" in fedmm("up", str(experiment))
        assert "source-1: running" in fedmm("status")
        assert "finished:completed" in fedmm("run", str(experiment), "--name", "first")
        said = fedmm("status")
        assert "run first: 2 rounds finished, Flower says finished:completed" in said
        assert "TLS and node authentication" in said
    finally:
        assert "processes ended" in fedmm("down")
    assert processes.find_marked(folder) == []


@pytest.mark.usefixtures("heeding_ctrl_c")
@pytest.mark.parametrize("send", [os.kill, os.killpg])
def test_ctrl_c_ends_everything(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """Whether it reaches the command alone, or, as in a terminal, all that it runs in its group."""
    command = [sys.executable, "-m", "fedmm", "deploy", "demo", "--out", str(tmp_path / "demo"), "--rounds", "50"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "round 1:" in line:
                send(demo.pid, signal.SIGINT)
                break
        rest = demo.stdout.read()
    assert demo.returncode == 130, rest
    assert "processes ended" in rest
    assert processes.find_marked(tmp_path / "demo") == []


def test_a_federation_that_went_down_comes_up_with_its_states(federation: Federation, tmp_path: Path) -> None:
    each = long_experiment(20)
    up(federation, local_sites(each), say=print)
    begin(federation, each)
    until(lambda: rounds_in(federation) >= 2, 600, "two rounds were not finished")
    down(federation)
    with pytest.raises(FedmmError, match=r"no SuperLink answers at .*`fedmm deploy up` starts one"):
        resume(federation, RUN, patience=200.0, say=print)
    up(federation, local_sites(each), say=print)
    assert "completed" in follow(federation, RUN, resume(federation, RUN, patience=200.0, say=print), print)
    assert same_result(each, federation.run(RUN), tmp_path / "reference", print)


def test_a_tuning_by_the_commands_survives_the_death_of_its_server_and_spends_the_sites_rounds(tmp_path: Path) -> None:
    folder, file = tmp_path / "federation", tmp_path / "digits.toml"
    each = demo_experiment(3)
    each = replace(
        each, algorithm=replace(each.algorithm, local_steps=10), data=replace(each.data, validation_rows=100)
    )
    file.write_text(experiment_text(each) + '\n[tune]\n"algorithm.lr_max" = [0.05]\n')
    there = Federation(folder)

    def fedmm(*words: str, code: int = 0) -> str:
        done = type_deploy(folder, *words, code=code)
        return done.stdout + done.stderr

    tune = ("run", str(file), "--tune")
    try:
        fedmm("up", str(file), "--in-memory")
        assert "adds noise to updates" in fedmm(*tune, "--set", "transmission.name=gaussian", code=2)
        refused = fedmm(*tune, "--name", "larger", "--seeds", "100", "--set", "run.rounds=9", code=2)
        assert "the tuning takes 2700 rounds of this site, which has 1000 left of its policy.max_rounds" in refused
        assert refused.count("error: ") == 1
        command = [sys.executable, "-m", "fedmm", "deploy", *tune, "--name", "one", "--seeds", "1"]
        with subprocess.Popen([*command, "--federation", str(folder)], stdout=subprocess.DEVNULL) as run:
            until(lambda: "run 1 of 3" in text(there.run("one") / "server.log"), 600, "no run was finished")
            pid = server_pid(there.run("one"))
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            run.wait(600)
        said = fedmm("resume", "one")
        tuned = there.run("one") / "tuning" / "tuned.toml"
        assert f"to train with it: fedmm deploy run {tuned} --name one-tuned --federation {folder}" in said
        assert "tuning one: completed, rung 1 of 1, 3 of its runs finished" in fedmm("status")
        counts = [entry["rounds"] for entry in entries(read_site(there.sites / "source-1.toml"), "answer")]
        assert sum(counts) in (9, 10)  # a round that the kill cut off may have been answered in two sessions
        assert "finished:completed" in fedmm("run", str(tuned), "--name", "one-tuned")
    finally:
        fedmm("down")
    assert processes.find_marked(folder) == []
