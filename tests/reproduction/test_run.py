"""What is done is skipped, what was interrupted goes on, and both ways end in the same numbers."""

from __future__ import annotations

import signal
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from reproduction.small_paper import changed, numbers, tick_at_every_look, write_paper

from fedmm.core.errors import FedmmError
from fedmm.engines.batched import Batched
from fedmm.reproduction.items import read_items
from fedmm.reproduction.plan import PaperRun, plan_runs
from fedmm.reproduction.results import RESULTS, read_lines
from fedmm.reproduction.run import Reproduced, Where, reproduce
from fedmm.training.batched import StackRun
from fedmm.training.snapshots import load_snapshot

Lines = dict[tuple[str, str, int], dict[str, Any]]


class Desk:
    """A paper, and where its results and unfinished runs are kept."""

    def __init__(self, folder: Path) -> None:
        self.paper = write_paper(folder / "paper")
        self.results = folder / RESULTS
        self.states = folder / "states"
        self.said: list[str] = []

    def runs(self, item: str = "figure_1", **chosen: Any) -> list[PaperRun]:
        return plan_runs(read_items(self.paper)[item], **chosen)

    def reproduce(
        self, runs: Sequence[PaperRun] | None = None, elsewhere: Sequence[Path] = (), **where: Any
    ) -> Reproduced:
        self.said.clear()
        return reproduce(
            self.runs() if runs is None else runs,
            self.results,
            self.states,
            Where(**where),
            "fedmm reproduce figure-1",
            elsewhere=elsewhere,
            progress=False,
            say=self.said.append,
        )

    def lines(self) -> Lines:
        return {(line["panel"], line["curve"], line["seed"]): line for line in read_lines(self.results)}

    def numbers(self) -> Lines:
        return {run: numbers(line) for run, line in self.lines().items()}

    def kept(self) -> list[Path]:
        return sorted(self.states.glob("*")) if self.states.exists() else []


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.fixture(name="straight", scope="module")
def _straight(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """All runs of the first figure, none interrupted."""
    desk = Desk(tmp_path_factory.mktemp("straight"))
    assert desk.reproduce() == Reproduced(0, 8, 0)
    return desk


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    tick_at_every_look(monkeypatch)


@pytest.fixture
def stacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each stack that was run had."""
    sizes: list[int] = []

    class Counted(StackRun):
        def run(self, *arguments: Any) -> Any:
            sizes.append(len(self.adaptations))
            return super().run(*arguments)

    monkeypatch.setattr("fedmm.reproduction.run.StackRun", Counted)
    return sizes


# All of them ----------------------------------------------------------------------------------------------------------


def test_every_run_leaves_a_line(straight: Desk) -> None:
    lines = straight.lines()
    assert len(lines) == 8
    for line in lines.values():
        assert (line["item"], line["status"], line["rounds"], line["scale"]) == ("figure_1", "completed", 6, "full")
        assert line["series"]["round"] == [2, 4, 6]
        assert 0 <= line["target_accuracy"] <= 1
    assert lines["uneven", "source_only", 1]["role"] == "bound"
    assert straight.kept() == []


def test_a_line_says_where_it_comes_from(straight: Desk) -> None:
    about = straight.lines()["even", "fedmm", 0]["provenance"]
    assert about["command"] == "fedmm reproduce figure-1"
    assert about.keys() >= {"commit", "date", "versions", "hardware", "seconds", "precision", "engine"}
    assert about["engine"]["name"] == "batched"
    assert about["engine"]["stacked"] == 4


def test_runs_of_one_shape_share_a_program(desk: Desk, stacked: list[int]) -> None:
    desk.reproduce()
    assert sorted(stacked) == [2, 2, 4]


@pytest.mark.parametrize("most", [1, 3])
def test_how_many_share_a_program_changes_nothing(desk: Desk, stacked: list[int], straight: Desk, most: int) -> None:
    desk.reproduce(stack=most)
    assert max(stacked) == most
    assert desk.numbers() == straight.numbers()


def test_a_run_that_diverges_has_a_line_and_the_others_go_on(desk: Desk, straight: Desk) -> None:
    changed(desk.paper / "figure_1" / "even" / "fedmm.toml", "local_steps = 2", "local_steps = 2\nlr_min = 1e300")
    assert desk.reproduce(desk.runs(panels=["even"])) == Reproduced(0, 4, 0)
    found = desk.numbers()
    assert {found["even", "fedmm", seed]["status"] for seed in (0, 1)} == {"diverged"}
    assert found["even", "fedmm", 0]["target_accuracy"] is None
    assert found["even", "fedavg_gda", 1] == straight.numbers()["even", "fedavg_gda", 1]
    assert desk.reproduce(desk.runs(panels=["even"])) == Reproduced(4, 0, 0), "it is not tried again"


# What is done ---------------------------------------------------------------------------------------------------------


def test_what_is_done_is_skipped(straight: Desk, stacked: list[int]) -> None:
    before = straight.results.read_bytes()
    assert straight.reproduce() == Reproduced(8, 0, 0)
    assert straight.said == ["8 runs: 8 done before, 0 to do"]
    assert straight.results.read_bytes() == before
    assert stacked == []


def test_only_what_is_missing_is_run(desk: Desk, stacked: list[int], straight: Desk) -> None:
    desk.reproduce(desk.runs(curves=["fedmm"], seeds=[1]))
    stacked.clear()
    assert desk.reproduce() == Reproduced(2, 6, 0)
    assert sum(stacked) == 6
    assert desk.numbers() == straight.numbers()


def test_what_changed_is_run_again_and_said(desk: Desk, stacked: list[int]) -> None:
    desk.reproduce()
    stacked.clear()
    before = desk.numbers()
    changed(desk.paper / "figure_1" / "even" / "fedavg_gda.toml", "local_steps = 2", "local_steps = 3")
    assert desk.reproduce() == Reproduced(6, 2, 0)
    assert desk.said[:2] == [f"even/fedavg_gda seed {seed}: its file changed since; it is run again" for seed in (0, 1)]
    assert stacked == [2]
    after = desk.numbers()
    assert {run for run in before if before[run] != after[run]} == {
        ("even", "fedavg_gda", 0),
        ("even", "fedavg_gda", 1),
    }
    assert desk.reproduce() == Reproduced(8, 0, 0)


def test_what_decides_no_number_may_change(desk: Desk, stacked: list[int]) -> None:
    desk.reproduce()
    stacked.clear()
    changed(desk.paper / "common.toml", "threads = 1", "threads = 2")
    changed(desk.paper / "figure_1" / "even" / "fedmm.toml", 'label = "FedMM"', 'label = "ours"')
    assert desk.reproduce() == Reproduced(8, 0, 0)
    assert stacked == []


def test_a_torn_line_is_run_again(desk: Desk, straight: Desk) -> None:
    desk.reproduce()
    desk.results.write_bytes(desk.results.read_bytes()[:-30])
    assert desk.reproduce() == Reproduced(7, 1, 0)
    assert desk.numbers() == straight.numbers()
    assert len(desk.results.read_text().splitlines()) == 8


def test_what_is_no_result_is_refused_before_anything_is_run(desk: Desk, stacked: list[int]) -> None:
    desk.results.write_text("what is this\n")
    with pytest.raises(FedmmError, match="line 1, is not a result of a run; remove the line"):
        desk.reproduce()
    assert stacked == []


# The same experiment twice --------------------------------------------------------------------------------------------


def test_an_experiment_in_another_item_is_copied(desk: Desk, stacked: list[int], straight: Desk) -> None:
    again = desk.runs("figure_2")
    assert desk.reproduce(again, elsewhere=[straight.results]) == Reproduced(2, 0, 0)
    assert desk.said[0] == "2 runs are the same experiments as others and were copied"
    assert stacked == []
    line, original = desk.lines()["rates", "fedmm_again", 1], straight.lines()["even", "fedmm", 1]
    assert (line["item"], line["label"]) == ("figure_2", "FedMM, again")
    assert all(line[key] == original[key] for key in ("series", "target_accuracy", "digest", "provenance"))


def test_an_experiment_in_two_panels_is_computed_once(desk: Desk, stacked: list[int]) -> None:
    changed(desk.paper / "figure_1" / "uneven" / "fedmm.toml", "[partition]\ntarget_clients = 2", "")
    assert desk.reproduce() == Reproduced(0, 8, 0)
    assert sum(stacked) == 6
    found = desk.lines()
    for seed in (0, 1):
        one, other = found["even", "fedmm", seed], found["uneven", "fedmm", seed]
        assert (one["series"], one["digest"]) == (other["series"], other["digest"])


# Interrupted ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("seconds", [1.5, 2.5, 5.5, 8.5, 15.5])
def test_when_the_time_is_up_states_are_kept_and_the_same_call_goes_on(
    desk: Desk, straight: Desk, seconds: float
) -> None:
    first = desk.reproduce(seconds=seconds)
    assert first.left > 0
    assert first.now == len(desk.lines())
    assert len(desk.kept()) in (2, 4)
    assert desk.said[-1].startswith(f"interrupted: states of unfinished runs are in {desk.states}; ")
    assert desk.reproduce() == Reproduced(first.now, first.left, 0)
    assert desk.numbers() == straight.numbers()
    assert desk.kept() == []


@pytest.mark.usefixtures("clock")
def test_time_by_time_it_comes_to_an_end(desk: Desk, straight: Desk) -> None:
    calls = 1
    while desk.reproduce(seconds=2.5).left:
        calls += 1
    assert calls > 3
    assert desk.numbers() == straight.numbers()


@pytest.mark.usefixtures("clock")
def test_seconds_are_those_of_all_sittings(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = desk.runs(panels=["even"], curves=["fedmm"])
    looks = iter(range(0, 10_000_000, 1000))
    with monkeypatch.context() as slow:
        slow.setattr("fedmm.training.batched.time", types.SimpleNamespace(perf_counter=lambda: next(looks)))
        desk.reproduce(runs, seconds=3.5)
    spent = [load_snapshot(path, torch.device("cpu"))[1].total("seconds") for path in desk.kept()]
    assert min(spent) >= 1000
    desk.reproduce(runs)
    told = [line["provenance"]["seconds"] for line in desk.lines().values()]
    assert len(told) == len(spent) == 2
    for sitting, whole in zip(sorted(spent), sorted(told), strict=True):
        assert sitting <= whole < sitting + 900


@pytest.mark.usefixtures("clock")
def test_without_any_time_nothing_is_run(desk: Desk, stacked: list[int]) -> None:
    assert desk.reproduce(seconds=0.5) == Reproduced(0, 0, 8)
    assert desk.said[-1] == "the time is up"
    assert stacked == []
    assert not desk.results.exists()


@pytest.mark.usefixtures("clock")
def test_runs_that_came_unlike_far_go_on_together(desk: Desk, straight: Desk, stacked: list[int]) -> None:
    desk.reproduce(desk.runs(panels=["even"], curves=["fedmm"]), seconds=3.5)
    desk.reproduce(desk.runs(panels=["even"], curves=["fedavg_gda"], seeds=[1]), seconds=4.5)
    assert len(desk.kept()) == 3
    stacked.clear()
    assert desk.reproduce(desk.runs(panels=["even"])) == Reproduced(0, 4, 0)
    assert sorted(stacked) == [1, 1, 2]
    assert desk.numbers() == {run: line for run, line in straight.numbers().items() if run[0] == "even"}


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("harm", ["torn", "no state at all"])
def test_a_state_that_cannot_be_gone_on_from_is_said_and_the_run_begins_again(
    desk: Desk, straight: Desk, harm: str
) -> None:
    desk.reproduce(seconds=3.5)
    broken = desk.kept()[0]
    broken.write_bytes(broken.read_bytes()[:-8] if harm == "torn" else b"hello")
    assert desk.reproduce() == Reproduced(0, 8, 0)
    told = f"{broken} is not a state from which a run can continue; remove the file; the run starts again"
    assert told in desk.said
    assert desk.numbers() == straight.numbers()
    assert desk.kept() == []


@pytest.mark.usefixtures("clock")
def test_a_state_of_what_was_changed_since_is_not_gone_on_from(desk: Desk) -> None:
    desk.reproduce(desk.runs(panels=["even"], curves=["fedmm"]), seconds=3.5)
    changed(desk.paper / "figure_1" / "even" / "fedmm.toml", "local_steps = 2", "local_steps = 3")
    desk.reproduce(desk.runs(panels=["even"], curves=["fedmm"]))
    assert [line["rounds"] for line in desk.lines().values()] == [6, 6]
    assert len(desk.kept()) == 2


@pytest.mark.parametrize("call", [1, 4, 9, 15])
def test_ctrl_c_keeps_states_and_the_same_call_goes_on(desk: Desk, straight: Desk, call: int) -> None:
    calls = 0

    def press(frame: types.FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call" and frame.f_code is Batched.advance.__code__
        if calls == call:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.setprofile(press)
    try:
        with pytest.raises(KeyboardInterrupt):
            desk.reproduce()
    finally:
        sys.setprofile(None)
        signal.signal(signal.SIGINT, before)
    assert desk.said[-1].startswith("interrupted: ")
    done = len(desk.lines())
    assert len(desk.kept()) in (2, 4)
    assert desk.reproduce() == Reproduced(done, 8 - done, 0)
    assert desk.numbers() == straight.numbers()


def test_a_crash_keeps_what_had_ended(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    stacks = 0

    class SecondCrashes(StackRun):
        def run(self, *arguments: Any) -> Any:
            nonlocal stacks
            stacks += 1
            if stacks == 2:
                raise RuntimeError("power cut")
            return super().run(*arguments)

    monkeypatch.setattr("fedmm.reproduction.run.StackRun", SecondCrashes)
    with pytest.raises(RuntimeError, match="power cut"):
        desk.reproduce()
    assert len(desk.lines()) == 4
