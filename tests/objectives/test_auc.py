from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from problems import FLOAT64, WIDTH, generator, network, played, train_options, with_options
from torch import Tensor, nn

import fedmm
from fedmm import AUC, Client, FedmmError
from fedmm.core.algorithm import Algorithm
from fedmm.core.objective import SOURCE, Objective, Outputs, row_weights
from fedmm.models.flat import FlatNetwork
from fedmm.training.adaptation import Adaptation
from fedmm.training.batched import StackSettings, build_stack

MARGIN = 0.8
FORMS = [AUC(form="square"), AUC(margin=MARGIN)]
each_form = pytest.mark.parametrize("objective", FORMS, ids=lambda o: o.form)
LABELS = torch.tensor([1, 0, 0, 1, 0, 0, 0, 1, 0, 0])
SHARE = 0.3  # of class 1 in LABELS


def logits_of(h: Tensor) -> Tensor:
    """Logits with which class 1 has the probabilities h."""
    return torch.stack([torch.zeros_like(h), torch.logit(h)], dim=-1)


def value(objective: AUC, h: Tensor, *numbers: Tensor, labels: Tensor = LABELS) -> Tensor:
    """f of the probabilities h and alpha, a and b, and of tau where there is one."""
    every = torch.stack(numbers).expand(len(h), len(numbers))
    outputs = Outputs(torch.zeros(len(h), 1, dtype=FLOAT64), logits_of(h), every)
    weights = row_weights(torch.full((len(h),), SOURCE), torch.ones(len(h), dtype=FLOAT64))
    return objective.losses(outputs, labels, weights)[0]


def scores(seed: int = 0) -> Tensor:
    return 0.05 + 0.9 * torch.rand(len(LABELS), generator=generator(seed), dtype=FLOAT64)


