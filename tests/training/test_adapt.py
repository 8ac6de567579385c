from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from problems import (
    CLASSES,
    FLOAT64,
    WIDTH,
    adapt,
    labels,
    mixed_client,
    network,
    rows,
    source_client,
    target_client,
    untrained,
)
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import fedmm
from fedmm import Client, FedAvgGDA, FedMM, FedmmError, SourceOnly
from fedmm.core.engine import FederatedState, RoundRecord
from fedmm.core.seeding import rows as drawn
from fedmm.training.callbacks import OnRound
from fedmm.training.clients import batch_split, domain_odds, take_stock
from fedmm.training.loop import RoundEvaluation, ctrl_c_waits, train
from fedmm.training.problem import AdaptationClient, adaptation_problem

# Whatever form the rows are in ----------------------------------------------------------------------------------------


class Listed(Dataset[Any]):
    """A map-style dataset of given items."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


X, Y, T = rows(1), labels(1), rows(2)
SOURCES = {
    "numpy": (X.numpy(), Y.numpy()),
    "numpy float64": (X.double().numpy(), Y.numpy().astype(np.int32)),
    "TensorDataset": TensorDataset(X, Y),
    "dataset of tensors": Listed(list(zip(X, Y, strict=True))),
    "dataset of arrays": Listed([(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)]),
}
TARGETS = {
    "numpy": T.numpy(),
    "numpy float64": T.double().numpy(),
    "TensorDataset": TensorDataset(T, Y),
    "dataset of tensors": Listed(list(T)),
    "dataset of arrays": Listed([(t.numpy(), "a label nobody looks at") for t in T]),
}


@pytest.mark.parametrize("form", SOURCES)
def test_arrays_tensors_and_datasets_give_the_same_result(form: str) -> None:
    reference = adapt([Client(source=(X, Y), name="s"), Client(target=T, name="t")])
    same = adapt([Client(source=SOURCES[form], name="s"), Client(target=TARGETS[form], name="t")])
    assert torch.equal(same.state.z, reference.state.z)
    assert torch.equal(torch.as_tensor(same.predict_proba(TARGETS[form])), reference.predict_proba(T))


def test_the_users_rows_are_left_alone() -> None:
    x, y, t = X.clone(), Y.clone(), T.clone()
    adapt([Client(source=(x, y), target=t)], network(centre="train_mean"))
    assert torch.equal(x, X)
    assert torch.equal(y, Y)
    assert torch.equal(t, T)


# Which rows a step sees -----------------------------------------------------------------------------------------------


class Watched(Dataset[Any]):
    """Notes which rows are read."""

    def __init__(self, x: Tensor, y: Tensor | None = None) -> None:
        self.x, self.y = x, y
        self.seen: list[int] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.seen.append(index)
        return self.x[index] if self.y is None else (self.x[index], self.y[index])


def test_rows_are_drawn_by_seed_name_and_domain_and_run_on_across_rounds() -> None:
    # 24 source and 12 target rows share a batch of 9 as 6 and 3; 2 rounds of 2 steps see 24 and 12 rows: one epoch.
    source, target = Watched(rows(3), labels(3)), Watched(rows(4, 12))
    client = Client(source=source, target=target, name="site")
    untrained([client], batch_size=9, seed=5)
    looks = len(source.seen), len(target.seen)  # rows that are read to learn their shape
    source.seen.clear()
    target.seen.clear()

    adapt([client], rounds=2, batch_size=9, seed=5)

    trained_on = source.seen[looks[0] :], target.seen[looks[1] :]
    assert trained_on[0] == drawn((5, "rows", "site", "source"), 24, 0, 24, "cpu").tolist()
    assert trained_on[1] == drawn((5, "rows", "site", "target"), 12, 0, 12, "cpu").tolist()
    assert [sorted(seen) for seen in trained_on] == [list(range(24)), list(range(12))]


def test_renaming_a_client_changes_its_draws() -> None:
    named, renamed = (adapt([source_client(name), target_client()]).state.z for name in ("source", "site-7"))
    assert not torch.equal(named, renamed)


@pytest.mark.parametrize(
    ("source", "target", "batch", "split"),
    [(24, 12, 9, (6, 3)), (10, 10, 7, (4, 3)), (1000, 1, 8, (7, 1)), (1, 1000, 8, (1, 7)), (5, 0, 8, (8, 0))],
)
def test_a_batch_is_split_in_proportion_with_at_least_one_of_each(
    source: int, target: int, batch: int, split: tuple[int, int]
) -> None:
    # (10, 10, 7): 3.5 of each is rounded to even, 4 and 3.
    assert batch_split(batch, source, target) == split


def test_restraint_knows_the_share_of_source_rows_in_all_batches_wherever_a_client_runs() -> None:
    objective = fedmm.DANN(restrained=True)
    clients_data = take_stock([source_client(), mixed_client(), target_client()], objective, CLASSES)
    options: dict[str, Any] = {"seed": 0, "batch_size": 8}
    problem, _ = adaptation_problem(clients_data, network(), objective, **options)
    split = [batch_split(8, *(0 if held is None else len(held) for held in (h.source, h.target))) for h in clients_data]
    share = sum(source for source, _ in split) / 24
    odds = domain_odds(clients_data, objective, 8, standing_in=False)
    alone, _ = adaptation_problem(clients_data[1:2], network(), objective, mean=0.0, odds=odds, **options)
    for client in [*problem.clients, *alone.clients]:
        assert isinstance(client, AdaptationClient)
        assert client.objective.source_share == pytest.approx(share, abs=1e-12)
    unknown, _ = adaptation_problem(clients_data[:1], network(), objective, mean=0.0, **options)
    assert unknown.clients[0].objective.source_share == 0.5  # type: ignore[attr-defined]


# One seed, one result -------------------------------------------------------------------------------------------------


def test_how_often_it_is_evaluated_does_not_change_a_run() -> None:
    model = network(torch.nn.BatchNorm1d(WIDTH), torch.nn.Linear(WIDTH, 6), task_hidden=(5,), head_dropout=0.5)
    options = {"model": model, "rounds": 6, "clients": [mixed_client(), target_client()]}
    silent = adapt(**options)
    for every in (1, 2, 4, 100):
        watched = adapt(validation=(rows(8), labels(8)), evaluate_every=every, **options)
        assert torch.equal(watched.state.z, silent.state.z)
        assert all(torch.equal(s, silent.state.statistics[name]) for name, s in watched.state.statistics.items())
        measured = [row["round"] for row in watched.history if row.get("target_accuracy") is not None]
        assert measured == sorted({*range(every, 7, every), 6})


def test_unlike_seeds_differ_in_heads_and_in_batches() -> None:
    starts = [untrained(seed=seed).tensors()["task_head.0.weight"] for seed in (0, 1)]
    assert not torch.equal(*starts)
    head, adversary = torch.nn.Linear(6, CLASSES), torch.nn.Linear(6, 2)
    model = network(task_head=head, adversary=adversary)  # no weights to draw: batches alone differ
    for one, other in zip(*(untrained(model=model, seed=seed).tensors().values() for seed in (0, 1)), strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(*(adapt(model=model, seed=seed).state.z for seed in (0, 1)))


def test_accuracy_is_the_share_of_rows_whose_label_is_predicted() -> None:
    x, y = rows(8), labels(8)
    adapted = adapt(validation={"target": (x, y), "held_out": (x[:5], y[:5])}, rounds=2)
    right = adapted.predict(x) == y
    assert adapted.history[-1]["target_accuracy"] == pytest.approx(float(right.double().mean()))
    assert adapted.history[-1]["held_out_accuracy"] == pytest.approx(float(right[:5].double().mean()))
    assert adapted.history.last("target_accuracy") == adapted.history[-1]["target_accuracy"]


def test_a_model_learns_what_there_is_to_learn() -> None:
    # Three well separated clusters, the target's shifted a little: far above 1/3.
    centres = 4.0 * torch.eye(WIDTH)[:CLASSES]
    y = labels(1, 120)
    x = centres[y] + 0.3 * rows(1, 120)
    target = centres[y] + 0.3 * rows(2, 120) + 0.3
    adapted = adapt(
        [Client(source=(x, y), name="a"), Client(target=target, name="b")],
        objective=fedmm.DANN(nu=0.1),
        algorithm=FedMM(0.1, 0.1, local_steps=5),
        rounds=20,
        batch_size=32,
        validation=(target, y),
    )
    assert adapted.history[-1]["target_accuracy"] > 0.9


def test_rates_by_group_stretch_each_groups_step() -> None:
    # One step of FedSGDA is rate x field, so twice the rate of a group is twice its step.
    start = untrained(dtype=FLOAT64).tensors()
    rates = [
        fedmm.FedSGDA(0.1, 0.1),
        fedmm.FedSGDA({"features": 0.2, "task_head": 0.3}, {"adversary.2": 0.4, "*": 0.5}),
    ]
    plain, grouped = (adapt(algorithm=algorithm, rounds=1, dtype=FLOAT64).tensors() for algorithm in rates)
    factors = {"features": 2.0, "task_head": 3.0, "adversary.0": 5.0, "adversary.2": 4.0}
    for group, factor in factors.items():
        for name in (n for n in start if n.startswith(group)):
            step = plain[name] - start[name]
            assert float(step.norm()) > 0
            torch.testing.assert_close(grouped[name] - start[name], factor * step, rtol=1e-9, atol=1e-12)


def test_the_precision_asked_for_is_used_throughout() -> None:
    adapted = adapt(dtype=FLOAT64)
    assert {tensor.dtype for tensor in adapted.tensors().values()} == {FLOAT64}
    single = adapt().state.z
    torch.testing.assert_close(adapted.state.z.float(), single, rtol=1e-3, atol=1e-5)


def test_clients_and_a_network_are_enough() -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"batch_size": 8, "progress": False}
    clients = [source_client(), target_client()]
    least = fedmm.adapt(clients, network(), **given, on_round=stop)
    most = fedmm.adapt(clients, network(), fedmm.DANN(), fedmm.RestrainedFedMM(), 2, **given)
    assert least.status == "interrupted", "there are 300 rounds"
    assert torch.equal(least.state.z, most.state.z)
    assert all(own.keys() == {"dual"} for own in least.state.clients.values())


# What stops it --------------------------------------------------------------------------------------------------------


def stop_at(last: int) -> Any:
    def on_round(row: dict[str, Any]) -> None:
        if row["round"] == last:
            raise KeyboardInterrupt

    return on_round


def test_an_interrupt_after_round_k_keeps_round_k() -> None:
    stopped = adapt(rounds=6, on_round=stop_at(3))
    assert stopped.status == "interrupted"
    assert stopped.history["round"] == [1, 2, 3]
    assert stopped.state.round == 3
    assert torch.equal(stopped.state.z, adapt(rounds=3).state.z)


def test_an_interrupt_in_round_k_keeps_the_rounds_before_it() -> None:
    class Interrupting(Watched):
        def __getitem__(self, index: int) -> Any:
            if len(self.seen) == limit:
                raise KeyboardInterrupt
            return super().__getitem__(index)

    limit = math.inf
    dataset = Interrupting(X, Y)
    clients = [Client(source=dataset, name="source"), target_client()]
    untrained(clients)
    looks = len(dataset.seen)
    dataset.seen.clear()
    limit = looks + 2 * 2 * 8 + 5  # two rounds of two steps of 8 rows, and a little of the third
    stopped = adapt(clients, rounds=6)
    assert stopped.status == "interrupted"
    assert stopped.history["round"] == [1, 2]
    limit = math.inf
    assert torch.equal(stopped.state.z, adapt(clients, rounds=2).state.z)
    assert stopped.predict(T).shape == (24,)


class Counting:
    """An engine whose rounds do nothing."""

    def start(self) -> FederatedState:
        return FederatedState(0, {"z": torch.zeros(1)}, {})

    def run_round(self, state: FederatedState) -> tuple[FederatedState, RoundRecord]:
        return FederatedState(state.round + 1, state.server, {}), RoundRecord(state.round + 1, 0.0, 0.0, 0.0, 0, 0, 0.0)


def test_an_interrupt_during_an_evaluation_keeps_state_and_history_in_step() -> None:
    def evaluate(state: FederatedState) -> dict[str, float]:
        if state.round == 3:
            raise KeyboardInterrupt
        return {"target_accuracy": 0.5}

    training = train(Counting(), 5, evaluation=RoundEvaluation(evaluate))
    assert training.status == "interrupted"
    assert training.state.round == len(training.history)


@pytest.fixture
def ctrl_c() -> Iterator[Callable[[], None]]:
    """Presses Ctrl-C as a terminal delivers it, whatever this process was started by."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


