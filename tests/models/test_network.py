from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from problems import CLASSES, WIDTH, adapt, generator, labels, mixed_client, network, rows, source_client, target_client
from torch import Tensor, nn

import fedmm
from fedmm import CDAN, DANN, MDD, FedmmError, Network, SourceOnly
from fedmm.models import MLP, MODELS, FlatNetwork, Model, PaperCNN, PaperCNN3, SmallCNN


def flat(model: Network, shape: tuple[int, ...] = (WIDTH,), objective: Any = None) -> FlatNetwork:
    return FlatNetwork(model, objective or DANN(), torch.zeros(2, *shape), seed=0)


def by_name(function: FlatNetwork) -> dict[str, Tensor]:
    return {block.name: tensor for block, tensor in function.layout.tensors(function.start)}


# The user's module ----------------------------------------------------------------------------------------------------


def test_the_users_modules_are_not_modified() -> None:
    parts = {
        "features": nn.Sequential(nn.Linear(WIDTH, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)),
        "task_head": nn.Sequential(nn.Linear(6, CLASSES), nn.Dropout(0.5)),
        "adversary": nn.Sequential(nn.Linear(6, 2)),
    }
    before = {name: {k: v.clone() for k, v in part.state_dict().items()} for name, part in parts.items()}
    kinds = {name: [type(layer) for layer in part] for name, part in parts.items()}
    parts["adversary"].eval()

    adapted = adapt(model=Network(classes=CLASSES, **parts), dtype=torch.float64)

    for name, part in parts.items():
        assert [type(layer) for layer in part] == kinds[name]
        assert part.training == (name != "adversary")
        assert all(parameter.grad is None for parameter in part.parameters())
        for key, value in part.state_dict().items():
            assert torch.equal(value, before[name][key])
            assert value.dtype == before[name][key].dtype
    assert not torch.equal(adapted.tensors()["features.0.weight"], before["features"]["0.weight"].double())


def test_given_heads_are_used_as_they_are() -> None:
    head, adversary = nn.Linear(6, CLASSES), nn.Linear(6, 2)
    start = by_name(flat(network(task_head=head, adversary=adversary)))
    assert torch.equal(start["task_head.weight"], head.weight.detach())
    assert torch.equal(start["adversary.weight"], adversary.weight.detach())


def test_parameters_that_need_no_gradient_stay() -> None:
    body = nn.Sequential(nn.Linear(WIDTH, 6), nn.Tanh(), nn.Linear(6, 6))
    body[0].requires_grad_(False)
    adapted = adapt(model=network(*body))
    model = adapted.tensors()
    # only the second layer, 6 x 6 + 6, a task head of 21 and an adversary of 47 travel
    assert adapted.state.z.numel() == 42 + 21 + 47
    assert torch.equal(model["features.0.weight"], body[0].weight)
    assert not torch.equal(model["features.2.weight"], body[2].weight)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: Network(lambda x: x, 3), "features must be an nn.Module, not function"),
        (lambda: Network(nn.Identity(), 1), "classes must be at least 2"),
        (lambda: network(head_dropout=1.0), "head_dropout must be between 0 and 0.99"),
        (lambda: network(batch_norm="shared"), "batch_norm must be one of averaged, frozen, local"),
        (lambda: network(centre="middle"), "centre must be one of none, train_mean, image_mean, batch_mean"),
        (lambda: network(initialisation="zero"), "initialisation must be one of torch, truncated_normal"),
        (lambda: MLP(hidden=()), "hidden must name at least one"),
        (lambda: MLP(hidden=(0,)), "hidden must be at least 1"),
        (lambda: SmallCNN(channels=(0, 4)), "channels must be at least 1"),
        (lambda: PaperCNN(task_hidden=(-1,)), "task_hidden must be at least 1"),
        (lambda: adapt(model=network(nn.Linear(WIDTH + 1, 6))), "the features module does not take a batch of shape"),
        (lambda: PaperCNN().build((64,), 10, 0), "takes pictures"),
    ],
)
def test_a_network_that_cannot_be_is_refused(model: Any, message: str) -> None:
    with pytest.raises(FedmmError, match=message):
        model()