def saddle_of(objective: AUC, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """alpha, a and b of the saddle for fixed h."""
    a, b = h[LABELS == 1].mean(), h[LABELS == 0].mean()
    return (b - a if objective.form == "square" else (MARGIN + b - a).clamp_min(0.0)), a, b


# The losses against closed forms --------------------------------------------------------------------------------------


def test_a_row_costs_what_the_papers_say() -> None:
    h, p, (alpha, a, b) = scores(), SHARE, torch.tensor([0.7, 0.6, 0.2], dtype=FLOAT64)
    square = margin = 0.0
    for each, label in zip(h, LABELS, strict=True):
        sign = p * each if label == 0 else -(1 - p) * each
        spread = p * (each - b) ** 2 if label == 0 else (1 - p) * (each - a) ** 2
        square += spread + 2 * (1 + alpha) * sign - p * (1 - p) * alpha**2
        margin += spread + 2 * alpha * (p * (1 - p) * MARGIN + sign) - p * (1 - p) * alpha**2
    torch.testing.assert_close(value(FORMS[0], h, alpha, a, b), square / 10, rtol=1e-12, atol=0)
    torch.testing.assert_close(value(FORMS[1], h, alpha, a, b), margin / 10, rtol=1e-12, atol=0)


@each_form
@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_vanishes_at_the_closed_form_of_the_saddle(objective: AUC, seed: int) -> None:
    h = scores(seed)
    point = [each.clone().requires_grad_() for each in saddle_of(objective, h)]
    gradients = torch.autograd.grad(value(objective, h, *point), point)
    torch.testing.assert_close(torch.stack(gradients), torch.zeros(3, dtype=FLOAT64), rtol=0, atol=1e-15)


@each_form
@pytest.mark.parametrize("seed", range(5))
def test_the_saddles_value_is_the_square_loss_over_all_pairs(objective: AUC, seed: int) -> None:
    # Over pairs of a positive x and a negative x' the square (m - h(x) + h(x'))^2 has the mean Var+ + Var- plus the
    # square of m + b - a, which is what the maximum over alpha leaves.
    h = scores(seed)
    m = 1.0 if objective.form == "square" else MARGIN
    pairs = ((m - h[LABELS == 1].unsqueeze(1) + h[LABELS == 0]) ** 2).mean()
    expected = SHARE * (1 - SHARE) * (pairs - (1.0 if objective.form == "square" else 0.0))
    torch.testing.assert_close(value(objective, h, *saddle_of(objective, h)), expected, rtol=1e-12, atol=1e-15)


def test_the_margin_does_not_charge_a_gap_beyond_it() -> None:
    # The means of both classes lie 0.9 apart, m = 0.8: alpha is 0, and what is left are the variances.
    h = torch.where(LABELS == 1, 0.95, 0.05).to(FLOAT64) + 0.02 * (scores() - 0.5)
    h = torch.where(LABELS == 1, h + 0.02, h - 0.02)
    alpha, a, b = saddle_of(FORMS[1], h)
    assert float(alpha) == 0.0
    spread = sum(h[label == LABELS].var(correction=0) for label in (0, 1))
    torch.testing.assert_close(value(FORMS[1], h, alpha, a, b), SHARE * (1 - SHARE) * spread, rtol=1e-12, atol=0)


@each_form
def test_the_gradient_is_that_of_finite_differences(objective: AUC) -> None:
    point = torch.cat([scores(), torch.tensor([0.4, 0.6, 0.3], dtype=FLOAT64)])

    def f(x: Tensor) -> Tensor:
        return value(objective, x[:10], *x[10:])

    assert torch.autograd.gradcheck(f, [point.requires_grad_()], eps=1e-6, atol=1e-8)


@each_form
def test_f_is_linear_in_the_rows_so_that_sites_of_one_class_add_up(objective: AUC) -> None:
    # Given p, the mean over all rows is the mean of the classes' own values by their shares.
    given, h = dataclasses.replace(objective, positive_share=SHARE), scores()
    numbers = torch.tensor([0.4, 0.6, 0.3], dtype=FLOAT64).unbind()
    parts = [value(given, h[label == LABELS], *numbers, labels=LABELS[label == LABELS]) for label in (0, 1)]
    torch.testing.assert_close(
        value(given, h, *numbers), (1 - SHARE) * parts[0] + SHARE * parts[1], rtol=1e-12, atol=1e-15
    )
    torch.testing.assert_close(value(given, h, *numbers), value(objective, h, *numbers), rtol=1e-12, atol=1e-15)


# The first part of the curve ------------------------------------------------------------------------------------------

PARTS = [dataclasses.replace(each, max_fpr=3 / 7) for each in FORMS]
"""Up to a false positive rate that three of the seven rows of class 0 make."""
each_part = pytest.mark.parametrize("objective", PARTS, ids=lambda o: o.form)


def fixed_point_of(objective: AUC, h: Tensor) -> tuple[Tensor, ...]:
    """alpha, a, b and tau of the fixed point for fixed h, with tau between two rows."""
    ranked = h[LABELS == 0].sort(descending=True).values
    a, b, tau = h[LABELS == 1].mean(), ranked[:3].mean(), ranked[2:4].mean()
    return b - a if objective.form == "square" else (MARGIN + b - a).clamp_min(0.0), a, b, tau


def pairs_of(objective: AUC, h: Tensor) -> Tensor:
    """The surrogate from all pairs of a row of class 1 and one of the three highest rows of class 0."""
    square = objective.form == "square"
    highest = h[LABELS == 0].topk(3).values
    costs = [((1.0 if square else MARGIN) - x + below) ** 2 for x in h[LABELS == 1] for below in highest]
    return SHARE * (1 - SHARE) * (torch.stack(costs).mean() - float(square))


@each_part
@pytest.mark.parametrize("seed", range(5))
def test_the_fixed_point_of_a_part_has_a_closed_form(objective: AUC, seed: int) -> None:
    h = scores(seed)
    point = [each.clone().requires_grad_() for each in fixed_point_of(objective, h)]
    cost = value(objective, h, *point)
    torch.testing.assert_close(
        torch.stack(torch.autograd.grad(cost, point)), torch.zeros(4, dtype=FLOAT64), rtol=0, atol=1e-10
    )
    torch.testing.assert_close(cost, pairs_of(objective, h), rtol=1e-12, atol=1e-15)


@each_part
@pytest.mark.parametrize("seed", range(5))
def test_a_parts_gradient_in_the_scores_is_that_of_the_pairs(objective: AUC, seed: int) -> None:
    # At the fixed point, where a, b and alpha follow h without a gradient of their own (the envelope theorem).
    h = scores(seed)
    point, one, other = fixed_point_of(objective, h), h.clone().requires_grad_(), h.clone().requires_grad_()
    (ours,) = torch.autograd.grad(value(objective, one, *point), one)
    (expected,) = torch.autograd.grad(pairs_of(objective, other), other)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-12)
    assert int((ours != 0).sum()) == 6  # three rows of class 1, and three of class 0


