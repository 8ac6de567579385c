"""What is measured while a model trains, with labels and without, the same by both engines."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from engines.batched.stacks import BATCH, STACKS, Run, cropped, pictures
from problems import CLASSES, FLOAT64, adapt, labels, mixed_client, rows, source_client, target_client, train_options
from sklearn.metrics import roc_auc_score
from torch.nn import functional
from torch.utils.data import TensorDataset

import fedmm
from fedmm import FedmmError
from fedmm.core.metrics import Accuracy, Metric
from fedmm.core.objective import Objective, Outputs
from fedmm.core.problem import WholeRows
from fedmm.core.signals.ranking import Ranking
from fedmm.data.rows import TensorRows
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackRun, StackSettings
from fedmm.training.clients import domain_odds, take_stock
from fedmm.training.evaluators import Evaluator, columns, evaluate_replicas
from fedmm.training.measured_rows import target_evaluator
from fedmm.training.predictor import RowsShown

SHOW = RowsShown(WholeRows(), (1,))
CPU = torch.device("cpu")


def probed(run: Run, probe_rows: int = 9, evaluate_every: int = 2, **options: Any) -> Adaptation:
    pair = run.pair
    given = {
        "validation": {"target": pair.target_test, "source": pair.source_test},
        "source_validation": pair.source_test,
    }
    return Adaptation(
        [run._client(share, pair) for share in run.partition.split(pair, run.seed)],
        run.network(run.seed),
        run.objective,
        run.algorithm,
        train_options(
            FLOAT64,
            rounds=run.rounds,
            batch_size=BATCH,
            seed=run.seed,
            probe_rows=probe_rows,
            best_by="",
            evaluate_every=evaluate_every,
        ),
        view=pair.view,
        **given | options,
    )


@pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])
@pytest.mark.parametrize("name", ["mixed", "batch norm local", "cropped bytes", "objective cdan", "objective mdd"])
def test_both_engines_measure_the_same(name: str, looped: bool) -> None:
    runs = [replace(run, rounds=3) for run in STACKS[name]]
    stack = StackRun(
        [probed(run) for run in runs],
        "fp32",
        StackSettings(looped=looped),
    )
    assert stack.run(3, 2) == "completed"
    columns = ["target_accuracy", "source_accuracy", "source_risk", "target_information", "target_entropy"]
    columns += ["target_bnm", "target_snd"]
    if runs[0].objective.tells_domains:
        columns[3:3] = ["dev_risk"]
        columns += ["domain_accuracy", "proxy_a_distance"]
    for replica, run in enumerate(runs):
        reference, _ = probed(run).run()
        for row, other in zip(stack.histories[replica], reference.history, strict=True):
            last = len(columns) + 1
            assert list(row)[1:last] == list(other)[1:last] == columns
            for column in columns:
                expected = other[column]
                assert row[column] == (None if expected is None else pytest.approx(expected, rel=1e-9, abs=1e-9))
        assert [row["source_risk"] is None for row in stack.histories[replica]] == [True, False, False]


def test_replicas_with_scores_of_different_kinds_are_counted_as_each_alone_and_the_network_is_evaluated_once() -> None:
    rows, generator = 3000, torch.Generator().manual_seed(0)
    y = (torch.rand(rows, generator=generator) < 0.3).long()
    normal = torch.randn(rows, generator=generator, dtype=torch.float64) + y
    core = torch.rand(rows, generator=generator) < 0.8
    scores = [2.0 * normal, -5.0 + 1e-5 * normal, torch.where(core, -5.0 + 5e-6 * normal, normal), 0.0 * normal]
    measures: dict[str, Metric] = {"target_accuracy": Accuracy(), "target_ranking": Ranking()}
    evaluators = [Evaluator(TensorRows(s.unsqueeze(-1)), y, SHOW, measures) for s in scores]
    seen: list[int] = []

    def outputs(x: torch.Tensor) -> Outputs:
        seen.append(x.shape[1])
        return Outputs(x, torch.cat([torch.zeros_like(x), x], dim=-1), x)

    names = columns(evaluators[:1])
    together = evaluate_replicas([[evaluator] for evaluator in evaluators], outputs, names)
    assert sum(seen) == rows
    for replica, (evaluator, s) in enumerate(zip(evaluators, scores, strict=True)):
        alone = evaluate_replicas([[evaluator]], outputs, names)
        for column in names:
            assert float(together[column][replica]) == pytest.approx(float(alone[column]), abs=1e-12), column
        assert float(alone["target_auroc_error"]) <= 1e-3
        assert float(alone["target_average_precision_error"]) <= 1e-3
        assert float(alone["target_auroc"]) == pytest.approx(roc_auc_score(y, s.float()), abs=1e-3)
    assert float(together["target_auroc"][3]) == 0.5


def test_the_measures_are_those_of_the_models_own_predictions() -> None:
    inputs = rows(5, 30)
    clients = [source_client(), fedmm.Client(target=inputs[:20], name="a"), fedmm.Client(target=inputs[20:], name="b")]
    model = adapt(clients, source_validation=(rows(8), labels(8)), probe_rows=100)
    last = model.history[-1]
    p = model.predict_proba(inputs).double()
    entropy = -torch.xlogy(p, p).sum(dim=1).mean()
    mean = p.mean(dim=0)
    assert last["target_entropy"] == pytest.approx(float(entropy), rel=1e-5)
    assert last["target_information"] == pytest.approx(float(-torch.xlogy(mean, mean).sum() - entropy), rel=1e-4)
    risk = functional.nll_loss(model.predict_proba(rows(8)).log(), labels(8))
    assert last["source_risk"] == pytest.approx(float(risk), rel=1e-5)
    assert "target_accuracy" not in last


def adversary(model: fedmm.Adapted, x: torch.Tensor) -> torch.Tensor:
    """The domain logits of rows, float64."""
    return model._outputs(x).adversary.double()


def test_the_adversary_is_measured_as_the_domain_classifier_that_it_is() -> None:
    # Two source clients and one target client: batches hold twice as much source, which the ratio takes out.
    clients = [source_client(), source_client("more", seed=6), target_client()]
    model = adapt(clients, source_validation=(rows(8), labels(8)), probe_rows=100, rounds=4)
    last = model.history[-1]
    in_source, in_target = (adversary(model, x) for x in (rows(8), rows(2)))
    log_ratio = [each[:, 1] - each[:, 0] + math.log(2) for each in (in_source, in_target)]
    told = float((log_ratio[0] < 0).double().mean() + (log_ratio[1] > 0).double().mean()) / 2
    assert last["domain_accuracy"] == pytest.approx(told)
    assert last["proxy_a_distance"] == pytest.approx(4 * told - 2)
    w = log_ratio[0].exp()
    loss = functional.nll_loss(model.predict_proba(rows(8)).log(), labels(8), reduction="none").double()
    pair = torch.stack([w * loss, w])
    eta = -torch.cov(pair)[0, 1] / w.var()
    assert last["dev_risk"] == pytest.approx(float((w * loss).mean() + eta * (w.mean() - 1)), rel=1e-4)


def test_without_source_rows_set_aside_the_clients_own_tell_the_domain() -> None:
    last = adapt([source_client(), target_client()], probe_rows=100).history[-1]
    assert last["domain_accuracy"] is not None
    assert "dev_risk" not in last


@pytest.mark.parametrize("objective", [fedmm.MDD(), fedmm.SourceOnly()], ids=["mdd", "source only"])
def test_what_needs_a_domain_classifier_is_left_out_where_there_is_none(objective: Objective) -> None:
    last = adapt(objective=objective, source_validation=(rows(8), labels(8))).history[-1]
    assert last["target_bnm"] is not None
    assert not {"dev_risk", "domain_accuracy", "proxy_a_distance"} & set(last)


def test_a_client_weighs_as_much_in_the_ratio_as_in_the_adversary() -> None:
    clients_data = take_stock([source_client(weight=3.0), target_client(), mixed_client()], fedmm.DANN(), CLASSES)
    # Of 9 rows of the mixed client, 6 are source; weights 3, 1 and 1 are scaled to mean 1, which cancels.
    expected = math.log((3 * 9 + 6) / (9 + 3))
    assert domain_odds(clients_data, fedmm.DANN(), 9, standing_in=False) == pytest.approx(expected)
    assert domain_odds(clients_data, fedmm.DANN(), 9, standing_in=True) is None
    mixed = clients_data[2].name
    assert domain_odds(clients_data, fedmm.DANN(), 9, standing_in=True, told={mixed: (0, 0)}) is None
    assert domain_odds(clients_data, fedmm.DANN(), 9, standing_in=True, told={mixed: (6, 3)}) == pytest.approx(expected)
    assert domain_odds(clients_data[:2], fedmm.DANN(), 9, standing_in=True) == pytest.approx(math.log(3))
    assert domain_odds(clients_data[:1], fedmm.DANN(), 9, standing_in=False) is None


def test_without_rows_to_measure_on_the_columns_are_absent() -> None:
    measured = {"source_risk", "target_information", "target_entropy", "target_snd", "domain_accuracy"}
    assert not measured & set(adapt(probe_rows=0).history[-1])
    assert "target_entropy" not in adapt([source_client()], objective=fedmm.SourceOnly()).history[-1]


def test_training_without_adaptation_is_measured_on_the_target_too() -> None:
    model = adapt(objective=fedmm.SourceOnly())
    assert model.history[-1]["target_information"] is not None


def test_measuring_changes_no_training() -> None:
    silent = adapt(probe_rows=0)
    measured = adapt(probe_rows=5, source_validation=(rows(8), labels(8)))
    assert torch.equal(silent.state.z, measured.state.z)


@pytest.mark.parametrize("most", [1, 2, 7, 29, 30, 31])
def test_clients_are_probed_in_proportion_to_what_they_hold(most: int) -> None:
    x = torch.arange(30.0).unsqueeze(1)
    parts = {"a": range(0, 5), "b": range(5, 20), "c": range(20, 30)}
    held = {name: TensorRows(x, index=torch.tensor(part)) for name, part in parts.items()}
    evaluator = target_evaluator(held, most, 0, SHOW, CPU, 2)
    assert evaluator is not None
    chosen = evaluator.take(slice(None)).flatten().tolist()
    assert len(chosen) == len(set(chosen)) == len(evaluator) == min(most, 30)
    for part in parts.values():
        assert abs(sum(int(row) in part for row in chosen) - min(most, 30) * len(part) / 30) <= 1
    copied = target_evaluator(
        {n: TensorRows(x[part.start : part.stop]) for n, part in parts.items()}, most, 0, SHOW, CPU, 2
    )
    assert copied is not None
    assert copied.take(slice(None)).flatten().tolist() == chosen


def test_the_seed_chooses_the_rows_that_are_probed() -> None:
    held = {"a": TensorRows(torch.arange(100.0).unsqueeze(1))}
    evaluators = [target_evaluator(held, 10, seed, SHOW, CPU, 2) for seed in (0, 0, 1)]
    first, again, other = (evaluator.take(slice(None)) for evaluator in evaluators if evaluator is not None)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_target_rows_of_a_dataset_are_probed() -> None:
    class Squares(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> torch.Tensor:
            return rows(3, 12)[index]

    model = adapt([source_client(), fedmm.Client(target=Squares())], probe_rows=100)
    p = model.predict_proba(rows(3, 12)).double()
    assert model.history[-1]["target_entropy"] == pytest.approx(float(-torch.xlogy(p, p).sum(dim=1).mean()), rel=1e-5)


def test_crops_of_the_centre_are_measured() -> None:
    run = replace(STACKS["cropped"][0], pair=cropped(pictures))
    model, _ = probed(run, probe_rows=100, evaluate_every=1).run()
    p = model.predict_proba(run.pair.view.evaluate(run.pair.target.x))
    assert model.history[-1]["target_entropy"] == pytest.approx(float(-torch.xlogy(p, p).sum(dim=1).mean()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"probe_rows": -1}, "probe_rows"),
        ({"source_validation": (rows(4, 4), torch.tensor([0, 1, 2, CLASSES]))}, "source_validation holds label"),
        ({"source_validation": (rows(4)[:, :2], labels(4))}, "source_validation holds rows of shape"),
        ({"source_validation": rows(4)}, "source_validation"),
        ({"validation": {"target": (rows(4)[:, :2], labels(4))}}, "validation 'target' holds rows of shape"),
    ],
)
def test_rows_that_cannot_be_measured_on_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        adapt([source_client(), target_client()], **options)


def test_a_tensor_dataset_may_be_the_validation() -> None:
    model = adapt(validation=TensorDataset(rows(6), labels(6)))
    assert model.history[-1]["target_accuracy"] is not None
