"""Many networks as one program give the values, gradients and statistics of the networks one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from problems import CLASSES, FLOAT64, WIDTH, generator
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from fedmm import AUC, CDAN, DANN, MDD, Network, SourceOnly
from fedmm.core.objective import Objective
from fedmm.core.seeding import key
from fedmm.models import FlatNetwork, PaperCNN, SmallCNN
from fedmm.models.devices import PRECISIONS, precision
from fedmm.models.stacked import network as stacked
from fedmm.models.stacked.network import StackedNetwork, stacking_obstacle

ROWS = 6
PICTURE = (2, 6, 5)
Layers = Callable[[], Sequence[nn.Module]]


def functions(
    layers: Layers,
    shape: tuple[int, ...] = (WIDTH,),
    count: int = 3,
    objective: Objective | None = None,
    **options: Any,
) -> list[FlatNetwork]:
    """Networks of one structure that are unlike in weights, input mean and random maps."""
    built = []
    for seed in range(count):
        torch.manual_seed(seed)
        model = Network(nn.Sequential(*layers()), CLASSES, **{"adversary_hidden": (5,)} | options)
        sample = torch.zeros(2, *shape)
        built.append(
            FlatNetwork(model, objective or DANN(), sample, seed=seed, input_mean=0.1 + 0.2 * seed, dtype=FLOAT64)
        )
    return built


def random_statistics(networks: Sequence[FlatNetwork]) -> dict[str, Tensor]:
    """Running statistics ``[G, ...]`` that no training has made."""
    random = generator(5)
    stacks = {}
    for name, first in networks[0].statistics.items():
        shape = (len(networks), *first.shape)
        drawn = torch.rand(shape, generator=random, dtype=FLOAT64)
        stacks[name] = (0.5 + drawn) if first.is_floating_point() else torch.randint(1, 9, shape, generator=random)
    return stacks


def joined(networks: Sequence[FlatNetwork], **options: Any) -> StackedNetwork:
    frozen = networks[0].policy == "frozen"
    modules = [each.module for each in networks]
    return StackedNetwork(modules, networks[0].layout, frozen_statistics=frozen, **options)


def inputs(networks: Sequence[FlatNetwork], shape: tuple[int, ...]) -> Tensor:
    return torch.randn(len(networks), ROWS, *shape, generator=generator(3), dtype=FLOAT64)


def assert_as_one_by_one(networks: Sequence[FlatNetwork], x: Tensor, **options: Any) -> StackedNetwork:
    """In training and in evaluation; the gradient is that of a random function of all outputs."""
    stack = joined(networks, **options)
    count = len(networks)
    keys = torch.tensor([key(g, "dropout") for g in range(count)])
    statistics, constants = random_statistics(networks), stack.constants(torch.arange(count))
    before = {name: value.clone() for name, value in statistics.items()}
    start = torch.stack([each.start for each in networks])
    z = (start + 0.3 * torch.randn(start.shape, generator=generator(4), dtype=FLOAT64)).requires_grad_()
    outputs = stack.outputs(z, x, constants, keys if stack.has_dropout else None, statistics)
    cotangents = [torch.randn(part.shape, generator=generator(9), dtype=FLOAT64) for part in outputs]
    (gradient,) = torch.autograd.grad(sum((o * c).sum() for o, c in zip(outputs, cotangents, strict=True)), z)
    evaluated = stack.evaluate(z.detach(), x, constants, before)
    for g, each in enumerate(networks):
        own = {name: value[g] for name, value in before.items()}
        each.train(own)
        alone = each.outputs(z[g].detach(), each.as_input(x[g]), int(keys[g]))
        expected = each.gradient(sum((o * c[g]).sum() for o, c in zip(alone, cotangents, strict=True)))
        assert_close([part[g] for part in outputs], list(alone))
        assert_close(gradient[g], expected)
        assert_close({name: value[g] for name, value in statistics.items()}, each.read_statistics())
        assert_close([part[g] for part in evaluated], list(each.evaluate(z[g].detach(), own, x[g])))
    return stack


def assert_close(got: Any, expected: Any) -> None:
    torch.testing.assert_close(got, expected, rtol=1e-11, atol=1e-12)


# Layers that are run over the whole stack -----------------------------------------------------------------------------


def after_linear(*layers: nn.Module) -> Layers:
    return lambda: (nn.Linear(WIDTH, 6), *layers, nn.Linear(6, 5))


def after_convolution(*layers: nn.Module) -> Layers:
    return lambda: (nn.Conv2d(2, 3, 3, padding=1), *layers)


ELEMENTWISE = {
    repr(layer): layer
    for layer in (
        nn.ReLU(),
        nn.ReLU(inplace=True),
        nn.LeakyReLU(0.2),
        nn.ELU(0.5),
        nn.GELU(),
        nn.GELU("tanh"),
        nn.SiLU(),
        nn.Tanh(),
        nn.Sigmoid(),
        nn.Softplus(2.0, 1.0),
        nn.ReLU6(),
        nn.Identity(),
    )
}

ON_VECTORS: dict[str, Layers] = {
    **{f"{name} between linear layers": after_linear(layer) for name, layer in ELEMENTWISE.items()},
    "a linear layer without bias": lambda: (nn.Linear(WIDTH, 6, bias=False), nn.Tanh()),
    "dropout": after_linear(nn.Dropout(0.4), nn.Tanh(), nn.Dropout(0.2)),
    "dropout of nothing": after_linear(nn.Dropout(0.0)),
    "dropout of everything": after_linear(nn.Dropout(1.0)),
    "batch normalisation": lambda: (
        nn.BatchNorm1d(WIDTH),
        nn.Linear(WIDTH, 6),
        nn.BatchNorm1d(6, 1e-2, 0.3),
        nn.Tanh(),
    ),
    "batch normalisation without weights": lambda: (nn.BatchNorm1d(WIDTH, affine=False), nn.Linear(WIDTH, 6)),
    "batch normalisation without statistics": lambda: (
        nn.BatchNorm1d(WIDTH, track_running_stats=False),
        nn.Linear(WIDTH, 6),
    ),
    "nested parts": lambda: (
        nn.Sequential(nn.Linear(WIDTH, 6), nn.Sequential(nn.Tanh(), nn.Dropout(0.3))),
        nn.Sequential(),
        nn.Linear(6, 5),
    ),
    "no layers": lambda: (),
    "flattening": lambda: (nn.Flatten(), nn.Linear(WIDTH, 5)),
}

ON_PICTURES: dict[str, Layers] = {
    **{f"{name} after a convolution": after_convolution(layer) for name, layer in ELEMENTWISE.items()},
    "convolutions": lambda: (nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 4, 2)),
    "a strided, dilated, oblong convolution without bias": lambda: (
        nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2), bias=False),
    ),
    "max pooling": after_convolution(nn.MaxPool2d(2)),
    "max pooling that overlaps": after_convolution(nn.MaxPool2d(3, stride=1, padding=1)),
    "max pooling with a border": after_convolution(nn.MaxPool2d(2, ceil_mode=True)),
    "max pooling with holes": after_convolution(nn.MaxPool2d(2, dilation=2)),
    "pooling first": lambda: (nn.MaxPool2d(2), nn.Conv2d(2, 3, 2)),
    "average pooling": after_convolution(nn.AvgPool2d((2, 3), padding=1, count_include_pad=False)),
    "adaptive pooling": after_convolution(nn.AdaptiveAvgPool2d((3, 2))),
    "pooling to one pixel": after_convolution(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 4)),
    "batch normalisation": after_convolution(nn.BatchNorm2d(3), nn.ReLU()),
    "batch normalisation first": lambda: (nn.BatchNorm2d(2, momentum=0.4), nn.Flatten(), nn.Linear(60, 4)),
    "batch normalisation without weights": after_convolution(nn.BatchNorm2d(3, affine=False)),
    "batch normalisation without statistics": after_convolution(nn.BatchNorm2d(3, track_running_stats=False)),
    "dropout": after_convolution(nn.Dropout(0.4), nn.ReLU(), nn.Conv2d(3, 2, 3)),
    "all kinds in turn": after_convolution(
        nn.BatchNorm2d(3),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(18, 5),
        nn.BatchNorm1d(5),
        nn.Tanh(),
    ),
}
each_way = pytest.mark.parametrize("looped", [False, True], ids=["layer by layer", "network by network"])


@each_way
@pytest.mark.parametrize("layers", ON_VECTORS.values(), ids=ON_VECTORS)
def test_networks_on_vectors_are_as_one_by_one(layers: Layers, looped: bool) -> None:
    networks = functions(layers, task_hidden=(4,), head_dropout=0.3)
    stack = assert_as_one_by_one(networks, inputs(networks, (WIDTH,)), looped=looped)
    assert stack.layer_by_layer != looped


@each_way
@pytest.mark.parametrize("layers", ON_PICTURES.values(), ids=ON_PICTURES)
def test_networks_on_pictures_are_as_one_by_one(layers: Layers, looped: bool) -> None:
    networks = functions(layers, PICTURE)
    stack = assert_as_one_by_one(networks, inputs(networks, PICTURE), looped=looped)
    assert stack.layer_by_layer != looped


def test_every_kind_of_layer_that_is_run_over_a_stack_is_tested() -> None:
    tested = {
        type(layer)
        for table, shape in ((ON_VECTORS, (WIDTH,)), (ON_PICTURES, PICTURE))
        for layers in table.values()
        for layer in functions(layers, shape, 1)[0].module.modules()
    }
    assert {*stacked._ELEMENTWISE, *stacked._POOLS, *stacked._NORMS, nn.Conv2d, nn.Flatten, nn.Linear} <= tested


FROZEN: dict[str, tuple[tuple[int, ...], Layers]] = {
    "vectors": ((WIDTH,), ON_VECTORS["batch normalisation"]),
    "pictures": (PICTURE, ON_PICTURES["batch normalisation"]),
    "pictures first": (PICTURE, ON_PICTURES["batch normalisation first"]),
    "without weights": (PICTURE, ON_PICTURES["batch normalisation without weights"]),
    "without statistics": (PICTURE, ON_PICTURES["batch normalisation without statistics"]),
    "without bias before it": (PICTURE, lambda: (nn.Conv2d(2, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU())),
    "several times": (PICTURE, after_convolution(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4))),
    "with unlike eps": (PICTURE, after_convolution(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 2), nn.BatchNorm2d(4, eps=0.1))),
    "after a convolution with groups": (
        PICTURE,
        lambda: (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2, bias=False), nn.BatchNorm2d(4)), nn.ReLU()),
    ),
}


@each_way
@pytest.mark.parametrize(("shape", "layers"), FROZEN.values(), ids=FROZEN)
def test_frozen_statistics_are_used_in_training_and_left_alone(
    shape: tuple[int, ...], layers: Layers, looped: bool
) -> None:
    networks = functions(layers, shape, batch_norm="frozen")
    assert_as_one_by_one(networks, inputs(networks, shape), looped=looped)


@pytest.mark.parametrize("model", [SmallCNN(channels=(3, 4)), PaperCNN(task_hidden=(6,))], ids=lambda model: model.name)
def test_built_in_networks_are_run_layer_by_layer(model: Any) -> None:
    built = [
        FlatNetwork(model.build((1, 8, 8), CLASSES, s), MDD(), torch.zeros(2, 1, 8, 8), seed=s, dtype=FLOAT64)
        for s in (0, 1)
    ]
    assert assert_as_one_by_one(built, inputs(built, (1, 8, 8))).why_not is None


def test_a_stack_of_one_is_a_network() -> None:
    networks = functions(ON_PICTURES["all kinds in turn"], PICTURE, count=1)
    assert_as_one_by_one(networks, inputs(networks, PICTURE))


# Layers that are not --------------------------------------------------------------------------------------------------


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


OBSTACLES: dict[str, tuple[str, tuple[int, ...], Layers]] = {
    "groups": ("a convolution with groups or unusual padding", PICTURE, lambda: (nn.Conv2d(2, 4, 3, groups=2),)),
    "padding by reflection": (
        "a convolution with groups or unusual padding",
        PICTURE,
        lambda: (nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),),
    ),
    "padding by name": (
        "a convolution with groups or unusual padding",
        PICTURE,
        lambda: (nn.Conv2d(2, 3, 3, padding="same"),),
    ),
    "dropout of channels": ("dropout of whole channels", PICTURE, after_convolution(nn.Dropout2d(0.4))),
    "flattening in part": ("an unusual Flatten", PICTURE, lambda: (nn.Flatten(2), nn.Linear(30, 3))),
    "cumulative statistics": (
        "batch normalisation with cumulative statistics",
        (WIDTH,),
        lambda: (nn.BatchNorm1d(WIDTH, momentum=None), nn.Linear(WIDTH, 5)),
    ),
    "layer normalisation": ("a layer of type LayerNorm", (WIDTH,), after_linear(nn.LayerNorm(6))),
    "instance normalisation": (
        "a layer of type InstanceNorm2d",
        PICTURE,
        after_convolution(nn.InstanceNorm2d(3, track_running_stats=True)),
    ),
    "an activation it does not know": ("a layer of type Hardswish", (WIDTH,), after_linear(nn.Hardswish())),
    "a module of one's own": ("a layer of type Residual", (WIDTH,), after_linear(Residual(nn.Linear(6, 6)))),
}


@pytest.mark.parametrize(("reason", "shape", "layers"), OBSTACLES.values(), ids=OBSTACLES)
def test_other_layers_are_run_network_by_network_and_it_says_why(
    reason: str, shape: tuple[int, ...], layers: Layers
) -> None:
    networks = functions(layers, shape)
    assert stacking_obstacle(networks[0].module) == reason
    stack = assert_as_one_by_one(networks, inputs(networks, shape))
    assert (stack.layer_by_layer, stack.why_not) == (False, reason)


@pytest.mark.parametrize("head", ["task_head", "adversary"])
def test_a_head_can_stand_against_it_too(head: str) -> None:
    width = CLASSES if head == "task_head" else 2
    networks = functions(after_linear(nn.Tanh()), **{head: nn.Sequential(nn.LayerNorm(5), nn.Linear(5, width))})
    assert assert_as_one_by_one(networks, inputs(networks, (WIDTH,))).why_not == "a layer of type LayerNorm"


def test_network_by_network_can_be_asked_for() -> None:
    stack = joined(functions(ON_VECTORS["dropout"]), looped=True)
    assert (stack.layer_by_layer, stack.why_not) == (False, "it was asked for")


def test_pictures_may_lie_with_their_channels_last() -> None:
    networks = functions(OBSTACLES["groups"][2], PICTURE)
    assert_as_one_by_one(networks, inputs(networks, PICTURE), channels_last=True)


class Doubling(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2.0 * super().forward(x)


class ResidualSequence(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


class Offset(nn.Module):
    """Adds what is neither a parameter nor a running statistic."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("offset", torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.offset