def test_ctrl_c_waits_until_a_finished_round_is_recorded(ctrl_c: Callable[[], None]) -> None:
    recorded = []

    def on_round(row: dict[str, Any]) -> None:
        if row["round"] == 3:
            ctrl_c()
        recorded.append(row["round"])

    training = train(Counting(), 5, [OnRound(on_round)])
    assert training.status == "interrupted"
    assert recorded == training.history["round"] == [1, 2, 3]
    assert training.state.round == 3


def test_a_second_ctrl_c_does_not_wait(ctrl_c: Callable[[], None]) -> None:
    passed = []

    def on_round(row: dict[str, Any]) -> None:
        ctrl_c()
        passed.append(row["round"])
        ctrl_c()
        passed.append("never")

    assert train(Counting(), 5, [OnRound(on_round)]).status == "interrupted"
    assert passed == [1]


def test_what_a_callback_raises_is_passed_on_and_ctrl_c_is_what_it_was(ctrl_c: Callable[[], None]) -> None:
    def on_round(row: dict[str, Any]) -> None:
        raise RuntimeError("the user's own mistake")

    with pytest.raises(RuntimeError, match="the user's own mistake"):
        train(Counting(), 5, [OnRound(on_round)])
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_ctrl_c_is_not_lost_when_what_it_waits_for_fails(ctrl_c: Callable[[], None]) -> None:
    def press_and_fail() -> None:
        ctrl_c()
        raise RuntimeError

    with pytest.raises(KeyboardInterrupt), ctrl_c_waits():
        press_and_fail()