@pytest.mark.parametrize(
    "head",
    [{"adversary": nn.Linear(5, 2)}, {"task_head": nn.Linear(5, CLASSES)}, {"task_head": nn.Linear(6, CLASSES - 1)}],
    ids=["adversary's width", "task head's width", "too few classes"],
)
def test_a_given_head_that_does_not_fit_is_refused(head: dict[str, nn.Module]) -> None:
    with pytest.raises(FedmmError):
        adapt(model=network(**head))


def test_an_empty_sequential_is_a_head_too() -> None:
    model = network(nn.Linear(WIDTH, CLASSES), task_head=nn.Sequential())
    assert not [name for name in by_name(flat(model)) if name.startswith("task_head")]


def test_one_seed_is_one_result_for_lazy_layers_too() -> None:
    def start() -> Tensor:
        return flat(network(nn.LazyLinear(6))).start

    torch.manual_seed(1)
    first = start()
    torch.manual_seed(2)
    assert torch.equal(start(), first)


# Inputs ---------------------------------------------------------------------------------------------------------------


def test_bytes_are_divided_by_255() -> None:
    pixels = torch.randint(0, 256, (24, WIDTH), generator=generator(0), dtype=torch.uint8)
    target = pixels.flip(0)
    as_bytes = [fedmm.Client(source=(pixels, labels(1)), name="s"), fedmm.Client(target=target, name="t")]
    as_floats = [
        fedmm.Client(source=(pixels.float() / 255.0, labels(1)), name="s"),
        fedmm.Client(target=target.float() / 255.0, name="t"),
    ]
    first, second = adapt(as_bytes), adapt(as_floats)
    assert torch.equal(first.state.z, second.state.z)
    assert torch.equal(first.predict_proba(pixels), first.predict_proba(pixels.float() / 255.0))


@pytest.mark.parametrize("centre", ["train_mean", "image_mean", "batch_mean"])
def test_bytes_are_divided_by_255_before_they_are_centred(centre: str) -> None:
    # The means differ in rounding alone: a sum of bytes is exact, a sum of float32 quotients is not.
    pixels = torch.randint(0, 256, (24, WIDTH), generator=generator(0), dtype=torch.uint8)
    first, second = (
        adapt([fedmm.Client(source=(x, labels(1)), target=x, name="s")], network(centre=centre))
        for x in (pixels, pixels.float() / 255.0)
    )
    torch.testing.assert_close(first.state.z, second.state.z, rtol=1e-4, atol=1e-6)


def test_bytes_of_one_domain_and_floats_of_the_other_are_refused() -> None:
    pixels = torch.randint(0, 256, (24, WIDTH), generator=generator(0), dtype=torch.uint8)
    client = fedmm.Client(source=(pixels, labels(1)), target=torch.rand(24, WIDTH, generator=generator(1)), name="s")
    with pytest.raises(
        fedmm.FedmmError, match=r"client .s.: target holds torch.float32 values, .*all clients bytes or none"
    ):
        adapt([client])


def test_the_training_mean_is_that_of_all_clients_rows_and_is_stored() -> None:
    clients = [source_client(seed=1), fedmm.Client(target=rows(2, 12) + 3.0, name="target")]
    adapted = adapt(clients, network(nn.Flatten(), centre="train_mean"))
    mean = torch.cat([rows(1), rows(2, 12) + 3.0]).mean()
    torch.testing.assert_close(adapted.tensors()["input_mean"], mean)
    torch.testing.assert_close(adapted.features(rows(5)), rows(5) - mean)


def test_without_centring_nothing_is_subtracted() -> None:
    assert torch.equal(adapt(model=network(nn.Flatten())).features(rows(5)), rows(5))


