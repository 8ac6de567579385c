"""By what a model can be chosen, and that a choice with target labels says so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from fedmm import FedmmError
from fedmm.core.signals.label_shift import LabelShift
from fedmm.core.signals.validators import (
    CANNOT_JUDGE,
    NOT_SUPPORTED,
    ORACLE,
    SUPPORTED,
    VALIDATORS,
    Signals,
    judge_adaptation,
    validator,
)
from fedmm.reporting.html.chosen import LOWER_IS_BETTER, is_oracle

ROOT = Path(__file__).parents[3]


def test_what_looks_at_target_labels_is_called_an_oracle() -> None:
    for name, each in VALIDATORS.items():
        assert each.name == name
        assert each.oracle == name.startswith(ORACLE) == (each.column in ("target_accuracy", "target_auroc"))


def test_a_choice_with_target_labels_must_say_so() -> None:
    with pytest.raises(FedmmError, match="would choose with target labels; set best_by = 'oracle_target_accuracy'"):
        validator("target_accuracy", "best_by")
    assert validator("oracle_target_accuracy", "best_by").oracle


def test_the_page_lists_all_of_them_and_tells_what_was_measured() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benchmarks" / "results" / "validators.json").read_text(encoding="utf-8"))["digits"]
    for name, each in VALIDATORS.items():
        assert f"| `{name}` | {'higher' if each.higher else 'lower'} |" in page
        if "two classes" in each.needs or "no target" in each.needs:
            continue  # digits have ten, and a target
        found = measured["validators"][name]
        chosen = (found[f"accuracy_of_chosen_{what}"] for what in ("checkpoint", "setting", "setting_and_checkpoint"))
        numbers = [f"{found['within']:+.2f}", f"{found['across']:+.2f}", *(f"{value:.1%}" for value in chosen)]
        assert f"| `{name}` | {' | '.join(numbers)} |" in page


def test_an_unknown_validator_is_named_with_the_nearest() -> None:
    with pytest.raises(FedmmError, match=r"unknown stop_by 'target_entropie'; did you mean 'target_entropy'\?"):
        validator("target_entropie", "stop_by")


def test_reports_agree_on_which_way_is_better() -> None:
    """They know the columns alone, as they read files."""
    for each in VALIDATORS.values():
        assert (each.column in LOWER_IS_BETTER) != each.higher
        assert is_oracle(each.name) == each.oracle


@pytest.mark.parametrize(("name", "up"), [("target_information", True), ("source_risk", False)])
def test_better_is_higher_or_lower_by_enough(name: str, up: bool) -> None:
    each = VALIDATORS[name]
    assert each.better(2.0, 1.0) == up
    assert each.better(1.0, 2.0) == (not up)
    assert each.better(1.0, None)
    assert not each.better(1.0, 1.0)
    assert not each.better(1.5, 1.0, by=0.5)
    assert not any(each.better(value, before) for value in (math.nan, math.inf) for before in (None, 1.0))


EVEN = torch.tensor([0.5, 0.5])
NONE = LabelShift(EVEN, EVEN, 0.01, True, 0.0, 0.05)
LARGE = LabelShift(EVEN, torch.tensor([0.2, 0.8]), 0.3, True, 0.2, 0.4)
ROUGH = LabelShift(EVEN, EVEN, 0.02, False, 0.0, 0.4, ("there are fewer than 50 target rows",))
SHIFTED_INPUTS = LabelShift(EVEN, torch.tensor([0.2, 0.8]), 0.3, False, 0.2, 0.4, ("inputs have shifted too",))
PLAIN = Signals({"target_information": [0.30, 0.31, 0.32], "target_bnm": [0.80, 0.81, 0.82]}, [0.20, 0.21, 0.22])
BETTER = Signals({"target_information": [0.40, 0.41, 0.42], "target_bnm": [0.90, 0.91, 0.92]}, [0.20, 0.21, 0.22])


def test_everything_that_the_rule_asks_for_supports_adapting():
    verdict = judge_adaptation(PLAIN, BETTER, NONE)
    assert verdict.supported is True
    assert verdict.sentence.startswith(SUPPORTED)


@pytest.mark.parametrize(
    ("adapted", "shift", "because"),
    [
        (BETTER, LARGE, "class mix is estimated to differ"),
        (Signals(BETTER.validators, [0.30, 0.31, 0.32]), NONE, "source_risk rose"),
        (Signals(BETTER.validators, [0.20, float("nan"), 0.2]), NONE, "source_risk rose"),
        (Signals({**BETTER.validators, "target_bnm": [0.9, 0.815, 0.9]}, [0.2] * 3), NONE, "target_bnm is not higher"),
        (PLAIN, NONE, "target_information is not higher"),
    ],
)
def test_one_reason_against_is_enough(adapted, shift, because):
    verdict = judge_adaptation(PLAIN, adapted, shift)
    assert verdict.supported is False
    assert verdict.sentence.startswith(NOT_SUPPORTED)
    assert because in verdict.sentence


@pytest.mark.parametrize(
    ("source_only", "adapted", "shift", "because"),
    [
        (PLAIN, BETTER, None, "was not estimated"),
        (PLAIN, BETTER, ROUGH, "class mix may differ"),
        (PLAIN, BETTER, SHIFTED_INPUTS, "a rough estimate, which labels of a few dozen target rows would settle"),
        (PLAIN, Signals(BETTER.validators), NONE, "no labelled source rows are set aside"),
        (PLAIN, Signals({"target_information": [0.4] * 3}, [0.2] * 3), NONE, "target_bnm was not measured"),
        (
            Signals({name: values[:2] for name, values in PLAIN.validators.items()}, [0.2] * 2),
            BETTER, NONE, "3 seeds of each method are needed, not 2",
        ),
        (Signals({}), Signals({}), None, "was not measured"),
    ],
)  # fmt: skip
def test_what_is_missing_cannot_be_judged(source_only, adapted, shift, because):
    verdict = judge_adaptation(source_only, adapted, shift)
    assert verdict.supported is None
    assert verdict.sentence.startswith(CANNOT_JUDGE)
    assert because in verdict.sentence


def test_a_reason_against_outweighs_what_is_missing():
    assert judge_adaptation(Signals({}), Signals({}), LARGE).supported is False