@each_part
@pytest.mark.parametrize("tau", [-0.5, 0.0, 0.3, 0.61, 1.0, 1.5])
def test_tau_descends_the_quantiles_own_loss(objective: AUC, tau: float) -> None:
    # Rockafellar and Uryasev's tau + max(0, h - tau) / beta of class 0 alone, times p; below all rows tau rises, and
    # above all of them it falls.
    h, numbers = scores(), torch.tensor([0.4, 0.6, 0.3], dtype=FLOAT64).unbind()
    ours = torch.tensor(tau, dtype=FLOAT64, requires_grad=True)
    own = torch.tensor(tau, dtype=FLOAT64, requires_grad=True)
    excess = own + (h[LABELS == 0] - own).relu() / objective.max_fpr
    expected = torch.autograd.grad(SHARE * excess.sum() / len(h), own)
    found = torch.autograd.grad(value(objective, h, *numbers, ours), ours)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert float(found[0]) < 0 if tau <= 0 else tau < 1 or float(found[0]) > 0


def test_rows_of_class_1_do_not_move_tau_and_rows_below_it_move_nothing_else() -> None:
    objective = AUC(max_fpr=0.3, positive_share=SHARE)
    for label, tau in ((1, 0.2), (0, 0.99)):
        h = scores()[label == LABELS].requires_grad_()
        point = [torch.tensor(each, dtype=FLOAT64, requires_grad=True) for each in (0.4, 0.6, 0.3, tau)]
        cost = value(objective, h, *point, labels=LABELS[label == LABELS])
        _, a, b, moved, *rows = torch.autograd.grad(cost, [*point, h])
        assert (bool(a), bool(b), bool(moved), bool(rows[0].any())) == (label == 1, False, label == 0, label == 1)


def test_the_whole_curve_costs_what_it_did_to_the_bit() -> None:
    assert AUC(max_fpr=1.0) == AUC()
    h, (alpha, a, b) = scores(), torch.tensor([0.4, 0.6, 0.3], dtype=FLOAT64)
    up = (LABELS == 1).to(FLOAT64)
    down, p = 1.0 - up, SHARE
    h = torch.sigmoid(logits_of(h)[..., 1])
    spread = (1.0 - p) * (h - a) ** 2 * up + p * (h - b) ** 2 * down - p * (1.0 - p) * alpha**2
    order = p * h * down - (1.0 - p) * h * up
    before = ((spread + 2.0 * alpha * (p * (1.0 - p) * MARGIN + order)) * 0.1).sum()
    assert torch.equal(value(AUC(margin=MARGIN, positive_share=SHARE, max_fpr=1.0), scores(), alpha, a, b), before)


@pytest.mark.parametrize("objective", [*FORMS, *PARTS], ids=lambda o: f"{o.form}, {o.max_fpr:.2g}")
def test_scaled_the_scores_gradient_alone_is_divided_by_the_classes_shares(objective: AUC) -> None:
    costs, gradients = [], []
    for each in (objective, dataclasses.replace(objective, scaled=True)):
        point = [scores().requires_grad_(), *torch.tensor([0.4, 0.6, 0.3, 0.6], dtype=FLOAT64, requires_grad=True)]
        point = point if each.max_fpr < 1.0 else point[:-1]
        costs.append(value(each, *point))
        gradients.append(torch.autograd.grad(costs[-1], point))
    assert torch.equal(*costs)
    (plain, *numbers), (scaled, *same) = gradients
    torch.testing.assert_close(scaled, plain / (SHARE * (1 - SHARE)), rtol=1e-12, atol=0)
    assert same == numbers


def binary(*layers: nn.Module, **options: Any) -> fedmm.Network:
    return dataclasses.replace(network(*layers, **options), classes=2)


# The network ----------------------------------------------------------------------------------------------------------