def twice(layer: nn.Module) -> Layers:
    return lambda: (nn.Linear(WIDTH, 6), layer, nn.Linear(6, 6), layer, nn.Linear(6, 5))


def tied() -> Sequence[nn.Module]:
    layer = nn.Linear(WIDTH, WIDTH)
    return layer, nn.Tanh(), layer


def untrained(layer: nn.Module, *names: str) -> nn.Module:
    """With these parameters, by default all, left out of training and away from their usual values."""
    for name, parameter in layer.named_parameters():
        if not names or name in names:
            parameter.requires_grad_(False).add_(0.5)
    return layer


def hooked(layer: nn.Module) -> nn.Module:
    layer.register_forward_hook(lambda module, given, result: 2.0 * result)
    return layer


PITFALLS: dict[str, tuple[tuple[int, ...], Layers]] = {
    "an activation in two places": ((WIDTH,), twice(nn.Tanh())),
    "tied linear layers": ((WIDTH,), tied),
    "a bias that is not trained": ((WIDTH,), lambda: (untrained(nn.Linear(WIDTH, 6), "bias"), nn.Tanh())),
    "normalisation whose weights are not trained": (
        (WIDTH,),
        lambda: (untrained(nn.BatchNorm1d(WIDTH)), nn.Linear(WIDTH, 5)),
    ),
    "a layer that is not trained": (
        (WIDTH,),
        lambda: (untrained(nn.Linear(WIDTH, 6)), nn.Tanh(), nn.Linear(6, 5)),
    ),
    "a layer that is not trained, network by network": (
        (WIDTH,),
        lambda: (untrained(nn.Linear(WIDTH, 6)), nn.Hardswish(), nn.Linear(6, 5)),
    ),
    "buffers of one's own": ((WIDTH,), lambda: (Offset(), nn.Linear(WIDTH, 5))),
    "a layer's subclass": ((WIDTH,), lambda: (Doubling(WIDTH, 6), nn.Tanh())),
    "a sequence's subclass": ((WIDTH,), lambda: (ResidualSequence(nn.Linear(WIDTH, WIDTH), nn.Tanh()),)),
    "parametrised weights": ((WIDTH,), lambda: (weight_norm(nn.Linear(WIDTH, 6)), nn.Tanh())),
    "hooks of a layer": ((WIDTH,), lambda: (hooked(nn.Linear(WIDTH, 6)), nn.Tanh())),
    "hooks of a sequence": ((WIDTH,), lambda: (hooked(nn.Sequential(nn.Linear(WIDTH, 6))), nn.Tanh())),
    "linear layers on pictures": (PICTURE, lambda: (nn.Linear(5, 4), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))),
    "pooling of pictures without channels": ((7, 5), lambda: (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(6, 4))),
    "normalised sequences": ((3, 5), lambda: (nn.BatchNorm1d(3), nn.Tanh(), nn.Flatten(), nn.Linear(15, 4))),
    "normalised sequences, place by place": ((3, 5), lambda: (nn.BatchNorm1d(3), nn.Linear(5, 4))),
}
"""What is easily mistaken for a plain stack of layers."""


