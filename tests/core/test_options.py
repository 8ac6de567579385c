"""The options of a training: what each affects, and that a report needs no torch to know it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
from typing import get_args

import pytest

from fedmm import FedmmError, TrainOptions
from fedmm.core.options import Affects, options_that_affect
from fedmm.reporting.html.configurations import _ALIKE
from fedmm.training.fingerprint import _MAY_DIFFER, differences

PLACES = {
    "actors", "ray_address", "durable", "checkpoint_every", "checkpoint_seconds", "keep_checkpoints", "track",
    "keep_rows",
}  # fmt: skip


@pytest.mark.parametrize("option", [option.name for option in fields(TrainOptions)])
def test_every_option_says_what_it_affects(option: str) -> None:
    known = {each.name: each for each in fields(TrainOptions)}
    assert known[option].metadata["affects"] in get_args(Affects)
    assert sum(option in options_that_affect(what) for what in get_args(Affects)) == 1


def test_defaults_are_those_of_the_options() -> None:
    everything = options_that_affect(*get_args(Affects))
    assert TrainOptions(**everything) == TrainOptions()


def test_a_resumed_run_may_differ_in_names_places_and_the_best_model() -> None:
    assert set(_MAY_DIFFER) == {"label", "best_by", *PLACES}
    assert differences({"run": {"label": "one", "seed": 0}}, {"run": {"label": "other", "seed": 0}}) == []
    assert differences({"run": {"seed": 0}}, {"run": {"seed": 1}}) == ["run.seed was 0, now 1"]


def test_a_report_takes_runs_together_that_differ_in_seed_place_and_rounding() -> None:
    assert set(_ALIKE) == {"seed", "label", "engine", "device", "threads", "stacked", *PLACES}


def test_options_need_no_torch() -> None:
    code = "import sys, fedmm.core.options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_options_are_checked() -> None:
    with pytest.raises(FedmmError, match="patience must be at least 1, not 0"):
        TrainOptions(patience=0)
    with pytest.raises(FedmmError, match="rounds must be at least 1, not 0"):
        replace(TrainOptions(), rounds=0)