def test_a_and_b_are_of_omega_and_alpha_is_psi() -> None:
    function = FlatNetwork(binary(), AUC(), torch.zeros(2, WIDTH), seed=0)
    assert {b.name: (b.side, tuple(b.shape)) for b in function.layout.blocks if b.name[0] in "la"} == {
        "levels.weight": ("min", (2,)),
        "adversary.weight": ("max", (1,)),
    }
    outputs = function.outputs(torch.arange(float(function.layout.size)), torch.zeros(3, WIDTH), 0)
    size = function.layout.size
    assert outputs.adversary.tolist() == [[size - 1.0, size - 3.0, size - 2.0]] * 3


@pytest.mark.parametrize("objective", [*FORMS, *PARTS], ids=repr)
def test_all_numbers_begin_at_the_saddle_of_a_network_that_knows_nothing(objective: AUC) -> None:
    given = dataclasses.replace(objective, positive_share=SHARE)
    function = FlatNetwork(binary(), given, torch.zeros(2, WIDTH), seed=0)
    found = function.outputs(function.start, torch.zeros(1, WIDTH), 0).adversary[0].double()
    expected = torch.stack([*saddle_of(objective, torch.full((len(LABELS),), 0.5, dtype=FLOAT64)), torch.tensor(0.5)])
    torch.testing.assert_close(found, expected[: len(found)].double(), rtol=1e-7, atol=0)


def test_tau_is_one_more_number_of_omega() -> None:
    function = FlatNetwork(binary(), AUC(max_fpr=0.3, positive_share=0.5), torch.zeros(2, WIDTH), seed=0)
    assert {b.name: (b.side, tuple(b.shape)) for b in function.layout.blocks if b.name[0] in "la"} == {
        "levels.weight": ("min", (3,)),
        "adversary.weight": ("max", (1,)),
    }
    labels = torch.zeros(2, dtype=torch.int64)
    for h, moved in ((0.49, 1.0), (0.51, 1.0 - 1 / 0.3)):
        tau = torch.full((), 0.5, dtype=FLOAT64, requires_grad=True)
        others = torch.zeros(3, dtype=FLOAT64).unbind()
        cost = value(
            AUC(max_fpr=0.3, positive_share=0.5), torch.full((2,), h, dtype=FLOAT64), *others, tau, labels=labels
        )
        assert float(torch.autograd.grad(cost, tau)[0]) == pytest.approx(0.5 * moved)


def test_the_other_parameters_begin_as_with_source_only() -> None:
    ours, plain = (FlatNetwork(binary(), each, torch.zeros(2, WIDTH), seed=5) for each in (AUC(), fedmm.SourceOnly()))
    assert torch.equal(ours.start[: plain.layout.size], plain.start)


def test_an_adversary_of_ones_own_is_refused() -> None:
    with pytest.raises(FedmmError, match=r"^adversary must be left out: the objective's adversary is not a network$"):
        FlatNetwork(binary(adversary=nn.Linear(1, 1)), AUC(), torch.zeros(2, WIDTH), seed=0)


ROUNDS = 80


# Federations ----------------------------------------------------------------------------------------------------------


def cloud(label: int, seed: int, gap: float = 1.8, **options: Any) -> Client:
    """12 rows of one class, which overlaps with the other."""
    x = torch.randn(12, 1, generator=generator(seed), dtype=FLOAT64)
    return Client(source=(3.0 * (x - x.mean()) + gap * label - gap / 2, torch.full((12,), label)), **options)


def sites(gap: float = 1.8) -> list[Client]:
    """Four sites, each with rows of one class alone: p = 1/4."""
    return [
        cloud(label, seed, gap, name=name) for label, seed, name in ((0, 1, "b"), (1, 2, "a"), (0, 3, "c"), (0, 4, "d"))
    ]


def pooled(gap: float = 1.8) -> Client:
    x, y = (torch.cat([client.source[part] for client in sites(gap)]) for part in (0, 1))
    return Client(source=(x, y), name="all")


def built(
    clients: list[Client], objective: Objective, algorithm: Algorithm, rounds: int = 3, **options: Any
) -> Adaptation:
    """h = sigmoid(w x): few parameters, and a saddle that is soon reached."""
    given = train_options(**{"rounds": rounds, "batch_size": 12, "dtype": FLOAT64, "seed": 3} | options)
    head = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(head.weight)
    return Adaptation(clients, fedmm.Network(nn.Identity(), 2, task_head=head), objective, algorithm, given)