@pytest.mark.parametrize(
    ("shape", "layers"),
    [pytest.param(*given, id=name) for name, given in PITFALLS.items()],
)
def test_what_runs_alone_runs_in_a_stack(shape: tuple[int, ...], layers: Layers) -> None:
    networks = functions(layers, shape)
    assert_as_one_by_one(networks, inputs(networks, shape))


@pytest.mark.parametrize("which", ["convolution", "normalisation"])
def test_frozen_normalisation_beside_layers_that_are_not_trained_runs_network_by_network(which: str) -> None:
    def layers() -> Sequence[nn.Module]:
        conv, norm = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
        untrained(conv if which == "convolution" else norm)
        return conv, norm, nn.ReLU(), nn.Conv2d(3, 4, 2)

    networks = functions(layers, PICTURE, batch_norm="frozen")
    assert_as_one_by_one(networks, inputs(networks, PICTURE), looped=True)


# Inputs, objectives and whose constants they are ----------------------------------------------------------------------


@each_way
@pytest.mark.parametrize("centre", ["none", "train_mean", "image_mean", "batch_mean"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, FLOAT64], ids=str)
def test_inputs_are_scaled_and_centred_as_one_by_one(dtype: torch.dtype, centre: str, looped: bool) -> None:
    networks = functions(after_convolution(nn.ReLU()), PICTURE, centre=centre)
    x = torch.randint(0, 256, (3, ROWS, *PICTURE), generator=generator(1)).to(dtype)
    assert_as_one_by_one(networks, x, looped=looped)


