"""What becomes of running statistics, on a network whose normalisation layer sees the rows themselves."""

from __future__ import annotations

import pytest
import torch
from problems import CLASSES, WIDTH, adapt, mixed_client, network, rows, source_client, target_client, untrained
from torch import Tensor, nn

import fedmm
from fedmm import FedAvgGDA, FedmmError

MEAN, VAR, COUNT = "features.0.running_mean", "features.0.running_var", "features.0.num_batches_tracked"
ROWS = 24
OLD_MEAN, OLD_VAR = 5.0, 4.0


def normalised(policy: str) -> fedmm.Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        norm, linear = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 6)
    norm.running_mean.fill_(OLD_MEAN)
    norm.running_var.fill_(OLD_VAR)
    return network(norm, linear, batch_norm=policy)


def trained(policy: str, clients: list[fedmm.Client], steps: int = 1, rounds: int = 1) -> fedmm.Adapted:
    """One step is on all of a client's 24 rows, in some order."""
    algorithm = FedAvgGDA(0.1, 0.1, local_steps=steps)
    return adapt(clients, normalised(policy), algorithm=algorithm, rounds=rounds, batch_size=ROWS)


def after_one_batch(x: Tensor) -> tuple[Tensor, Tensor]:
    """Momentum 0.1: new = 0.9 old + 0.1 of the batch, whose variance counts rows - 1."""
    return 0.9 * OLD_MEAN + 0.1 * x.mean(0), 0.9 * OLD_VAR + 0.1 * x.var(0, correction=1)


def test_averaged_statistics_are_the_mean_of_the_clients() -> None:
    adapted = trained("averaged", [source_client(seed=1), target_client(seed=2)])
    means, variances = zip(*(after_one_batch(rows(seed)) for seed in (1, 2)), strict=True)
    torch.testing.assert_close(adapted.state.statistics[MEAN], torch.stack(means).mean(0))
    torch.testing.assert_close(adapted.state.statistics[VAR], torch.stack(variances).mean(0))
    assert int(adapted.state.statistics[COUNT]) == 1
    assert torch.equal(adapted.tensors()[MEAN], adapted.state.statistics[MEAN])


def test_averaged_statistics_start_the_next_round_from_the_servers() -> None:
    adapted = trained("averaged", [source_client(seed=1), target_client(seed=2)], rounds=2)
    expected = torch.full((WIDTH,), OLD_MEAN)
    for _ in range(2):
        expected = 0.9 * expected + 0.1 * (rows(1).mean(0) + rows(2).mean(0)) / 2
    torch.testing.assert_close(adapted.state.statistics[MEAN], expected)


def test_frozen_statistics_never_change() -> None:
    adapted = trained("frozen", [source_client(), target_client(), mixed_client()], steps=2, rounds=2)
    for statistics in (adapted.tensors(), adapted.state.statistics, *adapted.state.client_statistics.values()):
        assert statistics[MEAN].tolist() == [OLD_MEAN] * WIDTH
        assert statistics[VAR].tolist() == [OLD_VAR] * WIDTH
        assert int(statistics[COUNT]) == 0


def test_frozen_statistics_are_used_in_training_too() -> None:
    # The loss of the only step, before the weights move, is that of (x - 5) / 2 through the layers that follow.
    client = source_client(seed=1)
    adapted = adapt(
        [client], normalised("frozen"), fedmm.SourceOnly(), FedAvgGDA(local_steps=1), rounds=1, batch_size=ROWS
    )
    start = untrained([client], normalised("frozen"), fedmm.SourceOnly(), batch_size=ROWS).tensors()
    x, y = client.source
    inputs = (x - OLD_MEAN) / (OLD_VAR + 1e-5) ** 0.5
    hidden = inputs @ start["features.1.weight"].T + start["features.1.bias"]
    logits = hidden @ start["task_head.0.weight"].T + start["task_head.0.bias"]
    expected = nn.functional.cross_entropy(logits, y)
    assert adapted.history[0]["loss"] == pytest.approx(float(expected), rel=1e-5)
    averaged = adapt([client], normalised("averaged"), fedmm.SourceOnly(), rounds=1, batch_size=ROWS)
    assert averaged.history[0]["loss"] != pytest.approx(float(expected), rel=1e-2)


def test_local_statistics_stay_with_each_client() -> None:
    adapted = trained("local", [source_client(seed=1), target_client(seed=2)], rounds=2)
    for name, seed in (("source", 1), ("target", 2)):
        expected = torch.full((WIDTH,), OLD_MEAN)
        for _ in range(2):
            expected = 0.9 * expected + 0.1 * rows(seed).mean(0)
        torch.testing.assert_close(adapted.state.client_statistics[name][MEAN], expected)


def test_local_predictions_use_the_target_clients_statistics() -> None:
    adapted = trained("local", [source_client(), target_client("t1", seed=2), target_client("t2", seed=5)])
    (mean1, var1), (mean2, var2) = (after_one_batch(rows(seed)) for seed in (2, 5))
    mean, var = (mean1 + mean2) / 2, (var1 + var2) / 2
    model = adapted.tensors()
    torch.testing.assert_close(model[MEAN], mean)
    torch.testing.assert_close(model[VAR], var)

    x = rows(9)
    inputs = (x - mean) / (var + 1e-5).sqrt() * model["features.0.weight"] + model["features.0.bias"]
    hidden = inputs @ model["features.1.weight"].T + model["features.1.bias"]
    logits = hidden @ model["task_head.0.weight"].T + model["task_head.0.bias"]
    torch.testing.assert_close(adapted.predict_proba(x), logits.softmax(-1))


def test_local_predictions_without_target_clients_use_all() -> None:
    adapted = adapt(
        [source_client("a", seed=1), source_client("b", seed=2)],
        normalised("local"),
        fedmm.SourceOnly(),
        FedAvgGDA(local_steps=1),
        rounds=1,
        batch_size=ROWS,
    )
    expected = (after_one_batch(rows(1))[0] + after_one_batch(rows(2))[0]) / 2
    torch.testing.assert_close(adapted.tensors()[MEAN], expected)


def test_statistics_are_no_parameters() -> None:
    # norm 4 + 4, linear 4 x 6 + 6, task head 6 x 3 + 3, adversary 6 x 5 + 5 + 5 x 2 + 2
    adapted = trained("averaged", [source_client(), target_client()])
    assert adapted.state.z.numel() == 8 + 30 + 21 + 35 + 12
    assert CLASSES == 3


def test_a_batch_of_one_row_is_refused_unless_statistics_are_frozen() -> None:
    options = {"batch_size": 1, "algorithm": FedAvgGDA(local_steps=1)}
    with pytest.raises(FedmmError, match="batch_size must be at least 2 for a network with batch normalisation"):
        adapt([source_client(), target_client()], normalised("averaged"), **options)
    assert adapt([source_client(), target_client()], normalised("frozen"), **options).status == "completed"
