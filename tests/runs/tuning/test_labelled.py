"""A tuning without a target: candidates by metric, a choice by rows set aside, and no word on adaptation."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from fedmm import FedmmError, experiment, tune
from fedmm.reporting.html.tuning import tuning_section
from fedmm.reporting.tuned import read_tuned
from fedmm.runs import sweep as sweeping
from fedmm.runs.compare import compare_methods
from fedmm.runs.tuning.candidates import derive_labelled_candidates
from fedmm.runs.tuning.criteria import ByValidation, metric_of
from fedmm.runs.tuning.ranking import Measured
from fedmm.runs.tuning.rung_results import Results
from fedmm.training.batched import StackSettings
from fedmm.training.stack_settings import Tuned

TABLES: dict[str, Any] = {
    "run": {"rounds": 2, "batch_size": 8, "threads": 1, "keep_rows": False},
    "data": {"name": "unbalanced"},
    "partition": {"name": "label_sorted", "clients": 2},
    "model": {"name": "mlp", "hidden": [3]},
    "objective": {"name": "auc"},
    "algorithm": {"name": "fedmm", "local_steps": 1, "lr_min": 0.02, "lr_max": 0.02},
}
WORST = {
    **TABLES,
    "objective": {"name": "source_only"},
    "algorithm": {"name": "afl", "lr_weights": 0.1, "local_steps": 2},
}


@pytest.mark.parametrize(
    ("tables", "given", "metric"),
    [
        (TABLES, "", "auc"),
        (TABLES, "worst_site", "worst_site"),
        (WORST, "", "worst_site"),
        ({**WORST, "algorithm": {"name": "fedmm"}}, "", "accuracy"),
    ],
)
def test_the_metric_is_what_the_experiment_trains_for(tables: dict[str, Any], given: str, metric: str) -> None:
    assert metric_of(experiment(tables), given) == metric


def test_candidates_vary_algorithms_rates_penalties_and_weights_of_sites() -> None:
    found = derive_labelled_candidates(TABLES, "auc")
    assert list(found)[:2] == ["as given", "federated averaging"]
    assert {each.algorithm.name for each in found.values()} >= {"coda_plus", "codasca", "fedmm", "fedmm_smoothed"}
    assert found["federated averaging"].objective.name == "source_only"
    weighted = [each for each in found.values() if getattr(each.objective, "class_weights", "") == "balanced"]
    assert {each.algorithm.name for each in weighted} == {"fedavg_gda", "fedmm"}
    assert {"fedmm lr=0.06", "fedmm penalty=2", "codasca", "codasca lr=0.006"} <= set(found)
    worst = derive_labelled_candidates(WORST, "worst_site")
    assert {"afl lr_weights=0.3", "fedmm_agnostic", "q_ffl q=5", "drfa"} <= set(worst)
    assert all(each.objective.name == "source_only" for each in worst.values())
    assert len({repr(each) for each in worst.values()}) == len(worst)


def field(**values: list[float]) -> Results:
    """By candidate, the validation accuracy of each seed; nan for a run that diverged."""
    runs = {
        label: [
            Measured(diverged=True) if math.isnan(v) else Measured({"validation_accuracy": v, "source_risk": 1 - v})
            for v in own
        ]
        for label, own in values.items()
    }
    return Results({label.replace("_", " "): own for label, own in runs.items()}, 1, None)


def test_the_highest_mean_wins_and_the_sentence_says_by_how_much() -> None:
    criterion = ByValidation("accuracy")
    results = field(as_given=[0.7, 0.72], one=[0.9, 0.9], two=[0.8, 0.99])
    choice = criterion.choose(results, {})
    assert (choice.label, choice.adapted, choice.supported) == ("one", None, None)
    assert choice.sentence == (
        "Use one: validation_accuracy 0.900 (0.900 to 0.900 over 2 seeds), the best of 3 finalists on rows set aside; "
        "0.19 above the 0.710 (0.700 to 0.720 over 2 seeds) of the experiment as given."
    )
    near = criterion.choose(field(as_given=[0.7, 0.9], one=[0.8, 0.9]), {})
    assert near.sentence.endswith("; the seeds overlap, so it may be chance.")
    assert criterion.choose(field(as_given=[0.9], one=[0.8]), {}).sentence == (
        "Keep the experiment as given: validation_accuracy 0.900, the best of 2 finalists on rows set aside; the next "
        "is one, 0.1 below, which one seed cannot distinguish from chance."
    )


def test_what_diverged_does_not_win_and_without_anything_the_experiment_stays() -> None:
    criterion, nan = ByValidation("accuracy"), float("nan")
    results = field(as_given=[nan, 0.9], one=[0.5, 0.6])
    vetoes, ranks = criterion.judge(results.measured, 2)
    assert vetoes == {"as given": "1 of 2 runs diverged"}
    assert list(ranks) == ["one", "as given"]
    choice = criterion.choose(results, vetoes)
    assert choice.label == "one"
    assert choice.sentence.endswith("; of the experiment as given, 1 of 2 runs diverged.")
    nothing = field(as_given=[nan])
    none = criterion.choose(nothing, criterion.judge(nothing.measured, 2)[0])
    assert none.label == ""
    assert none.sentence.startswith("Nothing could be trained: 1 of 1 candidates diverged; use smaller learning rates")
    unmeasured = Results({"as given": [Measured()]}, 1, None)
    assert criterion.choose(unmeasured, criterion.judge(unmeasured.measured, 2)[0]).label == "as given"
    assert criterion.choose(None, {}).sentence.endswith("; the experiment as given stays.")


def test_where_two_are_even_the_next_signal_decides_and_then_what_was_given() -> None:
    def runs(accuracy: float, risk: float) -> list[Measured]:
        return [Measured({"validation_accuracy": accuracy, "source_risk": risk})]

    criterion = ByValidation("accuracy")
    results = Results({"as given": runs(0.9, 0.5), "one": runs(0.9, 0.4), "two": runs(0.9, 0.5)}, 1, None)
    assert list(criterion.judge(results.measured, 2)[1]) == ["one", "as given", "two"]
    said = criterion.choose(results, {}).sentence
    assert "even in validation_accuracy, and by source_risk 0.1 below the 0.500 of the experiment as given" in said


def test_a_tuning_leaves_an_experiment_and_says_nothing_of_adaptation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping, "choose_settings", lambda *_: Tuned(StackSettings(), 1, 1, "as the test says"))
    tables = {**TABLES, "tune": {"algorithm.lr_max": [0.05]}}
    found = tune(tables, seeds=2, out=tmp_path / "tune")
    assert found.adapted is None
    assert not (tmp_path / "tune" / "adapted.toml").exists()
    assert set(found.table[0]["signals"]) == {"validation_auroc", "validation_average_precision"}
    tuned = read_tuned(tmp_path / "tune")
    assert tuned.metric == "auc"
    assert "validation_auroc" in str(tuning_section(tuned).parts)
    assert found.notes == []  # the data set keeps rows to choose by apart from those to test on
    for text in (found.sentence, str(tuning_section(tuned).parts), (tmp_path / "tune" / "tuned.toml").read_text()):
        assert "adapt" not in text
        assert "source only" not in text
    again = tune(tables, seeds=2, out=tmp_path / "tune", resume=True)
    assert again.label == found.label
    with pytest.raises(FedmmError, match="has other candidates or options"):
        tune(tables, seeds=2, metric="accuracy", out=tmp_path / "tune", resume=True)


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"metric": "f1"}, "--metric must be one of accuracy, auc, worst_site, not 'f1'"),
        ({}, {"metric": "worst_site"}, "is judged by validation_worst_accuracy, which needs labelled source rows"),
        ({"data": {"name": "unbalanced", "validation_share": 0.0}}, {}, "is judged by validation_auroc, which needs"),
        ({"objective": {"name": "dann"}}, {}, "dann adapts to a target, and the data has none; use source_only or auc"),
        ({"tune": {"objective.name": ["mdd"]}}, {}, "mdd adapts to a target, and the data has none"),
        ({"transmission": {"name": "gaussian"}}, {}, "adds noise to updates"),
        ({"data": {"name": "moons"}}, {"metric": "auc"}, "--metric is for experiments without a target"),
        ({"sweep": {"run.seed": [1]}}, {}, "is for `fedmm sweep`"),
    ],
)
def test_what_cannot_be_judged_is_refused(changes: dict[str, Any], options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FedmmError, match=sentence.replace("(", r"\(")):
        tune({**TABLES, **changes}, **options)


def test_a_class_without_a_row_to_choose_by_is_refused_before_anything_is_trained(tmp_path: Path) -> None:
    lines = [f"{n % 7},{n % 5},{'ill' if n in (3, 40) else 'well'}" for n in range(80)]
    (tmp_path / "few.csv").write_text("\n".join(["a,b,state", *lines]))
    data = {"name": "table", "file": str(tmp_path / "few.csv"), "label": "state", "labelled_only": True}
    data |= {"classes": {"well": "well", "ill": "ill"}, "held_out": 0.2, "validation_share": 0.2}
    tables = {**TABLES, "data": data, "partition": {"name": "iid", "clients": 2}}
    sentence = "needs rows of both classes to choose by, and there is none of 'ill'; add rows of it, set aside"
    with pytest.raises(FedmmError, match=sentence):
        tune(tables, seeds=1, out=tmp_path / "t")
    with pytest.raises(FedmmError, match=sentence):
        compare_methods(tables, tmp_path / "c", title="few", seeds=1)
    assert not list(tmp_path.glob("[tc]/*"))