OBJECTIVES = (AUC(), CDAN(), CDAN(detach_softmax=True), CDAN(random_dim=7), MDD(), SourceOnly())


@each_way
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_the_adversary_sees_what_its_objective_shows_it(objective: Objective, looped: bool) -> None:
    networks = functions(after_linear(nn.Tanh()), objective=objective)
    assert_as_one_by_one(networks, inputs(networks, (WIDTH,)), looped=looped)


@each_way
def test_each_network_has_the_constants_of_its_replica(looped: bool) -> None:
    networks = functions(after_linear(nn.Tanh()), objective=CDAN(random_dim=7), centre="train_mean")
    stack = joined(networks, looped=looped)
    which = torch.tensor([2, 0, 0, 1])
    z = torch.stack([networks[r].start for r in which])
    x = inputs([networks[r] for r in which], (WIDTH,))
    outputs = stack.outputs(z, x, stack.constants(which), None, {})
    for g, r in enumerate(which):
        assert_close([part[g] for part in outputs], list(networks[r].outputs(z[g], x[g], 0)))
    shifted = stack.outputs(z, x, stack.constants(which.roll(1)), None, {})
    assert not bool((shifted.features == outputs.features).all(dim=(1, 2))[[0, 1, 3]].any())


def test_a_stack_leaves_the_modules_it_was_made_of_alone() -> None:
    networks = functions(ON_VECTORS["batch normalisation"])
    before = [{name: t.clone() for name, t in each.module.state_dict().items()} for each in networks]
    networks[0].module.eval()
    stack = joined(networks)
    constants = stack.constants(torch.arange(3))
    z = torch.stack([each.start + 1.0 for each in networks])
    stack.outputs(z, inputs(networks, (WIDTH,)), constants, None, random_statistics(networks))
    assert not networks[0].module.training
    for each, kept in zip(networks, before, strict=True):
        torch.testing.assert_close(dict(each.module.state_dict()), kept, rtol=0, atol=0)