def test_batch_mean_centring_subtracts_one_number_of_the_batch_at_hand() -> None:
    adapted = adapt(model=network(nn.Flatten(), centre="batch_mean"))
    torch.testing.assert_close(adapted.features(rows(5)), rows(5) - rows(5).mean())
    torch.testing.assert_close(adapted.features(rows(5)[:3]), rows(5)[:3] - rows(5)[:3].mean())


def test_image_mean_centring_subtracts_each_rows_own_mean() -> None:
    adapted = adapt(model=network(nn.Flatten(), centre="image_mean"))
    expected = rows(5) - rows(5).mean(dim=1, keepdim=True)
    torch.testing.assert_close(adapted.features(rows(5)), expected)
    torch.testing.assert_close(adapted.features(rows(5)[:3]), expected[:3])
    torch.testing.assert_close(adapted.features(rows(5) + 7.0), expected, rtol=1e-4, atol=1e-5)


# Built-in networks ----------------------------------------------------------------------------------------------------


def test_the_papers_network_has_2352_features_and_522792_parameters() -> None:
    # 28 x 28 pooled twice is 7 x 7, of 48 channels: 2,352. Convolutions 5 x 5 x 3 x 32 + 32 = 2,432 and
    # 5 x 5 x 32 x 48 + 48 = 38,448; task head 2352 x 100 + 100, 100 x 100 + 100, 100 x 10 + 10 = 246,410; domain head
    # 2352 x 100 + 100, 100 x 2 + 2 = 235,502. Together 522,792.
    function = flat(PaperCNN().build((3, 28, 28), 10, 0), (3, 28, 28))
    sizes = dict.fromkeys(("features", "task_head", "adversary"), 0)
    for block in function.layout.blocks:
        sizes[block.name.split(".")[0]] += block.size
    assert sizes == {"features": 2_432 + 38_448, "task_head": 246_410, "adversary": 235_502}
    assert function.layout.size == 522_792
    assert function.evaluate(function.start, {}, torch.zeros(1, 3, 28, 28)).features.shape == (1, 2_352)


def test_the_network_of_the_papers_text_has_three_convolutions_and_two_layer_heads() -> None:
    # 7 x 7 of 64 channels: 3,136 features. The program's convolutions 2,432 and 38,448, a third 3 x 3 x 48 x 64 + 64 =
    # 27,712; task head 3136 x 100 + 100, 100 x 10 + 10 = 314,710; domain head 3136 x 100 + 100, 100 x 2 + 2 = 313,902.
    function = flat(PaperCNN3().build((3, 28, 28), 10, 0), (3, 28, 28))
    assert function.layout.size == 2_432 + 38_448 + 27_712 + 314_710 + 313_902
    assert function.evaluate(function.start, {}, torch.zeros(1, 3, 28, 28)).features.shape == (1, 3_136)


def test_the_papers_initialisation_is_a_cut_normal() -> None:
    # Cut at two sigma, the standard deviation of normal(0, 0.1) is 0.1 x 0.8796.
    start = by_name(flat(PaperCNN().build((3, 28, 28), 10, 0), (3, 28, 28)))
    for name, tensor in start.items():
        if name.endswith("bias"):
            assert tensor.tolist() == [pytest.approx(0.1)] * len(tensor)
        else:
            assert float(tensor.abs().max()) <= 0.2
            if tensor.numel() > 5000:
                assert float(tensor.std()) == pytest.approx(0.08796, rel=0.03)


def need(kind: type[Model]) -> None:
    """Skip where the model's optional dependency is not there."""
    if kind.name in ("mobilenet_v2", "backbone"):
        pytest.importorskip("torchvision")


@pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)
def test_a_built_in_network_follows_its_seed_alone(kind: type[Model]) -> None:
    need(kind)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first, again, other = (flat(kind().build((3, 8, 8), 3, seed), (3, 8, 8)).start for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert kind() == kind()
    assert hash(kind()) == hash(kind())


@pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)
def test_a_built_in_network_trains_on_pictures(kind: type[Model]) -> None:
    need(kind)
    pictures = torch.rand(6, 3, 8, 8, generator=generator(0))
    client = fedmm.Client(source=(pictures, labels(0, 6)), target=pictures.flip(0), name="site")
    adapted = adapt([client], kind(head_dropout=0.2).build((3, 8, 8), CLASSES, 0), rounds=1, batch_size=4)
    assert adapted.predict_proba(pictures).shape == (6, CLASSES)


@pytest.mark.parametrize("option", ["task_hidden", "adversary_hidden", "hidden"])
@pytest.mark.parametrize(
    ("widths", "words"),
    [
        ((8, 0), "be at least 1, not 0"),
        ((8, 10**12), "be at most 1000000, not 1000000000000"),
        ((10**5, 10**5), "join layers by at most 1000000000 weights, not by 100000 x 100000"),
    ],
)
def test_layers_that_cannot_be_are_refused(option: str, widths: tuple[int, int], words: str) -> None:
    with pytest.raises(FedmmError, match=f"^{option} must {words}$"):
        MODELS["mlp"](**{option: widths})


# Heads ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objective", "shape"),
    [(DANN(), (2, 6)), (CDAN(), (2, 6 * CLASSES)), (CDAN(random_dim=7), (2, 7)), (MDD(), (CLASSES, 6))],
    ids=repr,
)
def test_the_adversary_is_built_to_the_objectives_widths(objective: Any, shape: tuple[int, int]) -> None:
    weights = by_name(flat(network(adversary_hidden=()), objective=objective))
    assert tuple(weights["adversary.0.weight"].shape) == shape


def test_mdds_adversary_is_built_like_the_task_head() -> None:
    start = by_name(flat(network(task_hidden=(7, 8), adversary_hidden=(99,)), objective=MDD()))
    shapes = {
        side: [tuple(tensor.shape) for name, tensor in start.items() if name.startswith(side)]
        for side in ("task_head", "adversary")
    }
    assert shapes["task_head"] == shapes["adversary"]
    assert not torch.equal(start["task_head.0.weight"], start["adversary.0.weight"])


def test_heads_follow_the_seed() -> None:
    def start(seed: int) -> dict[str, Tensor]:
        return by_name(FlatNetwork(network(), DANN(), torch.zeros(2, WIDTH), seed=seed))

    assert torch.equal(start(0)["task_head.0.weight"], start(0)["task_head.0.weight"])
    assert not torch.equal(start(0)["task_head.0.weight"], start(1)["task_head.0.weight"])
    assert torch.equal(start(0)["features.0.weight"], start(1)["features.0.weight"])


def test_omega_is_features_and_task_head_and_psi_is_the_adversary() -> None:
    function = flat(network())
    sides = {block.name.split(".")[0]: block.side for block in function.layout.blocks}
    assert sides == {"features": "min", "task_head": "min", "adversary": "max"}
    assert flat(network(), objective=SourceOnly()).layout.size == function.layout.min_size
    assert math.prod((WIDTH, 6)) + 6 + 6 * CLASSES + CLASSES == function.layout.min_size


def test_evaluation_does_not_depend_on_how_rows_are_cut_into_batches() -> None:
    function = flat(network())
    x = rows(3)
    whole, cut = (function.evaluate(function.start, {}, x, batch_size=size) for size in (24, 5))
    torch.testing.assert_close(whole, cut, rtol=1e-6, atol=1e-7)


def test_clients_share_one_network_without_disturbing_each_other() -> None:
    # A prediction in the middle of training, or another client's step, changes nothing of what follows.
    watched = adapt(validation=(rows(8), labels(8)), evaluate_every=1, rounds=3)
    assert torch.equal(watched.state.z, adapt(rounds=3).state.z)
    few = adapt([source_client(), target_client()], rounds=1).state.clients["source"]["dual"]
    more = adapt([source_client(), target_client(), mixed_client()], rounds=1).state.clients["source"]["dual"]
    assert torch.equal(few, more)