def test_the_share_of_class_1_is_measured_by_the_clients_weights() -> None:
    mixed = Client(source=(torch.zeros(8, 1), torch.tensor([1, 0] * 4)), name="e", weight=2.0)
    clients = built([*sites(), mixed], AUC(), fedmm.FedSGDA()).problem.clients
    for client in clients:  # (1 + 2 / 2) / (4 + 2)
        torch.testing.assert_close(client.weights.classes, torch.tensor([2 / 3, 1 / 3], dtype=FLOAT64))
    given = built([*sites(), mixed], AUC(positive_share=0.4), fedmm.FedSGDA()).problem.clients
    assert given[0].weights.classes is None


@pytest.mark.parametrize("objective", FORMS + PARTS, ids=lambda o: f"{o.form} {o.max_fpr:.1f}")
def test_one_step_of_sites_with_one_class_each_is_that_of_all_rows_together(objective: AUC) -> None:
    algorithm = fedmm.FedSGDA(0.1, 0.2)
    apart = built(sites(), objective, algorithm).run()[0].state.z
    together = built([pooled()], objective, algorithm, batch_size=48).run()[0].state.z
    torch.testing.assert_close(apart, together, rtol=1e-12, atol=1e-14)


@each_form
@pytest.mark.parametrize(
    "algorithm",
    [
        fedmm.FedSGDA(2.0, 2.0),
        fedmm.FedMM(0.2, 0.2, local_steps=5),
    ],
    ids=lambda a: a.name,
)
def test_sites_with_one_class_each_reach_the_saddle_of_all_rows(objective: AUC, algorithm: Algorithm) -> None:
    apart = built(sites(), objective, algorithm, ROUNDS).run()[0].state.z
    whole = built([pooled()], objective, fedmm.FedSGDA(2.0, 2.0), ROUNDS, batch_size=48)
    together = whole.run()[0].state.z
    field = whole.problem.clients[0].open_round(0, 1, 1, {}).field(together, 0)
    assert float(field.norm()) < 1e-12
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-10)


@each_form
@pytest.mark.parametrize(
    "algorithm", [fedmm.FedSGDA(1.0, 1.0), fedmm.FedMM(0.1, 0.1, local_steps=5)], ids=lambda a: a.name
)
def test_sites_with_one_class_each_reach_the_fixed_point_of_a_part(objective: AUC, algorithm: Algorithm) -> None:
    # 9 of 36 rows of class 0; tau may be anywhere between two of them. A site's own quantile is another.
    part = dataclasses.replace(objective, max_fpr=0.25)
    whole = built([pooled(5.0)], part, fedmm.FedSGDA({"task_head": 4.0, "*": 1.0}, 1.0), 200, batch_size=48)
    together = whole.run()[0].state.z
    assert float(whole.problem.clients[0].open_round(0, 1, 1, {}).field(together, 0).norm()) < 1e-12
    apart = built(sites(5.0), part, algorithm, 400).run()[0].state.z
    tau = 4
    torch.testing.assert_close(apart[torch.arange(6) != tau], together[torch.arange(6) != tau], rtol=0, atol=1e-10)
    h = torch.sigmoid(2.0 * together[1] * pooled(5.0).source[0].flatten()[pooled(5.0).source[1] == 0])
    for z in (apart, together):
        assert int((h > z[tau]).sum()) == 9


def test_every_engine_ends_at_the_same_point() -> None:
    adaptation = built(sites(), AUC(), fedmm.FedMM(0.2, 0.2, local_steps=3), 4, batch_size=5)
    *_, (reference, _) = played(adaptation.engine, 4)
    messages = fedmm.Messaging(adaptation.problem, adaptation.algorithm, adaptation.rounds, adaptation.terms)
    *_, (exchanged, _) = played(messages, 4)
    assert torch.equal(exchanged.z, reference.z)
    stack, _ = build_stack([adaptation], "fp32", StackSettings())
    for _ in range(4):
        stack.advance()
    torch.testing.assert_close(stack.models[0], reference.z, rtol=1e-12, atol=1e-14)


