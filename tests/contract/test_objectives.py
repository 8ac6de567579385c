"""What every row of ``OBJECTIVES`` must keep to."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

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
    random_outputs,
    rows,
    source_client,
    target_client,
    untrained,
)
from torch import Tensor, nn

import fedmm
from fedmm import OBJECTIVES, FedmmError, FedProxGDA
from fedmm.core.objective import SOURCE, TARGET, Objective, Outputs, row_weights, sam_step
from fedmm.core.schedules import Constant, DannWarmup

OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dann": [
        {"domain_smoothing": 0.1},
        {"restrained": True, "source_share": 0.3},
        {"target_loss": "bnm"},
        {"sam_radius": 0.1},
    ],
    "cdan": [{"detach_softmax": True}, {"entropy_weighting": True}, {"random_dim": 5}, {"target_loss": "im"}],
    "auc": [{"form": "square"}, {"margin": 2.0, "positive_share": 0.6}, {"max_fpr": 0.3}, {"scaled": True}],
    "source_only": [{"class_weights": "balanced"}],
    "mdd": [{"gamma": 4.0, "epsilon": 1e-3}, {"target_loss": "mcc", "target_weight": 0.5}],
}
VARIANTS = [kind() for kind in OBJECTIVES.values()] + [
    OBJECTIVES[name](**options) for name, variants in OPTIONS.items() for options in variants
]
each_row = pytest.mark.parametrize("kind", OBJECTIVES.values(), ids=OBJECTIVES)
each_objective = pytest.mark.parametrize("objective", VARIANTS, ids=lambda o: o.name)
DOMAINS = {
    "mixed": [SOURCE, SOURCE, SOURCE, TARGET, TARGET],
    "source": [SOURCE] * 5,
    "target": [TARGET] * 5,
}
ADAPTING = {name: kind for name, kind in OBJECTIVES.items() if kind.adapts}
each_adapting = pytest.mark.parametrize("kind", ADAPTING.values(), ids=ADAPTING)
CLASSIFYING = {name: kind for name, kind in OBJECTIVES.items() if name != "auc"}
each_classifying = pytest.mark.parametrize("kind", CLASSIFYING.values(), ids=CLASSIFYING)
"""Those whose task loss is the cross entropy."""
TELLING = {name: kind for name, kind in OBJECTIVES.items() if kind.tells_domains}
each_client = pytest.mark.parametrize("domains", DOMAINS.values(), ids=DOMAINS)
LABELS = torch.tensor([0, 2, 1, 0, 0])


def losses(
    objective: Objective, outputs: Outputs, domains: Sequence[int], weight: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    ones = torch.ones(len(domains)) if weight is None else weight
    weights = row_weights(torch.tensor(domains), ones.to(outputs.logits.dtype))
    return objective.losses(outputs, LABELS[: len(domains)], weights)


def gradients(value: Tensor, outputs: Outputs) -> list[Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in outputs]
    return list(torch.autograd.grad(value, list(outputs), allow_unused=True, materialize_grads=True, retain_graph=True))


# Names, options and refusals ------------------------------------------------------------------------------------------


@each_row
def test_a_row_has_the_name_of_its_class_and_says_what_it_is(kind: type[Objective]) -> None:
    assert OBJECTIVES[kind.name] is kind
    assert kind.summary
    assert getattr(fedmm, kind.__name__) is kind


@each_row
def test_equal_options_make_equal_objectives_with_equal_hashes(kind: type[Objective]) -> None:
    assert len({kind(nu=0.5), kind(nu=0.5), kind(nu=0.25)}) == 2
    assert kind(nu_schedule=DannWarmup()) == kind(nu_schedule=DannWarmup())
    assert kind(nu_schedule=DannWarmup()) != kind()
    assert kind().nu_schedule == Constant()
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().nu = 2.0


REFUSED: dict[str, Sequence[Any]] = {
    "nu": [-0.1, math.nan, math.inf, "much", True, None],
    "gradient_scale": [-1.0, math.nan, "much", {}, {"features": -1.0}],
    "form": ["cube", 1, None],
    "margin": [0.0, -1.0, math.nan, "wide", True],
    "positive_share": [-0.1, 1.0, math.nan, "much", True],
    "max_fpr": [0.0, -0.1, 1.1, math.nan, "much", True],
    "random_dim": [-1, 2.5, "wide", True],
    "gamma": [0.0, -1.0, math.nan, "much"],
    "epsilon": [0.0, -1e-5, math.nan, "little"],
    "target_loss": ["mmc", 1, None, fedmm.MinimumClassConfusion],
    "target_weight": [-0.1, math.nan, math.inf, "much", True],
    "domain_smoothing": [-0.1, 0.5, 1.0, math.nan, "much", True],
    "restrained": [1, "yes", None],
    "source_share": [-0.1, 1.0, math.nan, "much", True],
    "sam_radius": [-0.1, math.nan, math.inf, "wide", True],
}
REFUSALS = [
    (kind, option.name, value)
    for kind in OBJECTIVES.values()
    for option in dataclasses.fields(kind)
    for value in REFUSED.get(option.name, [])
]


@pytest.mark.parametrize(("kind", "option", "value"), REFUSALS, ids=lambda p: getattr(p, "name", repr(p)))
def test_an_invalid_option_is_refused_by_its_name(kind: type[Objective], option: str, value: Any) -> None:
    with pytest.raises(FedmmError, match=option):
        kind(**{option: value})


@each_row
def test_every_numeric_option_refuses_what_is_not_a_number(kind: type[Objective]) -> None:
    for option in dataclasses.fields(kind):
        if isinstance(option.default, float | int) and not isinstance(option.default, bool):
            for value in ("word", math.nan):
                with pytest.raises(FedmmError, match=option.name):
                    kind(**{option.name: value})


@each_row
def test_an_option_that_an_objective_has_no_use_for_is_refused_in_one_sentence(kind: type[Objective]) -> None:
    for option, value in {"target_loss": "mcc", "domain_smoothing": 0.1, "restrained": True, "sam_radius": 0.1}.items():
        if option in kind.used_options():
            assert getattr(kind(**{option: value}), option) != getattr(kind(), option)
        else:
            with pytest.raises(FedmmError, match=f"^{option} must be .* for {kind.name}"):
                kind(**{option: value})


# Pure functions of their input ----------------------------------------------------------------------------------------


@each_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_keep_the_dtype_and_repeat_themselves_and_leave_their_input_alone(
    objective: Objective, dtype: torch.dtype
) -> None:
    outputs = random_outputs(objective, 5, dtype=dtype)
    before = [tensor.detach().clone() for tensor in outputs]
    first = losses(objective, outputs, DOMAINS["mixed"])
    second = losses(objective, outputs, DOMAINS["mixed"])
    assert [value.dtype for value in first] == [dtype, dtype]
    assert [value.shape for value in first] == [(), ()]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert all(torch.equal(tensor, kept) for tensor, kept in zip(outputs, before, strict=True))


@each_objective
def test_a_stack_of_batches_is_the_same_as_one_by_one(objective: Objective) -> None:
    lead = (2, 3)
    stacked = random_outputs(objective, 5, lead=lead)
    domain = torch.tensor([*DOMAINS.values(), *DOMAINS.values()]).reshape(*lead, 5)
    weight = torch.rand(*lead, 5, dtype=FLOAT64, generator=torch.Generator().manual_seed(3))
    all_labels = torch.randint(0, CLASSES, (*lead, 5), generator=torch.Generator().manual_seed(4))

    task, domain_loss = objective.losses(stacked, all_labels, row_weights(domain, weight))

    assert task.shape == domain_loss.shape == lead
    for place in itertools.product(range(2), range(3)):
        outputs = Outputs(*(tensor[place] for tensor in stacked))
        one = objective.losses(outputs, all_labels[place], row_weights(domain[place], weight[place]))
        torch.testing.assert_close((task[place], domain_loss[place]), one, rtol=1e-12, atol=1e-14)


@each_objective
def test_the_adversarys_input_has_its_width_and_stacks(objective: Objective) -> None:
    shape = objective.adversary_shape(WIDTH, CLASSES)
    if shape is None:
        return
    outputs = random_outputs(objective, 5, lead=(2, 3))
    maps = {name: m.to(FLOAT64) for name, m in objective.random_maps(WIDTH, CLASSES, 0).items()}
    seen = objective.adversary_input(outputs.features, outputs.logits, maps)
    assert seen.shape == (2, 3, 5, shape.inputs)
    one = objective.adversary_input(outputs.features[1, 2], outputs.logits[1, 2], maps)
    torch.testing.assert_close(seen[1, 2], one, rtol=1e-12, atol=1e-14)


@each_objective
def test_losses_stay_on_their_device(objective: Objective) -> None:
    outputs = Outputs(*(tensor.detach().to("meta") for tensor in random_outputs(objective, 5)))
    weights = row_weights(torch.tensor(DOMAINS["mixed"]), torch.ones(5, dtype=FLOAT64))
    tensors = ("domain", "task", "all", "target")
    moved = weights._replace(**{name: getattr(weights, name).to("meta") for name in tensors})
    found = [*objective.losses(outputs, LABELS.to("meta"), moved), objective.target_losses(outputs, moved)]
    assert {loss.device.type for loss in found if loss is not None} == {"meta"}


# Rows -----------------------------------------------------------------------------------------------------------------


@each_objective
@each_client
def test_losses_and_gradients_are_finite_for_every_kind_of_client(objective: Objective, domains: list[int]) -> None:
    outputs = random_outputs(objective, 5)
    task, domain = losses(objective, outputs, domains)
    for value in (task, domain):
        assert bool(value.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(value, outputs))


@each_objective
def test_without_source_rows_there_is_no_task_loss(objective: Objective) -> None:
    outputs = random_outputs(objective, 5)
    task, _ = losses(objective, outputs, DOMAINS["target"])
    assert float(task) == 0.0
    assert not any(gradient.any() for gradient in gradients(task, outputs))


@pytest.mark.parametrize(
    "objective", [o for o in VARIANTS if o.name in CLASSIFYING and not o.needs_class_shares], ids=lambda o: o.name
)
def test_the_task_loss_is_the_mean_cross_entropy_of_the_source_rows_alone(objective: Objective) -> None:
    outputs = random_outputs(objective, 5)
    task, _ = losses(objective, outputs, DOMAINS["mixed"])
    expected = torch.nn.functional.cross_entropy(outputs.logits[:3], LABELS[:3])
    torch.testing.assert_close(task, expected, rtol=1e-12, atol=0)
    by_logits = gradients(task, outputs)[1]
    assert bool((by_logits[:3] != 0).all())
    assert not bool(by_logits[3:].any())


@each_objective
def test_the_labels_of_target_rows_are_not_looked_at(objective: Objective) -> None:
    outputs = random_outputs(objective, 5)
    weights = row_weights(torch.tensor(DOMAINS["mixed"]), torch.ones(5, dtype=FLOAT64))
    other = LABELS.clone()
    other[3:] = 2
    assert objective.losses(outputs, LABELS, weights) == objective.losses(outputs, other, weights)


@each_objective
@each_client
def test_filler_rows_contribute_nothing(objective: Objective, domains: list[int]) -> None:
    # Rows 2 and 4 only fill the batch: the losses are those of rows 0, 1 and 3, and no gradient reaches the fillers.
    kept, fillers = [0, 1, 3], [2, 4]
    outputs = random_outputs(objective, 5)
    weight = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0])
    filled = losses(objective, outputs, domains, weight)

    alone = Outputs(*(tensor.detach()[kept] for tensor in outputs))
    weights = row_weights(torch.tensor(domains)[kept], torch.ones(3, dtype=FLOAT64))
    torch.testing.assert_close(filled, objective.losses(alone, LABELS[kept], weights), rtol=1e-12, atol=0)
    for value in filled:
        assert not any(gradient[fillers].any() for gradient in gradients(value, outputs))


@each_objective
def test_row_weights_count_in_proportion(objective: Objective) -> None:
    # A row of weight 2 is a row that is there twice.
    outputs = random_outputs(objective, 3)
    twice = Outputs(*(tensor[[0, 0, 1, 2]] for tensor in outputs))
    domain = torch.tensor([SOURCE, SOURCE, TARGET])
    weighted = objective.losses(outputs, LABELS[:3], row_weights(domain, torch.tensor([2.0, 1.0, 1.0], dtype=FLOAT64)))
    repeated = objective.losses(
        twice, LABELS[[0, 0, 1, 2]], row_weights(domain[[0, 0, 1, 2]], torch.ones(4, dtype=FLOAT64))
    )
    torch.testing.assert_close(weighted, repeated, rtol=1e-12, atol=0)


@each_objective
@each_client
@pytest.mark.parametrize("logit", [1e4, -1e4])
def test_extreme_logits_stay_finite_in_float32(objective: Objective, domains: list[int], logit: float) -> None:
    outputs = random_outputs(objective, 5, dtype=torch.float32)
    with torch.no_grad():
        outputs.logits[:, 0], outputs.logits[:, 1] = logit, -logit
        outputs.adversary[:, 0] = logit
    task, domain = losses(objective, outputs, domains)
    for value in (task, domain):
        assert bool(value.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(value, outputs))


# Terms on target rows, and smoothed domains ---------------------------------------------------------------------------


def after_one_step(objective: Objective, clients: Sequence[fedmm.Client] | None = None) -> Tensor:
    options = {"rounds": 1, "algorithm": fedmm.FedSGDA(0.1, 0.1), "objective": objective, "dtype": FLOAT64}
    return adapt(clients or [mixed_client()], **options).state.z


@each_adapting
@pytest.mark.parametrize("name", [name for name in fedmm.TARGET_LOSSES if name != "none"])
def test_a_target_loss_is_part_of_f_in_proportion_to_its_weight(kind: type[Objective], name: str) -> None:
    plain = after_one_step(kind())
    by_weight = [after_one_step(kind(target_loss=name, target_weight=weight)) - plain for weight in (0.0, 1.0, 2.0)]
    torch.testing.assert_close(by_weight[0], torch.zeros_like(plain), rtol=0, atol=1e-15)
    torch.testing.assert_close(by_weight[2], 2.0 * by_weight[1], rtol=1e-9, atol=1e-14)
    names = untrained([mixed_client()], objective=kind(), dtype=FLOAT64).tensors()
    adversary = sum(tensor.numel() for key, tensor in names.items() if key.startswith("adversary"))
    assert float(by_weight[1][:-adversary].norm()) > 1e-4
    assert not by_weight[1][-adversary:].any()


@each_adapting
@pytest.mark.parametrize("name", fedmm.TARGET_LOSSES)
def test_a_target_loss_leaves_clients_without_target_rows_and_the_columns_alone(
    kind: type[Objective], name: str
) -> None:
    outputs = random_outputs(kind(), 5)
    weights = row_weights(torch.tensor(DOMAINS["source"]), torch.ones(5, dtype=FLOAT64))
    found = kind(target_loss=name).target_losses(outputs, weights)
    assert (found is None) == (name == "none")
    assert found is None or (float(found.detach()) == 0.0 and not any(map(Tensor.any, gradients(found, outputs))))
    pair = [losses(each, outputs, DOMAINS["mixed"]) for each in (kind(), kind(target_loss=name))]
    assert pair[0] == pair[1]


@each_adapting
def test_a_target_loss_is_that_of_the_target_rows_alone(kind: type[Objective]) -> None:
    outputs = random_outputs(kind(), 5)
    weights = row_weights(torch.tensor(DOMAINS["mixed"]), torch.ones(5, dtype=FLOAT64))
    found = kind(target_loss="im").target_losses(outputs, weights)
    p = outputs.logits[3:].softmax(dim=-1).detach()
    expected = -(p * p.log()).sum(dim=-1).mean() + (p.mean(dim=0) * p.mean(dim=0).log()).sum()
    assert found is not None
    torch.testing.assert_close(found.detach(), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", TELLING.values(), ids=TELLING)
@each_client
def test_domain_smoothing_is_the_cross_entropy_with_soft_targets(kind: type[Objective], domains: list[int]) -> None:
    objective = kind(domain_smoothing=0.1)
    outputs = random_outputs(objective, 5)
    _, domain = losses(objective, outputs, domains)
    soft = torch.tensor([[0.9, 0.1] if each == SOURCE else [0.1, 0.9] for each in domains], dtype=FLOAT64)
    expected = torch.nn.functional.cross_entropy(outputs.adversary, soft)
    torch.testing.assert_close(domain, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        gradients(domain, outputs)[2], (outputs.adversary.softmax(dim=-1) - soft) / 5.0, rtol=1e-12, atol=1e-15
    )


@pytest.mark.parametrize("e", [0.0, 0.1])
@pytest.mark.parametrize("kind", TELLING.values(), ids=TELLING)
@each_client
def test_restraint_weighs_what_the_features_feel_by_the_odds_of_being_fooled(
    kind: type[Objective], domains: list[int], e: float
) -> None:
    objective = kind(restrained=True, source_share=0.3, domain_smoothing=e)
    plain = kind(domain_smoothing=e)
    once = random_outputs(plain, 5)
    twice = once._replace(adversary=torch.cat([once.adversary, once.adversary.detach()], dim=-1).requires_grad_())
    task, domain = losses(objective, twice, domains)
    expected = losses(plain, once, domains)
    torch.testing.assert_close((task, domain), expected, rtol=1e-12, atol=0)
    moving, held = gradients(domain, twice)[2].chunk(2, dim=-1)
    whole = gradients(expected[1], once)[2]
    torch.testing.assert_close(moving + held, whole, rtol=1e-12, atol=1e-15)
    place = torch.tensor(domains).unsqueeze(-1)
    share = torch.tensor([0.3, 0.7], dtype=FLOAT64) * (1 - 2 * e) + e
    push = (once.adversary.softmax(dim=-1).gather(1, place) / share[place]).clamp(max=1.0)
    assert bool((push < 1).any())
    torch.testing.assert_close(moving, push * whole, rtol=1e-12, atol=1e-15)


@each_row
def test_what_a_program_may_mix_is_nu_and_the_factors_of_terms_and_gradients(kind: type[Objective]) -> None:
    changed = kind(nu=0.3, nu_schedule=DannWarmup(), gradient_scale=2.0, target_weight=0.1)
    assert changed.structure() == kind().structure()


@pytest.mark.parametrize(
    "options", [{"target_loss": "mcc"}, {"domain_smoothing": 0.1}, {"restrained": True}, {"sam_radius": 0.1}]
)
def test_a_program_has_one_target_loss_and_one_smoothing_and_takes_sam_steps_or_none(options: dict[str, Any]) -> None:
    assert fedmm.DANN(**options).structure() != fedmm.DANN().structure()


# Sharpness-aware minimisation of the task loss ------------------------------------------------------------------------


@each_classifying
@pytest.mark.parametrize("radius", [0.05, 2.0])
def test_sam_is_the_closed_form_of_softmax_regression(kind: type[Objective], radius: float) -> None:
    # With e = softmax(W x + b) - onehot(y) the gradient is g(W, b) = mean of (e x', e), and SAM's is
    # g((W, b) + radius g / |g|).
    x, y = rows(1, dtype=FLOAT64), labels(1)
    options: dict[str, Any] = {"batch_size": 24, "model": fedmm.Network(nn.Identity(), CLASSES), "dtype": FLOAT64}
    clients = [fedmm.Client(source=(x, y), name="a"), fedmm.Client(target=rows(2, dtype=FLOAT64), name="b")]
    objective = kind(nu=0.0, sam_radius=radius)
    start = untrained(clients, objective=objective, **options).tensors()
    after = adapt(clients, objective=objective, rounds=1, algorithm=fedmm.FedSGDA(0.1, 0.1), **options).tensors()
    names = [name for name in start if name.startswith("task_head")]
    weight, bias = (start[name] for name in names)

    def gradient(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        error = (x @ weight.T + bias).softmax(dim=-1) - nn.functional.one_hot(y, CLASSES)
        return error.T @ x / len(x), error.mean(dim=0)

    plain = gradient(weight, bias)
    norm = math.sqrt(sum(float(part.square().sum()) for part in plain))
    expected = gradient(weight + radius * plain[0] / norm, bias + radius * plain[1] / norm)
    share = 0.5 if objective.adapts else 1.0  # of the two clients' mean
    for name, first, part in zip(names, (weight, bias), expected, strict=True):
        torch.testing.assert_close(after[name], first - 0.1 * share * part, rtol=1e-10, atol=1e-13)


@each_adapting
def test_sam_changes_the_gradient_of_the_task_loss_alone(kind: type[Objective]) -> None:
    others: list[dict[str, Any]] = [{"nu": 0.0}, {"nu": 0.7}, {"nu": 0.7, "target_loss": "im"}]
    moved = [after_one_step(kind(sam_radius=0.5, **each)) - after_one_step(kind(**each)) for each in others]
    assert float(moved[0].norm()) > 1e-4
    for each in moved[1:]:
        torch.testing.assert_close(each, moved[0], rtol=0, atol=1e-14)
    names = untrained([mixed_client()], objective=kind(), dtype=FLOAT64).tensors()
    adversary = sum(tensor.numel() for key, tensor in names.items() if key.startswith("adversary"))
    assert not moved[0][-adversary:].any()


def test_a_small_sam_step_is_a_small_change_and_no_source_rows_mean_none() -> None:
    plain = after_one_step(fedmm.DANN())
    torch.testing.assert_close(after_one_step(fedmm.DANN(sam_radius=1e-9)), plain, rtol=0, atol=1e-9)
    assert not sam_step(torch.zeros(2, 3), 0.1).any()


def test_running_statistics_are_those_of_the_point_itself() -> None:
    def statistics(radius: float) -> Mapping[str, Tensor]:
        net = network(nn.Linear(WIDTH, 3), nn.BatchNorm1d(3))
        options = {"rounds": 1, "algorithm": fedmm.FedSGDA(0.1, 0.1), "dtype": FLOAT64}
        return adapt([mixed_client()], objective=fedmm.DANN(sam_radius=radius), model=net, **options).state.statistics

    torch.manual_seed(0)
    plain = statistics(0.0)
    torch.manual_seed(0)
    assert plain
    torch.testing.assert_close(statistics(0.5), plain, rtol=0, atol=0)


# In a federation ------------------------------------------------------------------------------------------------------


@each_objective
def test_a_federation_of_every_kind_of_client_trains(objective: Objective) -> None:
    clients = [source_client(), target_client(), mixed_client()]
    adapted = adapt(clients, objective=objective)
    assert adapted.status == "completed"
    assert bool(adapted.state.z.isfinite().all())
    assert adapted.state.z.dtype == torch.float32
    assert [row["loss"] for row in adapted.history] == pytest.approx(
        [row["loss"] for row in adapt(clients[::-1], objective=objective).history], abs=0
    )


@each_objective
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_federation_keeps_its_dtype(objective: Objective, dtype: torch.dtype) -> None:
    adapted = adapt(objective=objective, dtype=dtype)
    assert adapted.state.z.dtype == dtype
    assert adapted.predict_proba(rows(5)).dtype == dtype


@each_objective
def test_the_loss_is_the_task_loss_less_nu_times_the_domain_loss(objective: Objective) -> None:
    # nu warms up: with 4 rounds, 2 / (1 + exp(-10 t / 4)) - 1 is 0, 0.848..., 0.986..., 0.998...
    warming = dataclasses.replace(objective, nu=0.7, nu_schedule=DannWarmup())
    history = adapt([mixed_client()], objective=warming, rounds=4).history
    for t, row in enumerate(history):
        nu = 0.7 * (2.0 / (1.0 + math.exp(-10.0 * t / 4.0)) - 1.0)
        assert row["loss"] == pytest.approx(row["task_loss"] - nu * row["domain_loss"], rel=1e-5, abs=1e-6)


@each_objective
def test_a_gradient_scale_touches_the_loss_gradient_of_its_group_alone(objective: Objective) -> None:
    # With their gradient scaled by 0, nothing moves the features, and what is not a parameter stays anyway.
    still = dataclasses.replace(objective, gradient_scale={"features": 0.0, "*": 1.0})
    algorithm = FedProxGDA(0.1, 0.1, 2.0, 2.0, local_steps=2)
    start = untrained(objective=still).tensors()
    after = adapt(objective=still, algorithm=algorithm, rounds=1).tensors()
    for name, tensor in start.items():
        assert torch.equal(tensor, after[name]) == (not name.startswith(("task_head", "adversary", "levels")))


def test_a_scaled_gradient_is_not_a_scaled_rate() -> None:
    # Two steps with a proximal term, adversary's part a: by gradient scale s, a_2 = a_1 - eta (s F + mu (a_1 - a_0));
    # by rate, the whole bracket is scaled. One step is the same, two are not.
    def moved(scale: float, rate: float, steps: int) -> Tensor:
        objective = fedmm.DANN(gradient_scale={"adversary": scale, "*": 1.0})
        algorithm = FedProxGDA(0.1, rate, 2.0, 2.0, local_steps=steps)
        return adapt(objective=objective, algorithm=algorithm, rounds=1, dtype=FLOAT64).state.z

    torch.testing.assert_close(moved(0.5, 0.1, 1), moved(1.0, 0.05, 1), rtol=1e-12, atol=1e-14)
    assert float((moved(0.5, 0.1, 2) - moved(1.0, 0.05, 2)).abs().max()) > 1e-6


@each_row
def test_client_weights_are_alpha(kind: type[Objective]) -> None:
    # One client's weight alone is scaled to 1. Of two clients with the same rows and weights 3 and 1, one has the
    # gradient scaled by 1.5, the other by 0.5.
    assert torch.equal(
        adapt([mixed_client(weight=7.0)], objective=kind()).state.z, adapt([mixed_client()], objective=kind()).state.z
    )
    one_step = fedmm.FedSGDA(0.1, 0.1)
    objective = kind(**({"positive_share": 0.4} if kind is fedmm.AUC else {}))  # else each client alone has its own
    everything = {"rounds": 1, "batch_size": 48, "algorithm": one_step, "objective": objective, "dtype": FLOAT64}
    pair = [
        fedmm.Client(source=(rows(1), labels(1)), target=rows(2), name="a", weight=3.0),
        fedmm.Client(source=(rows(9), labels(9)), target=rows(10), name="b", weight=1.0),
    ]
    weighted = adapt(pair, **everything).state.z
    first, second = (adapt([client], **everything).state.z for client in pair)
    start = untrained(pair, objective=kind(), batch_size=48, dtype=FLOAT64)._z
    expected = start + (1.5 * (first - start) + 0.5 * (second - start)) / 2.0
    torch.testing.assert_close(weighted, expected, rtol=1e-10, atol=1e-12)
