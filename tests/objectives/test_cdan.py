from __future__ import annotations

import math

import pytest
import torch
from problems import CLASSES, FLOAT64, WIDTH, adapt, generator
from torch import Tensor

from fedmm import CDAN, FedmmError
from fedmm.core.objective import SOURCE, TARGET, AdversaryShape, Outputs, row_weights


def leaves(rows: int = 5) -> tuple[Tensor, Tensor]:
    random = generator(0)
    return (
        torch.randn(rows, WIDTH, dtype=FLOAT64, generator=random).requires_grad_(),
        torch.randn(rows, CLASSES, dtype=FLOAT64, generator=random).requires_grad_(),
    )


def test_the_adversary_sees_the_class_major_outer_product() -> None:
    # softmax(0, ln 3) = (1/4, 3/4); features (2, 4): class 0 gives (0.5, 1), class 1 gives (1.5, 3).
    seen = CDAN().adversary_input(torch.tensor([[2.0, 4.0]]), torch.tensor([[0.0, math.log(3.0)]]), {})
    torch.testing.assert_close(seen, torch.tensor([[0.5, 1.0, 1.5, 3.0]]))


@pytest.mark.parametrize("random_dim", [0, 7])
def test_detaching_the_softmax_closes_its_gradient_path_and_no_other(random_dim: int) -> None:
    for detach in (False, True):
        objective = CDAN(detach_softmax=detach, random_dim=random_dim)
        features, logits = leaves()
        maps = {name: m.to(FLOAT64) for name, m in objective.random_maps(WIDTH, CLASSES, 0).items()}
        seen = objective.adversary_input(features, logits, maps).square().sum()
        by_features, by_logits = torch.autograd.grad(seen, [features, logits], allow_unused=True)
        assert bool((by_features != 0).all())
        assert (by_logits is None) == detach


def test_detaching_the_softmax_does_not_change_what_is_seen() -> None:
    features, logits = leaves()
    seen = [CDAN(detach_softmax=detach).adversary_input(features, logits, {}) for detach in (False, True)]
    assert torch.equal(*seen)


def test_entropy_weighting_counts_a_row_one_plus_exp_of_minus_its_entropy() -> None:
    # Row 1 predicts (1/2, 1/2): H = ln 2, weight 1 + 1/2. Row 2 predicts (1/4, 3/4): H = ln 4 - 3/4 ln 3,
    # weight 1 + 3^(3/4) / 4. An indifferent adversary costs ln 2 on row 1, and (0, ln 3) costs ln 4 on row 2, a
    # source row.
    logits = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]], dtype=FLOAT64)
    adversary = torch.tensor([[0.0, 0.0], [0.0, math.log(3.0)]], dtype=FLOAT64)
    weights = row_weights(torch.tensor([TARGET, SOURCE]), torch.ones(2, dtype=FLOAT64))
    first, second = 1.5, 1.0 + 3.0**0.75 / 4.0
    expected = (first * math.log(2.0) + second * math.log(4.0)) / (first + second)

    _, domain = CDAN(entropy_weighting=True).losses(
        Outputs(logits, logits, adversary), torch.zeros(2, dtype=torch.int64), weights
    )

    assert float(domain) == pytest.approx(expected, abs=1e-12)


def test_entropy_weights_are_not_differentiated() -> None:
    # The adversary's logits are constants here, so the class logits could only act through the weights.
    features, logits = leaves()
    adversary = torch.randn(5, 2, dtype=FLOAT64, generator=generator(1)).requires_grad_()
    weights = row_weights(torch.tensor([SOURCE, SOURCE, TARGET, TARGET, TARGET]), torch.ones(5, dtype=FLOAT64))
    _, domain = CDAN(entropy_weighting=True).losses(
        Outputs(features, logits, adversary), torch.zeros(5, dtype=torch.int64), weights
    )
    by_logits, by_adversary = torch.autograd.grad(domain, [logits, adversary], allow_unused=True)
    assert by_logits is None
    assert bool((by_adversary != 0).all())


def test_equal_entropies_weigh_all_rows_alike() -> None:
    features, _ = leaves()
    flat = torch.zeros(5, CLASSES, dtype=FLOAT64)
    adversary = torch.randn(5, 2, dtype=FLOAT64, generator=generator(1))
    weights = row_weights(torch.tensor([SOURCE, SOURCE, TARGET, TARGET, TARGET]), torch.ones(5, dtype=FLOAT64))
    labels = torch.zeros(5, dtype=torch.int64)
    plain, weighted = (
        CDAN(entropy_weighting=on).losses(Outputs(features, flat, adversary), labels, weights) for on in (False, True)
    )
    torch.testing.assert_close(weighted, plain, rtol=0, atol=1e-15)


def test_random_maps_come_from_the_seed_and_have_the_widths_asked_for() -> None:
    objective = CDAN(random_dim=16)
    first, again, other = (objective.random_maps(WIDTH, CLASSES, seed) for seed in (3, 3, 4))
    assert {name: tuple(m.shape) for name, m in first.items()} == {
        "map_features": (WIDTH, 16),
        "map_softmax": (CLASSES, 16),
    }
    for name, map_ in first.items():
        assert torch.equal(map_, again[name])
        assert not torch.equal(map_, other[name])
    assert objective.adversary_shape(WIDTH, CLASSES) == AdversaryShape(16, 2)
    assert CDAN().adversary_shape(WIDTH, CLASSES) == AdversaryShape(WIDTH * CLASSES, 2)
    assert CDAN().random_maps(WIDTH, CLASSES, 3) == {}


def test_random_maps_do_not_touch_the_global_generator() -> None:
    before = torch.get_rng_state()
    CDAN(random_dim=16).random_maps(WIDTH, CLASSES, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_random_map_keeps_inner_products_of_outer_products() -> None:
    # E <T(f, p), T(g, q)> = <f, g> <p, q> = <p x f, q x g>: R's entries are independent with mean 0 and variance 1.
    # The standard deviation is below 3 |f||g||p||q| / sqrt(d): (f R)(g R) of unit vectors has second moment <= 3, for
    # each of two independent maps, so the product's is <= 9. Five standard deviations at d = 20,000: 0.106.
    width = 20_000
    objective = CDAN(random_dim=width)
    features, logits = (leaf.detach() for leaf in leaves(2))
    features = features / features.norm(dim=-1, keepdim=True)
    maps = {name: m.to(FLOAT64) for name, m in objective.random_maps(WIDTH, CLASSES, 0).items()}

    mapped = objective.adversary_input(features, logits, maps)
    exact = CDAN().adversary_input(features, logits, {})

    torch.testing.assert_close(mapped @ mapped.T, exact @ exact.T, rtol=0, atol=5 * 3 / math.sqrt(width))
    assert float(exact[0] @ exact[0]) > 0.3  # the tolerance means something


def test_adapt_gives_every_client_the_same_maps_and_keeps_them_with_the_model() -> None:
    objective = CDAN(random_dim=5)
    kept = adapt(objective=objective, seed=9).tensors()
    for name, map_ in objective.random_maps(6, CLASSES, 9).items():
        assert torch.equal(kept[name], map_)


@pytest.mark.parametrize("option", ["detach_softmax", "entropy_weighting"])
def test_a_switch_takes_only_yes_or_no(option: str) -> None:
    with pytest.raises(FedmmError, match=option):
        CDAN(**{option: "no"})
