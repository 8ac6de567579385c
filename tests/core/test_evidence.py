"""The one rule on whether adapting may be believed to help."""

import pytest
import torch

from fedmm.core.evidence import CANNOT_JUDGE, NOT_SUPPORTED, SUPPORTED, Signals, judge_adaptation
from fedmm.core.label_shift import LabelShift

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