def test_rounds_run_in_a_thread_as_well() -> None:
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(train, Counting(), 2, [OnRound(lambda row: None)]).result()
    assert training.status == "completed"


def test_divergence_is_told_with_the_last_good_model() -> None:
    # Rates this large overflow float32 after some rounds.
    algorithm = FedAvgGDA(1e9, 1e9, local_steps=2)
    clients = [mixed_client("site-a"), target_client("site-b")]
    with pytest.raises(fedmm.Diverged) as caught:
        adapt(clients, algorithm=algorithm, rounds=50)
    error, partial = caught.value, caught.value.partial
    assert error.client in ("site-a", "site-b")
    assert f"client {error.client!r} produced non-finite parameters in round {error.round}" in str(error)
    assert partial.status == "diverged"
    assert len(partial.history) == partial.state.round == error.round - 1
    assert bool(partial.state.z.isfinite().all())
    assert partial.predict(T).shape == (24,)


# Refusals -------------------------------------------------------------------------------------------------------------

NAN_ROWS = X.clone()
NAN_ROWS[5, 2] = math.nan
HIGH = Y.clone()
HIGH[7] = CLASSES


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        (lambda: [], "a federation needs at least one client"),
        (lambda: [target_client()], "no client holds labelled source rows"),
        (lambda: [Client()], "holds nothing: give it source="),
        (lambda: [Client(source=(X, HIGH), name="a")], r"client 'a': source holds label 3, but there are 3 classes"),
        (lambda: [Client(source=Listed([(X[0], 9)]), name="a"), target_client()], "client 'a': source holds label 9"),
        (lambda: [Client(source=(X, Y - 1), name="a")], "client 'a': source, row .* has label -1"),
        (lambda: [Client(source=(X, Y[:5]), name="a")], "client 'a': source has 24 rows but 5 labels"),
        (lambda: [Client(source=X, name="a")], r"client 'a': source must be a pair \(x, labels\)"),
        (lambda: [Client(source=(NAN_ROWS, Y), name="a")], "client 'a': source has a value that is NaN .* in row 5"),
        (lambda: [source_client(), Client(target=NAN_ROWS, name="b")], "client 'b': target has a value that is NaN"),
        (lambda: [Client(source=(X[:0], Y[:0]), name="a")], "client 'a': source has no rows"),
        (lambda: [source_client(), Client(target=T[:0], name="b")], "client 'b': target has no rows"),
        (
            lambda: [source_client(), Client(target=torch.zeros(4, WIDTH + 1), name="b")],
            r"client 'b': target holds rows of shape \(5,\), client 'source': source of shape \(4,\)",
        ),
        (lambda: [source_client("a"), target_client("a")], "two clients are called 'a'"),
        (lambda: [source_client(weight=0.0), target_client()], "client weights must be above 0"),
        pytest.param(
            lambda: [Client(source=(X, Y), target=torch.zeros(4, WIDTH + 1), name="a")],
            "client 'a'.*shape",
        ),
    ],
)
def test_clients_that_cannot_be_trained_are_refused_in_one_sentence(clients: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message) as caught:
        adapt(clients())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"batch_size": 2.5}, "batch_size must be a whole number"),
        ({"batch_size": 1, "clients": [mixed_client()]}, "batch_size must be at least 2"),
        ({"evaluate_every": 0}, "evaluate_every must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": "lucky"}, "seed must be a whole number"),
        ({"validation": T}, r"validation 'target' must be a pair \(x, labels\)"),
        ({"validation": (T, Y + CLASSES)}, "validation 'target' holds label"),
        ({"validation": {3: (T, Y)}}, "validation sets are named by words"),
        ({"algorithm": FedMM(lr_min={"feature": 0.1, "*": 0.1})}, "no parameter belongs to group 'feature'"),
        ({"objective": fedmm.DANN(gradient_scale={"head": 0.1, "*": 1.0})}, "no parameter belongs to group 'head'"),
        ({"algorithm": FedMM(local_steps={"nobody": 3})}, "unknown client in local_steps 'nobody'"),
        pytest.param(
            {"validation": (torch.zeros(4, WIDTH + 1), labels(1, 4))},
            "validation",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(FedmmError, match=message) as caught:
        adapt(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"model": torch.nn.Linear(WIDTH, CLASSES)},
        {"objective": "dann"},
        {"algorithm": FedMM},
        {"dtype": torch.int64},
        {"device": "nowhere"},
        {"clients": [source_client("a"), target_client(7)]},
        {"clients": [source_client(weight="heavy"), target_client()]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_arguments_of_the_wrong_kind_are_refused_in_one_sentence(options: dict[str, Any]) -> None:
    with pytest.raises(FedmmError):
        adapt(**options)


# Without an adversary -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[2, 3], {"source": 2, "target": 3}], ids=["list", "by name"])
def test_local_steps_may_name_clients_that_have_nothing_to_add(steps: Any) -> None:
    assert adapt(objective=SourceOnly(), algorithm=FedAvgGDA(local_steps=steps)).status == "completed"


def test_weights_have_mean_one_over_the_clients_that_train() -> None:
    clients = [source_client(weight=1.0), target_client(weight=3.0)]
    plain = [source_client(), target_client()]
    assert torch.equal(adapt(clients, objective=SourceOnly()).state.z, adapt(plain, objective=SourceOnly()).state.z)