# What the fused kernels take ------------------------------------------------------------------------------------------


def fusible(*layers: nn.Module, shape: tuple[int, ...] = (2, 3, 3, 8, 8)) -> bool:
    return stacked._fusible(layers, torch.zeros(shape))


CONVOLUTION = {"in_channels": 3, "out_channels": 4, "kernel_size": 5, "padding": 2}


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2), nn.MaxPool2d((2, 2), (2, 2))], ids=repr)
@pytest.mark.parametrize("kernel", [1, 3, 5, (7, 7)])
def test_a_convolution_relu_and_pooling_by_two_can_be_fused(kernel: Any, pool: nn.Module) -> None:
    padding = (kernel if isinstance(kernel, int) else kernel[0]) // 2
    conv = nn.Conv2d(**CONVOLUTION | {"kernel_size": kernel, "padding": padding})
    assert fusible(conv, nn.ReLU(), pool)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": False},
        {"kernel_size": 4},
        {"kernel_size": (5, 3)},
        {"padding": 1},
        {"stride": 2},
        {"dilation": 2},
        {"out_channels": 129},
    ],
    ids=repr,
)
def test_other_convolutions_are_not_fused(change: dict[str, Any]) -> None:
    assert not fusible(nn.Conv2d(**CONVOLUTION | change), nn.ReLU(), nn.MaxPool2d(2))