def test_alpha_is_held_at_0_at_the_server_alone() -> None:
    # From 1, a step of 4 takes alpha to 3 at the site of class 0 alone and to -1 at that of class 1: held at 0 there,
    # the mean of both sites would be above 1.
    one, other = (
        built([cloud(label, 1, name="a")], AUC(positive_share=0.5), fedmm.FedSGDA(0.1, 4.0), 1) for label in (0, 1)
    )
    alphas = [float(each.run()[0].state.z[-1]) for each in (one, other)]
    assert alphas == [pytest.approx(3.0), 0.0]
    both = built([cloud(0, 1, name="a"), cloud(1, 1, name="b")], AUC(), fedmm.FedSGDA(0.1, 4.0), 1)
    free = built([cloud(0, 1, name="a"), cloud(1, 1, name="b")], AUC(), fedmm.FedSGDA(0.1, 4.0), 1)
    free.problem = dataclasses.replace(free.problem, constraints={})
    *_, (unheld, _) = played(free.engine_for(free.algorithm), 1)
    torch.testing.assert_close(both.run()[0].state.z, unheld.z, rtol=1e-12, atol=1e-15)


@each_form
def test_a_very_rare_class_is_ranked_first_from_the_first_rounds_on(objective: AUC) -> None:
    # One row to 99. From alpha = a = b = 0 the terms of the variances alone act at first: the rare row's h falls to a.
    x = torch.linspace(-1.0, 0.5, 99, dtype=FLOAT64)[:, None]
    common = Client(source=(x, torch.zeros(99, dtype=torch.int64)), name="common", weight=99.0)
    rare = Client(source=(torch.ones(1, 1, dtype=FLOAT64), torch.ones(1, dtype=torch.int64)), name="rare", weight=1.0)
    for rounds in (1, 30):
        z = (
            built(
                [common, rare],
                dataclasses.replace(objective, scaled=True),
                fedmm.FedMM(0.02, 0.02, local_steps=10),
                rounds,
            )
            .run()[0]
            .state.z
        )
        assert float(z[1] - z[0]) > 0.0  # h = sigmoid((w_1 - w_0) x) grows with x


@pytest.mark.parametrize("algorithm", fedmm.ALGORITHMS)
def test_every_algorithm_trains_with_it(algorithm: str) -> None:
    adapted, error = built(sites(), AUC(), with_options(fedmm.ALGORITHMS[algorithm]), 4).run()
    assert error is None
    assert bool(adapted.state.z.isfinite().all())


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        (
            [cloud(0, 1, name="a"), cloud(0, 2, name="b")],
            "auc needs rows of two classes, and no client holds any of class 1",
        ),
        ([cloud(1, 1, name="a")], "auc needs rows of two classes, and no client holds any of class 0"),
        ([Client(target=torch.zeros(4, 1))], "no client holds labelled source rows"),
    ],
    ids=["no class 1", "no class 0", "no labels"],
)
def test_a_federation_without_both_classes_is_refused(clients: list[Client], words: str) -> None:
    with pytest.raises(FedmmError, match=words):
        built(clients, AUC(), fedmm.FedSGDA())


def test_other_numbers_of_classes_are_refused() -> None:
    with pytest.raises(FedmmError, match=r"^auc needs 2 classes, not 10$"):
        fedmm.adapt(sites(), fedmm.Network(nn.Identity(), 10), AUC(), fedmm.FedSGDA(), 1)


def test_counts_are_not_told_where_updates_carry_noise() -> None:
    pytest.importorskip("dp_accounting", reason="noise in updates needs fedmm[privacy]")
    noise = fedmm.Terms(transmission=fedmm.GaussianUpdate(0.1, 0.1))
    model, given = fedmm.Network(nn.Identity(), 2), train_options(rounds=1, batch_size=4, probe_rows=0, best_by="")
    with pytest.raises(
        FedmmError, match=r"^auc needs the clients' class counts, which carry no noise; if updates carry"
    ):
        Adaptation(sites(), model, AUC(), fedmm.FedSGDA(), given, terms=noise)
    assert Adaptation(sites(), model, AUC(positive_share=0.25), fedmm.FedSGDA(), given, terms=noise).account
