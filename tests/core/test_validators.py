"""By what a model can be chosen, and that a choice with target labels says so."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from fedmm import FedmmError
from fedmm.core.validators import ORACLE, VALIDATORS, validator
from fedmm.reporting.html.headline import LOWER_IS_BETTER, is_oracle

ROOT = Path(__file__).parents[2]


def test_what_looks_at_target_labels_is_called_an_oracle() -> None:
    for name, each in VALIDATORS.items():
        assert each.name == name
        assert each.oracle == name.startswith(ORACLE) == (each.column == "target_accuracy")


def test_a_choice_with_target_labels_must_say_so() -> None:
    with pytest.raises(FedmmError, match="would choose with target labels; say best_by = 'oracle_target_accuracy'"):
        validator("target_accuracy", "best_by")
    assert validator("oracle_target_accuracy", "best_by").oracle


def test_the_page_lists_all_of_them_and_tells_what_was_measured() -> None:
    page = (ROOT / "docs" / "choosing.md").read_text(encoding="utf-8")
    measured = json.loads((ROOT / "benchmarks" / "results" / "validators.json").read_text(encoding="utf-8"))["digits"]
    for name, each in VALIDATORS.items():
        assert f"| `{name}` | {'higher' if each.higher else 'lower'} |" in page
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