@pytest.mark.parametrize(
    "layers",
    [
        (nn.LeakyReLU(), nn.MaxPool2d(2)),
        (nn.ReLU(), nn.AvgPool2d(2)),
        (nn.ReLU(), nn.MaxPool2d(3)),
        (nn.ReLU(), nn.MaxPool2d(2, stride=1)),
        (nn.ReLU(), nn.MaxPool2d(2, padding=1)),
        (nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)),
        (nn.ReLU(), nn.MaxPool2d(2, dilation=2)),
        (nn.MaxPool2d(2), nn.ReLU()),
        (nn.ReLU(),),
    ],
    ids=repr,
)
def test_what_follows_must_be_relu_and_pooling_by_two(layers: Sequence[nn.Module]) -> None:
    assert not fusible(nn.Conv2d(**CONVOLUTION), *layers)


@pytest.mark.parametrize("shape", [(2, 3, 3, 8, 7), (2, 3, 3, 9, 8), (3, 3, 8, 8)])
def test_pictures_with_odd_sides_are_not_fused(shape: tuple[int, ...]) -> None:
    assert not fusible(nn.Conv2d(**CONVOLUTION), nn.ReLU(), nn.MaxPool2d(2), shape=shape)


# Precision ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("chosen", "bits"), [("fp32", 24), ("tf32", 24), ("bf16", 8)])
def test_on_a_cpu_products_are_strict_unless_bfloat16_is_chosen(chosen: Any, bits: int) -> None:
    # (1 + 2^-12) x 1 needs 13 bits.
    x = torch.full((2, 2), 1.0 + 2.0**-12)
    with precision(chosen, torch.device("cpu")):
        product = x @ torch.eye(2)
    assert torch.equal(product.float(), x) == (bits >= 13)


@pytest.mark.parametrize("chosen", PRECISIONS)
def test_a_chosen_precision_ends_with_its_block_even_by_an_error(chosen: Any) -> None:
    with pytest.raises(KeyError), precision(chosen, torch.device("cpu")):
        raise KeyError
    assert not torch.is_autocast_enabled("cpu")
